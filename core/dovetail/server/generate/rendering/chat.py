"""ChatRenderer: what surrounds a renderer: a request's messages, tools and kwargs become its input.

It uses no tokens. Rendering is pure and may run in any thread.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

from dovetail import registry
from dovetail.errors import DovetailError, RequestError
from dovetail.interfaces.data.media_settings import MediaLimit
from dovetail.interfaces.data.selection import Selection
from dovetail.interfaces.renderer import Reads, Renderer, RendererFacts, RendererInput
from dovetail.multimodal.content import MediaItem, check_counts
from dovetail.registry.blame import described
from dovetail.server.generate.body.chat import ChatRequest
from dovetail.server.generate.rendering.control_words import ControlWords, Span
from dovetail.server.generate.rendering.messages import normalise, tool_dicts, unused_extras
from dovetail.server.generate.rendering.places import MediaPlaces
from dovetail.server.generate.rendering.switches import Switch, switches_of
from dovetail.unsupported import sentence

logger = logging.getLogger("dovetail.server")
AUTO = "auto"
MAX_GIVEN = 16
"""How many templates from requests are cached in compiled form."""

RESERVED = frozenset((
    "messages", "message", "conversation", "conversations", "tools", "documents",
    "add_generation_prompt", "continue_final_message", "chat_template", "tokenize", "padding",
    "truncation", "max_length", "return_tensors", "return_dict", "return_assistant_tokens_mask",
    "tokenizer_kwargs", "raise_exception", "strftime_now", "range", "namespace", "dict",
))  # fmt: skip
"""Variables that `chat_template_kwargs` may not set."""

FINAL_TURN_ROLES = frozenset({"assistant"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedPrompt:
    """A rendered conversation.

    `tail` is the text after the last turn that is not the assistant's. `unused` names the request
    fields that the template does not use. `plain` has the spans of control words that clients
    wrote, which are plain text. `media` are the messages' media in order: the template wrote its
    own words at their places.
    """

    text: str
    tail: str
    unused: Sequence[str] = ()
    plain: tuple[Span, ...] = ()
    media: tuple[MediaItem, ...] = ()


class ChatRenderer:
    """Renders the conversations of requests with one renderer. `selection` names it."""

    def __init__(
        self,
        selection: Selection,
        facts: RendererFacts,
        *,
        content_format: str = AUTO,
        added_texts: Iterable[str] = (),
        allows_control_tokens: bool = False,
        default_kwargs: Mapping[str, Any] | None = None,
        media_kinds: frozenset[str] = frozenset(),
        media_limits: Mapping[str, MediaLimit] | None = None,
        media_words: Mapping[str, str] | None = None,
        interleaves_media: bool = False,
    ) -> None:
        """`added_texts` are the texts of all added tokens; with `allows_control_tokens` clients may
        write any of them. `default_kwargs` are the template variables that a request does not set.
        `media_kinds` are the media that the model takes, limited per modality by `media_limits`. If
        the renderer supports only text, `media_words` represent them: before a message's text, or
        with `interleaves_media` at their places. Raises: ConfigError"""
        self.selection = selection
        self._renderer: Renderer = registry.make(selection, facts)
        self.note_calls = self._renderer.note_calls
        self._media_words = dict(media_words or {})
        self._interleaves_media = interleaves_media
        self._media_kinds = media_kinds
        self._media_limits = media_limits or {}
        self._default_kwargs = dict(default_kwargs or {})
        special = facts.tokenizer.special_texts.values()
        self._special_texts = () if allows_control_tokens else tuple(special)
        self._special_names = frozenset(facts.tokenizer.special_tokens)
        self._added_texts = () if allows_control_tokens else tuple(added_texts)
        self._words = lru_cache(MAX_GIVEN)(self._words_of)
        self._content_format: str | None = None
        if content_format != AUTO:
            self._content_format = registry.admin.value_of("chat_content_format", content_format)
        self._given = lru_cache(MAX_GIVEN)(self._renderer.with_template)

    @property
    def templates(self) -> Mapping[str, str]:
        """Return the texts that show the format, by name: templates, if it renders by some."""
        return self._renderer.sources()

    @property
    def source(self) -> str:
        """Return these texts as one; empty if there is none."""
        return "\n".join(sorted(set(self.templates.values())))

    @property
    def can_render(self) -> bool:
        """Return whether this model can have conversations."""
        try:
            self._renderer.reads(has_tools=False)
        except RequestError:
            return False
        return True

    def render(self, body: ChatRequest, switches: Sequence[Switch] = ()) -> RenderedPrompt:
        """Return the prompt; `switches` are the dialect's own thinking switches.

        Raises: RequestError
        """
        tools, given = tool_dicts(body.tools or ()), body.chat_template
        renderer = self._renderer if given is None else self._given(given)
        reads = self._reads(renderer, has_tools=bool(tools))
        kwargs, unused = _split(body.chat_template_kwargs or {}, reads, self._special_names)
        _check_documents(body, reads)
        switched, without_effect = _switched(reads, switches_of(body, switches))
        _check_media_options(body, self._media_kinds)
        places = self._places() if self._media_kinds else None
        messages, media = normalise(body.messages, reads, self._media_kinds, places)
        check_counts(media, self._media_limits)
        conversation = RendererInput(
            messages=messages,
            tools=tools,
            documents=list(body.documents or ()),
            variables=self._defaults(reads) | switched | kwargs,
            adds_generation_prompt=_adds_generation_prompt(body),
            continues_final_message=body.continue_final_message,
        )
        conversation = renderer.settled(conversation)
        run, messages = partial(_run, renderer), list(conversation.messages)
        text = run(conversation)
        plain = self._words(renderer, bool(tools)).from_clients(run, conversation, text)
        if body.continue_final_message:
            text = _cut_after_final(text, _text(messages[-1]))
        names = [f"chat_template_kwargs.{name}" for name in unused]
        names += [f"messages.{n}" for n in sorted(unused_extras(body.messages, reads))]
        tail, plain = _tail(text, messages), tuple(span for span in plain if span[1] <= len(text))
        if places is not None:
            (text, plain), (tail, _) = places.put(text, plain), places.put(tail, ())
        return RenderedPrompt(
            text=text, tail=tail, unused=(*names, *without_effect), plain=plain, media=media
        )

    def _places(self) -> MediaPlaces:
        """Return the media marks of one conversation."""
        return MediaPlaces(words=self._media_words, interleaves=self._interleaves_media)

    def _defaults(self, reads: Reads) -> dict[str, Any]:
        return {n: value for n, value in self._default_kwargs.items() if n in reads.variables}

    def _words_of(self, renderer: Renderer, has_tools: bool) -> ControlWords:
        reads = renderer.reads(has_tools=has_tools)
        return ControlWords(self._special_texts, self._added_texts, reads)

    def _reads(self, renderer: Renderer, *, has_tools: bool) -> Reads:
        reads, content = renderer.reads(has_tools=has_tools), self._content_format
        return reads if content is None else replace(reads, content=content)


def _run(renderer: Renderer, given: RendererInput) -> str:
    """Return a rendering; a renderer that fails ends one request. Raises: RequestError"""
    try:
        return renderer.render(given)
    except DovetailError:
        raise
    except Exception as error:
        name = type(renderer).__qualname__
        logger.exception("the renderer %s failed", name)
        raise RequestError(
            f"the renderer {name} failed: {described(error)}",
            where="messages",
            fix="check the order and the fields of the messages, or use another --renderer.",
            code="renderer_error",
            status=500,
        ) from error


def _split(
    kwargs: Mapping[str, Any], reads: Reads, special: frozenset[str]
) -> tuple[dict[str, Any], list[str]]:
    """Return (the variables that the renderer reads, names of the others). Raises: RequestError"""
    for name in kwargs:
        if name in RESERVED or name in special or name.startswith("_"):
            raise RequestError(
                f'"{name}" is set by the server.', where="chat_template_kwargs", code="reserved"
            )
    used = {name: value for name, value in kwargs.items() if name in reads.variables}
    return used, [name for name in kwargs if name not in used]


def _switched(reads: Reads, switches: Sequence[Switch]) -> tuple[dict[str, Any], list[str]]:
    """Return the template variables that the switches set (the first switch wins), and the fields
    of switches unknown to the renderer."""
    kwargs: dict[str, Any] = {}
    without_effect: list[str] = []
    for switch in switches:
        known = {name: v for name, v in switch.kwargs.items() if name in reads.variables}
        kwargs = known | kwargs
        if not known:
            without_effect.append(switch.field)
    return kwargs, without_effect


def _adds_generation_prompt(body: ChatRequest) -> bool:
    """Return whether the answer's opening is added; by default not if the final message is to be
    continued. Raises: RequestError"""
    if not body.continue_final_message:
        return body.add_generation_prompt
    if body.add_generation_prompt and "add_generation_prompt" in body.model_fields_set:
        raise RequestError(
            "cannot be combined with add_generation_prompt.", where="continue_final_message"
        )
    if body.messages[-1].role not in FINAL_TURN_ROLES:
        raise RequestError(
            "the final message is not the assistant's.", where="continue_final_message"
        )
    return False


def _check_documents(body: ChatRequest, reads: Reads) -> None:
    if body.documents and "documents" not in reads.variables:
        raise RequestError(
            "this model's chat template has no place for documents.",
            where="documents",
            fix="send their text in a message.",
            code="unsupported_field",
        )


def _check_media_options(body: ChatRequest, media_kinds: frozenset[str]) -> None:
    for name in ("media_io_kwargs", "mm_processor_kwargs"):
        if getattr(body, name) and not media_kinds:
            raise RequestError(sentence("media"), where=name, code="unsupported_field")


def _text(message: dict[str, Any]) -> str:
    """Return the text at the end of a message; empty if it ends with media."""
    content = message["content"]
    if isinstance(content, str):
        return content
    return str(content[-1].get("text", "")) if content else ""


def _cut_after_final(prompt: str, final: str) -> str:
    """Return the prompt up to the end of the final message. Its trailing white space is part of the
    continued text, even if the template strips it. Raises: RequestError"""
    text = final.strip()
    at = prompt.rfind(text) if text else -1
    if at < 0:
        raise RequestError(
            "the chat template changes the final message, so it cannot be continued.",
            where="continue_final_message",
        )
    return prompt[: at + len(text)] + final[len(final.rstrip()) :]


def _tail(prompt: str, messages: Sequence[dict[str, Any]]) -> str:
    """Return the prompt after the last turn that is not the assistant's, because a marker typed by
    a user does not show the model's initial state. Turns are searched in order, so that a short one
    is not mistaken for text of the template."""
    start = end = 0
    for message in messages:
        text = _text(message).strip()
        at = prompt.find(text, start) if text else -1
        if at < 0:
            continue
        start = at + len(text)
        if message["role"] != "assistant":
            end = start
    return prompt[end:]
