"""ModelText: how one model's text is read and written. It contains no request.

There is one for the model, and one for each adapter that has tokens of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

from dovetail.config.sections.frontend import FrontendConfig
from dovetail.engine.client.requests.io_processing import make_io_processor
from dovetail.engine.client.requests.prompt_checks import verify_text
from dovetail.engine.client.text.long_text import LONG_TEXT_CHARS, encoded, max_kept_tokens
from dovetail.engine.client.text.no_tokenizer import text_refused
from dovetail.engine.client.text.vocabularies import Vocabulary
from dovetail.engine.context_length import PROMPT
from dovetail.errors import ConfigError, RequestError
from dovetail.interfaces.data.constraint import concat
from dovetail.interfaces.data.spec import StructuredOutputSpec
from dovetail.interfaces.io_processor import IOProcessor
from dovetail.interfaces.structured_output import CompiledConstraint
from dovetail.interfaces.tokenizer import Tokenizer
from dovetail.multimodal.given import as_medium
from dovetail.multimodal.loader import MediaLoader
from dovetail.multimodal.prompt import MediaPrompt, PlacedPrompt
from dovetail.server.generate.body.chat import ChatRequest
from dovetail.server.generate.events import SessionPlan
from dovetail.server.generate.rendering.building import build_renderer
from dovetail.server.generate.rendering.chat import ChatRenderer, RenderedPrompt
from dovetail.server.generate.rendering.control_words import Span
from dovetail.server.generate.rendering.switches import Switch
from dovetail.server.generate.tools.named_parsers import named_parser
from dovetail.server.generate.tools.parsers import Parsers
from dovetail.server.generate.tools.structured_outputs import (
    BLANKS,
    ConstraintRequest,
    after_reasoning,
)
from dovetail.structured_output.select_backend import none_installed

if TYPE_CHECKING:
    from dovetail.engine.client.async_engine import AsyncEngine

MAX_TEXT_SETS = 64
"""How many results of looking up parsers' texts among the special tokens are cached."""

SHORT_TEXT_CHARS = 4096
"""Texts up to this size are processed in the event loop, where a thread would cost more."""

LONG_WORK = SHORT_TEXT_CHARS + 1
"""A size that always makes `run` use a thread."""

Answer = TypeVar("Answer")


class TextThreads:
    """The threads of one application."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=2, thread_name_prefix="text")

    async def run(self, call: Callable[[], Answer], num_chars: int) -> Answer:
        """Return call(), run in a thread if its text is long."""
        if num_chars <= SHORT_TEXT_CHARS:
            return call()
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelText:
    """How the text of a model is read and written, or of an adapter to it (`adapter`).

    `structured_output_spec` says how answers are constrained; None: no backend is installed.
    `media` loads the media of prompts; None: the model takes none. `io_processor` makes prompts
    from other data; None: there is none. `special_ids` returns the special tokens of the given
    texts, which must stay visible to the parser that looks for them.
    """

    engine: AsyncEngine
    frontend: FrontendConfig
    threads: TextThreads
    structured_output_spec: StructuredOutputSpec | None
    media: MediaLoader | None
    io_processor: IOProcessor | None
    adapter: str = ""
    vocabulary: Vocabulary
    renderer: ChatRenderer
    parsers: Parsers
    special_ids: Callable[[frozenset[str]], tuple[int, ...]] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "special_ids", _special_ids_of(self.vocabulary.tokenizer))

    def for_adapter(self, adapter: str, vocabulary: Vocabulary) -> ModelText:
        """Return the ModelText of an adapter that has its own vocabulary. Raises: RequestError"""
        if not vocabulary.tokenizer_path:
            return replace(self, adapter=adapter, vocabulary=vocabulary)
        tokenizer = vocabulary.tokenizer
        try:
            renderer = build_renderer(
                self.engine, self.frontend, self.renderer.selection, tokenizer=tokenizer
            )
            parsers = self.parsers.bound(tokenizer)
        except ConfigError as error:
            raise RequestError(error.what, where=error.where, fix=error.fix) from error
        return replace(
            self, adapter=adapter, vocabulary=vocabulary, renderer=renderer, parsers=parsers
        )

    def parsers_for(self, tool: str | None, reasoning: str | None) -> Parsers:
        """Return the server's parsers, replaced by those that a request names. Raises:
        RequestError"""
        tokenizer, chosen = self.vocabulary.tokenizer, self.parsers
        if tool is not None:
            chosen = replace(chosen, tool=named_parser("tool_parser", tool, tokenizer))
        if reasoning is not None:
            parser = named_parser("reasoning_parser", reasoning, tokenizer)
            chosen = replace(chosen, reasoning=parser)
        return chosen

    def check_text(self, where: str) -> None:
        """Raise RequestError if there is no tokenizer for the text of a field."""
        if not self.engine.spec.has_tokenizer:
            raise text_refused(where)

    def check_template_allowed(self) -> None:
        """Raise RequestError if this server does not accept templates in requests."""
        if not self.frontend.trust_request_chat_template:
            raise RequestError(
                "this server does not accept chat templates in requests.",
                where="chat_template",
                fix="start it with --trust-request-chat-template, or with --chat-template FILE.",
                code="unsupported_field",
            )

    def check_structured_output(self, where: str) -> None:
        """Raise RequestError if answers cannot be constrained."""
        if not self.engine.spec.has_tokenizer:
            raise text_refused(where)
        if self.engine.constraint_compiler is None:
            raise none_installed(where)

    async def compile_constraint(
        self, request: ConstraintRequest, plan: SessionPlan, tail: str
    ) -> CompiledConstraint:
        """Return the compiled constraint of an answer. `tail` is the end of the rendered prompt.

        The constraint applies after the reasoning, if any. Raises: RequestError
        """
        self.check_structured_output(request.where)
        if plan.reasoning is None and plan.can_reason:
            raise RequestError(
                "this server's reasoning parser does not say by which text the reasoning ends, so "
                "an answer behind it cannot be constrained.",
                where=request.where,
                fix="leave it out, or start the server with another --reasoning-parser.",
                code="unsupported_field",
            )
        compiler = self.engine.constraint_compiler
        assert compiler is not None
        if request.constraint is None:
            thinking = plan.reasoning
            return await compiler.triggered(
                request.tags,
                where=request.where,
                backend=request.backend,
                reasoning_markers=(thinking.start, thinking.end) if thinking else (),
                starts_in_reasoning=plan.starts_inside,
                closes=request.closes,
            )
        constraint, starts_after = request.constraint, ""
        if plan.reasoning is not None and plan.starts_inside:
            constraint, starts_after = concat(BLANKS, constraint), plan.reasoning.end
        elif plan.reasoning is not None and not tail.rstrip().endswith(plan.reasoning.end):
            constraint = after_reasoning(constraint, plan.reasoning)
        return await compiler.compile(
            constraint,
            where=request.where,
            backend=request.backend,
            starts_after=starts_after,
            closes=request.closes,
        )

    async def render(self, body: ChatRequest, switches: Sequence[Switch] = ()) -> RenderedPrompt:
        """Return the rendered conversation. Raises: RequestError"""
        self.check_text("messages")
        if body.chat_template is not None:
            self.check_template_allowed()
        return await self.threads.run(lambda: self.renderer.render(body, switches), text_size(body))

    async def tokenize_prompt(
        self, prompt: RenderedPrompt, body: ChatRequest, *, takes_any_length: bool = False
    ) -> Sequence[int]:
        """Return the token ids of a conversation, as `tokenize` does. Raises: RequestError"""
        return await self.tokenize(
            prompt.text,
            add_special_tokens=body.add_special_tokens,
            truncates_to=body.truncate_prompt_tokens,
            keeps_start=body.truncation_side == "right",
            plain=prompt.plain,
            takes_any_length=takes_any_length,
        )

    async def read(
        self, prompt: RenderedPrompt, body: ChatRequest, *, takes_any_length: bool = False
    ) -> Sequence[int] | PlacedPrompt:
        """Return the token ids of a conversation, with its media placed if it has some. Raises:
        RequestError"""
        ids = await self.tokenize_prompt(prompt, body, takes_any_length=takes_any_length)
        return await self._placed(prompt, body, ids) if prompt.media else ids

    async def _placed(
        self, prompt: RenderedPrompt, body: ChatRequest, ids: Sequence[int]
    ) -> PlacedPrompt:
        assert self.media is not None, "the renderer refuses media that a model does not take"
        if body.truncate_prompt_tokens is not None:
            raise RequestError(
                "a prompt with media cannot be truncated.", where="truncate_prompt_tokens"
            )
        loaded = await self.media.load(prompt.media, body.media_io_kwargs)
        given = MediaPrompt(
            text=tuple(ids),
            media=tuple(as_medium(one) for one in loaded),
            options=body.mm_processor_kwargs or {},
        )
        return await self.engine.read(given, self.adapter)

    async def tokenize(
        self,
        text: str,
        *,
        add_special_tokens: bool,
        truncates_to: int | None = None,
        keeps_start: bool = False,
        plain: Sequence[Span] = (),
        takes_any_length: bool = False,
    ) -> Sequence[int]:
        """Return the token ids of a prompt, or only those that truncate_prompt_tokens may keep.

        `keeps_start`: keep the start instead of the end. Control words at `plain` are ordinary
        text. Raises: RequestError for text that is not Unicode, or (unless `takes_any_length`) for
        long text that does not fit the context
        """
        verify_text(PROMPT, text)
        run = self.engine.spec.run
        arguments: dict[str, Any] = {
            "add_special_tokens": add_special_tokens,
            "max_tokens": None if takes_any_length else run.max_model_tokens,
            "keep": max_kept_tokens(truncates_to, run.max_model_tokens),
            "keeps_start": keeps_start,
            "plain": plain,
        }
        process = self.engine.text_process
        if process is not None and len(text) > LONG_TEXT_CHARS:
            return await process.encode(text, **arguments, folder=self.vocabulary.tokenizer_path)
        answers = run.pooling is None
        encode = partial(encoded, self.vocabulary.tokenizer, text, answers=answers, **arguments)
        return await self.threads.run(encode, len(text))


def text_size(body: ChatRequest) -> int:
    """Return the approximate size of messages and tools in characters; a template counts as long
    work."""
    tools = 256 * len(body.tools or ())
    template = LONG_WORK if body.chat_template is not None else 0
    sizes = (len(m.content) if isinstance(m.content, str) else 1024 for m in body.messages)
    return template + tools + sum(sizes)


def build_model_text(
    engine: AsyncEngine,
    frontend: FrontendConfig,
    *,
    renderer: ChatRenderer | None = None,
    parsers: Parsers | None = None,
) -> ModelText:
    """Return how the model's own text is read and written. Raises: ConfigError for an invalid
    template"""
    media = engine.spec.media
    return ModelText(
        engine=engine,
        frontend=frontend,
        threads=TextThreads(),
        structured_output_spec=engine.spec.run.structured_output,
        media=None if media is None else MediaLoader(media.settings),
        io_processor=make_io_processor(engine.spec),
        vocabulary=engine.vocabularies.own,
        renderer=renderer or build_renderer(engine, frontend),
        parsers=parsers or Parsers(),
    )


def _special_ids_of(tokenizer: Tokenizer) -> Callable[[frozenset[str]], tuple[int, ...]]:
    """Return a function that looks up the special tokens of texts."""
    return lru_cache(MAX_TEXT_SETS)(partial(_special_ids, tokenizer.facts().special_texts))


def _special_ids(special: Mapping[int, str], texts: frozenset[str]) -> tuple[int, ...]:
    ids = (i for i, part in special.items() if part and any(part in text for text in texts))
    return tuple(sorted(ids))
