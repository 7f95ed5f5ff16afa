"""ServerState: what every route of one application uses. Built once; contains no request."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from dovetail.config.report.in_force import InForce
from dovetail.config.sections.frontend import FrontendConfig
from dovetail.engine.client.requests.claims import claimed_fields
from dovetail.engine.client.requests.io_processing import make_io_processor
from dovetail.engine.client.requests.prompt_checks import verify_text
from dovetail.engine.client.text.long_text import LONG_TEXT_CHARS, encoded, kept
from dovetail.engine.client.text.no_tokenizer import text_refused
from dovetail.engine.client.text.vocabularies import Vocabulary
from dovetail.engine.context_length import PROMPT
from dovetail.errors import ConfigError, RequestError, model_not_found
from dovetail.interfaces.api import GENERATE, TRANSCRIBE
from dovetail.interfaces.data.constraint import concat
from dovetail.interfaces.data.spec import StructuredOutputSpec
from dovetail.interfaces.io_processor import IOProcessor
from dovetail.interfaces.reasoning_parser import ReasoningParser
from dovetail.interfaces.structured_output import CompiledConstraint
from dovetail.interfaces.tokenizer import Tokenizer
from dovetail.interfaces.tool_parser import ToolParser
from dovetail.multimodal.given import as_medium
from dovetail.multimodal.loader import MediaLoader
from dovetail.multimodal.prompt import MediaPrompt, PlacedPrompt
from dovetail.server.generate.adapters import ServedAdapters
from dovetail.server.generate.body.chat import ChatRequest
from dovetail.server.generate.body.ignored_fields import FieldReporter
from dovetail.server.generate.events import SessionPlan
from dovetail.server.generate.template.building import build_renderer
from dovetail.server.generate.template.chat import ChatRenderer, RenderedPrompt
from dovetail.server.generate.template.control_words import Span
from dovetail.server.generate.template.switches import Switch
from dovetail.server.generate.tools.named_parsers import named_parser
from dovetail.server.generate.tools.structured_outputs import (
    BLANKS,
    ConstraintRequest,
    after_reasoning,
)
from dovetail.server.http.admission import Admission
from dovetail.structured_output.select_backend import none_installed
from dovetail.version import __version__

if TYPE_CHECKING:
    from dovetail.engine.client.async_engine import AsyncEngine

SHORT_TEXT_CHARS = 4096
"""Texts up to this size are processed in the event loop, where a thread would cost more."""

MAX_TEXT_SETS = 64
"""How many results of looking up parsers' texts among the special tokens are cached."""

MIN_TOKEN_CHARS = 3
"""Shorter added tokens, of blanks for example, also occur in ordinary text."""

LONG_WORK = SHORT_TEXT_CHARS + 1
"""A size that always makes `run` use a thread."""

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsers:
    """The parsers chosen for this model, or None. `special_texts` are the texts that are always one
    token of the vocabulary."""

    tool: ToolParser | None = None
    reasoning: ReasoningParser | None = None
    special_texts: frozenset[str] = frozenset()
    special_starts: frozenset[str] = field(init=False)
    """The call markers that begin with such a token. They never occur in ordinary text."""

    def __post_init__(self) -> None:
        words = tuple(text for text in self.special_texts if len(text) >= MIN_TOKEN_CHARS)
        starts = [markers.start for markers in self.tool.markers] if self.tool else []
        special = frozenset(start for start in starts if start.startswith(words))
        object.__setattr__(self, "special_starts", special)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """The parts of one application. Close it in the event loop that used it.

    `structured_output_spec` says how answers are constrained; None: no backend is installed.
    `special_ids` returns the special tokens of the given texts, which must stay visible to the
    parser that looks for them. `in_force` has the settings and their sources; None if this process
    did not receive them. `media` loads the media of prompts; None: the model takes none.
    `io_processor` makes prompts from other data; None: there is none. All fields except `engine`
    and the application's own are for the model itself. `for_model` returns the same for an adapter
    with its own vocabulary.
    """

    engine: AsyncEngine
    frontend: FrontendConfig
    renderer: ChatRenderer
    parsers: Parsers
    admission: Admission
    fields: FieldReporter
    threads: ThreadPoolExecutor
    created_s: int
    fingerprint: str
    structured_output_spec: StructuredOutputSpec | None
    special_ids: Callable[[frozenset[str]], tuple[int, ...]]
    in_force: InForce | None
    adapters: ServedAdapters
    media: MediaLoader | None = None
    io_processor: IOProcessor | None = None
    vocabulary: Vocabulary
    adapter: str = ""
    others: dict[str, ServerState] = field(default_factory=dict)

    def _with(self, adapter: str, vocabulary: Vocabulary) -> ServerState:
        if not vocabulary.tokenizer_path:
            return replace(self, adapter=adapter, vocabulary=vocabulary)
        tokenizer, parsers = vocabulary.tokenizer, self.parsers
        try:
            renderer = build_renderer(self.engine, self.frontend, tokenizer)
            tool = None if parsers.tool is None else parsers.tool.bound(tokenizer)
            thinks = None if parsers.reasoning is None else parsers.reasoning.bound(tokenizer)
        except ConfigError as error:
            raise RequestError(error.what, where=error.where, fix=error.fix) from error
        return replace(
            self,
            adapter=adapter,
            vocabulary=vocabulary,
            renderer=renderer,
            parsers=Parsers(tool=tool, reasoning=thinks, special_texts=tokenizer.added_texts()),
            special_ids=_special_ids_of(tokenizer),
        )

    async def aclose(self) -> None:
        """End this server's own processes, which decode media. The engine keeps running."""
        if self.media is not None:
            await self.media.close()

    @property
    def tasks(self) -> frozenset[str]:
        """Return the tasks that the model supports: generate, transcribe, or the pooling tasks."""
        pooling, encoder = self.engine.spec.run.pooling, self.engine.spec.run.model.encoder
        if encoder is not None and encoder.kind == "audio":
            return frozenset((TRANSCRIBE,))
        return frozenset((GENERATE,) if pooling is None else pooling.tasks)

    async def for_model(self, requested: str | None) -> tuple[ServerState, str]:
        """Return (the server for a model or adapter, the name to answer with).

        An adapter may have its own tokens, tokenizer and template. Raises: NotFound; RequestError
        for an adapter that was found but cannot be loaded, or has lost its tokenizer. Mutates:
        self.others
        """
        names = self.engine.spec.model_names
        if not requested or requested in names:
            return self, requested or names[0]
        if await self.adapters.find(requested) is None:
            raise model_not_found(requested, (*names, *self.adapters.shown_names()))
        vocabulary = self.engine.vocabularies.of(requested)
        if vocabulary is self.vocabulary:
            return self, requested
        known = self.others.get(requested)
        if known is None or known.vocabulary is not vocabulary:
            known = self.others[requested] = self._with(requested, vocabulary)
        return known, requested

    async def model_name(self, requested: str | None) -> str:
        """Return the name to answer with: a model's or an adapter's. Raises: as `for_model`"""
        return (await self.for_model(requested))[1]

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
        return await self.run(lambda: self.renderer.render(body, switches), text_size(body))

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

    async def read_media(
        self, prompt: RenderedPrompt, body: ChatRequest, ids: Sequence[int]
    ) -> PlacedPrompt:
        """Return a conversation's prompt with its media placed. Raises: RequestError"""
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

    async def run(self, call: Callable[[], Answer], num_chars: int) -> Answer:
        """Return call(), run in a thread if its text is long."""
        if num_chars <= SHORT_TEXT_CHARS:
            return call()
        return await asyncio.get_running_loop().run_in_executor(self.threads, call)

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
        asked: dict[str, Any] = {
            "add_special_tokens": add_special_tokens,
            "most": None if takes_any_length else run.max_model_tokens,
            "keep": kept(truncates_to, run.max_model_tokens),
            "keeps_start": keeps_start,
            "plain": plain,
        }
        process = self.engine.text_process
        if process is not None and len(text) > LONG_TEXT_CHARS:
            return await process.encode(text, **asked, folder=self.vocabulary.tokenizer_path)
        answers = run.pooling is None
        encode = partial(encoded, self.vocabulary.tokenizer, text, answers=answers, **asked)
        return await self.run(encode, len(text))


def text_size(body: ChatRequest) -> int:
    """Return the approximate size of messages and tools in characters; a template counts as long
    work."""
    tools = 256 * len(body.tools or ())
    template = LONG_WORK if body.chat_template is not None else 0
    sizes = (len(m.content) if isinstance(m.content, str) else 1024 for m in body.messages)
    return template + tools + sum(sizes)


def build_server(
    engine: AsyncEngine,
    frontend: FrontendConfig,
    renderer: ChatRenderer,
    parsers: Parsers,
    max_queued_requests: int | None,
    in_force: InForce | None = None,
) -> ServerState:
    """Return the parts of one application."""
    return ServerState(
        engine=engine,
        frontend=frontend,
        renderer=renderer,
        parsers=parsers,
        admission=Admission(
            engine,
            max_running=engine.spec.total_rows,
            max_queued=max_queued_requests,
        ),
        fields=FieldReporter(
            is_strict=frontend.strict_request_fields,
            claimed=claimed_fields(engine.spec.run.logits_processors),
        ),
        threads=ThreadPoolExecutor(max_workers=2, thread_name_prefix="text"),
        created_s=int(time.time()),
        fingerprint=_fingerprint(engine),
        structured_output_spec=engine.spec.run.structured_output,
        special_ids=_special_ids_of(engine.tokenizer),
        vocabulary=engine.vocabularies.own,
        in_force=in_force,
        adapters=ServedAdapters(engine),
        media=None if engine.spec.media is None else MediaLoader(engine.spec.media.settings),
        io_processor=make_io_processor(engine.spec),
    )


def _special_ids_of(tokenizer: Tokenizer) -> Callable[[frozenset[str]], tuple[int, ...]]:
    """Return a function that looks up the special tokens of texts."""
    return lru_cache(MAX_TEXT_SETS)(partial(_special_ids, tokenizer.facts().special_texts))


def _special_ids(special: Mapping[int, str], texts: frozenset[str]) -> tuple[int, ...]:
    ids = (i for i, part in special.items() if part and any(part in text for text in texts))
    return tuple(sorted(ids))


def _fingerprint(engine: AsyncEngine) -> str:
    """Return a fingerprint of the configuration that determines the generated tokens."""
    run = engine.spec.run
    cache = (run.kv_dtype, run.kv_scales, run.kv_steps)
    facts = msgspec.json.encode((run.model, run.device, cache, run.quantization.name))
    return f"dovetail-{__version__}-{hashlib.sha256(facts).hexdigest()[:8]}"
