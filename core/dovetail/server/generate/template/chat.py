"""ChatRenderer: messages, tools and kwargs become the prompt text.

It holds the server's template and uses no tokens. Rendering is pure and may run in any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from dovetail import registry
from dovetail.config.rules.model.chat_template import load_template
from dovetail.errors import ConfigError, RequestError
from dovetail.interfaces.data.media_settings import MediaLimit
from dovetail.interfaces.tokenizer import TokenizerFacts
from dovetail.multimodal.content import MediaItem, check_counts
from dovetail.server.generate.body.chat import ChatRequest
from dovetail.server.generate.template.control_words import ControlWords, Span
from dovetail.server.generate.template.messages import normalise, tool_dicts, unused_extras
from dovetail.server.generate.template.places import MediaPlaces
from dovetail.server.generate.template.switches import Switch, switches_of
from dovetail.server.generate.template.template import ChatTemplate
from dovetail.unsupported import sentence

AUTO = "auto"
MAX_GIVEN = 16
"""How many templates from requests are cached in compiled form."""

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
    """Renders with the checkpoint's template, or with one given by a flag."""

    def __init__(
        self,
        facts: TokenizerFacts,
        *,
        override: str | None = None,
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
        the template supports only text, `media_words` represent them: before a message's text, or
        with `interleaves_media` at their places."""
        self._media_words = dict(media_words or {})
        self._interleaves_media = interleaves_media
        self._media_kinds = media_kinds
        self._media_limits = media_limits or {}
        self._default_kwargs = dict(default_kwargs or {})
        self._special_texts = () if allows_control_tokens else tuple(facts.special_texts.values())
        self._added_texts = () if allows_control_tokens else tuple(added_texts)
        self._words = lru_cache(MAX_GIVEN)(self._words_of)
        self._content_format: str | None = None
        if content_format != AUTO:
            self._content_format = registry.admin.value_of("chat_content_format", content_format)
        where = "--chat-template" if override else "the checkpoint's chat template"
        self._template = _build(override or facts.chat_template, facts, where)
        by_tools = None if override else facts.chat_templates.get("tool_use")
        self._tool_template = _build(by_tools, facts, where) or self._template
        self._given = lru_cache(MAX_GIVEN)(partial(_build_given, special=facts.special_tokens))

    @property
    def templates(self) -> dict[str, str]:
        """Return the sources of the templates in use, by name."""
        named = {"default": self._template, "tool_use": self._tool_template}
        return {name: template.source for name, template in named.items() if template is not None}

    @property
    def source(self) -> str:
        """Return the source of the templates in use; empty if there is none."""
        found = {t.source for t in (self._template, self._tool_template) if t is not None}
        return "\n".join(sorted(found))

    def render(self, body: ChatRequest, switches: Sequence[Switch] = ()) -> RenderedPrompt:
        """Return the prompt; `switches` are the dialect's own thinking switches.

        Raises: RequestError
        """
        tools = tool_dicts(body.tools or ())
        template = self._pick(body.chat_template, bool(tools))
        kwargs, unused = template.pick_kwargs(body.chat_template_kwargs or {})
        _check_documents(body, template)
        switched, without_effect = _switched(template, switches_of(body, switches))
        _check_media_options(body, self._media_kinds)
        content_format = self._format(template)
        kinds = self._media_kinds
        places = self._places() if kinds else None
        messages, media = normalise(body.messages, content_format, template, kinds, places)
        check_counts(media, self._media_limits)
        variables = {
            **self._default_kwargs,
            **switched,
            **kwargs,
            "messages": messages,
            "tools": tools or None,
            "documents": list(body.documents or ()) or None,
            "add_generation_prompt": _adds_generation_prompt(body),
            "continue_final_message": body.continue_final_message,
        }
        text = template.render(variables)
        plain = self._words(template).from_clients(template.render, variables, text)
        if body.continue_final_message:
            text = _cut_after_final(text, _text(messages[-1]))
        names = [f"chat_template_kwargs.{name}" for name in unused]
        names += [f"messages.{n}" for n in sorted(unused_extras(body.messages, template.source))]
        tail, plain = _tail(text, messages), tuple(span for span in plain if span[1] <= len(text))
        if places is not None:
            (text, plain), (tail, _) = places.put(text, plain), places.put(tail, ())
        return RenderedPrompt(
            text=text, tail=tail, unused=(*names, *without_effect), plain=plain, media=media
        )

    def _places(self) -> MediaPlaces:
        """Return the media marks of one conversation."""
        return MediaPlaces(words=self._media_words, interleaves=self._interleaves_media)

    def _words_of(self, template: ChatTemplate) -> ControlWords:
        return ControlWords(
            self._special_texts, self._added_texts, template.source, template.looked_for
        )

    def _pick(self, given: str | None, has_tools: bool) -> ChatTemplate:
        if given is not None:
            return self._given(given)
        template = self._tool_template if has_tools else self._template
        if template is None:
            raise RequestError(
                "this model has no chat template.",
                fix="start the server with --chat-template FILE, or use /v1/completions.",
                code="no_chat_template",
            )
        return template

    def _format(self, template: ChatTemplate) -> str:
        return self._content_format or template.content_format


def check_template(value: str | None) -> None:
    """Raise ConfigError if --chat-template is given but cannot be compiled."""
    source = load_template(value)
    if not source:
        return
    ChatTemplate(source, where=f"--chat-template {value}" if source != value else None)


def _build(source: str | None, facts: TokenizerFacts, where: str) -> ChatTemplate | None:
    return ChatTemplate(source, facts.special_tokens, where=where) if source else None


def _build_given(source: str, *, special: dict[str, str]) -> ChatTemplate:
    """Return a request's own template, with the same limits. Raises: RequestError"""
    try:
        return ChatTemplate(source, special)
    except ConfigError as error:
        raise RequestError(error.what, where="chat_template", code="chat_template_error") from error


def _switched(
    template: ChatTemplate, switches: Sequence[Switch]
) -> tuple[dict[str, Any], list[str]]:
    """Return the template variables that the switches set (the first switch wins), and the fields
    of switches unknown to the template."""
    kwargs: dict[str, Any] = {}
    without_effect: list[str] = []
    for switch in switches:
        known = {name: v for name, v in switch.kwargs.items() if name in template.variables}
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


def _check_documents(body: ChatRequest, template: ChatTemplate) -> None:
    if body.documents and "documents" not in template.variables:
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
