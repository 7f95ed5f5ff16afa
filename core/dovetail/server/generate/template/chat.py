"""ChatRenderer: messages, tools and kwargs become the prompt text.

Holds the server's template; knows no tokens. Rendering is pure and may run in any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

from dovetail.config.rules.chat_template import load_template
from dovetail.errors import ConfigError, RequestError
from dovetail.interfaces.tokenizer import TokenizerFacts
from dovetail.server.generate.chat_body import Message, ToolBody
from dovetail.server.generate.template.messages import normalise, tool_dicts, unused_extras
from dovetail.server.generate.template.template import ChatTemplate

MAX_GIVEN = 16
"""Templates of requests that are kept compiled."""

FINAL_TURN_ROLES = frozenset({"assistant"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderQuery:
    """What is to be rendered. `tools` empty: the template sees none. `template`: the request's."""

    messages: Sequence[Message]
    tools: Sequence[ToolBody] = ()
    documents: Sequence[dict[str, Any]] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    adds_generation_prompt: bool = True
    continues_final_message: bool = False
    template: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """The prompt; `tail` is what follows the last turn that was not the assistant's.

    `ignored` are request fields that the template has no use for.
    """

    prompt: str
    tail: str
    ignored: tuple[str, ...] = ()


class ChatRenderer:
    """Renders with the checkpoint's template, or the one given by a flag."""

    def __init__(
        self, facts: TokenizerFacts, *, override: str | None = None, content_format: str = "auto"
    ) -> None:
        self._content_format = content_format
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
        """Return the source of the templates in use; empty when there is none."""
        found = {t.source for t in (self._template, self._tool_template) if t is not None}
        return "\n".join(sorted(found))

    def render(self, query: RenderQuery) -> Rendered:
        """Return the prompt. Raises: RequestError"""
        template = self._pick(query)
        kwargs, unused = template.pick_kwargs(query.kwargs)
        _check_documents(query, template)
        messages = normalise(query.messages, self._format(template), template.source)
        tools = tool_dicts(query.tools)
        _check_flags(query)
        variables = kwargs | {
            "messages": messages,
            "tools": tools or None,
            "documents": list(query.documents) or None,
            "add_generation_prompt": query.adds_generation_prompt,
            "continue_final_message": query.continues_final_message,
        }
        prompt = template.render(variables)
        if query.continues_final_message:
            prompt = _cut_after_final(prompt, _text(messages[-1]))
        ignored = [f"chat_template_kwargs.{name}" for name in unused]
        ignored += [f"messages.{n}" for n in sorted(unused_extras(query.messages, template.source))]
        return Rendered(prompt=prompt, tail=_tail(prompt, messages), ignored=tuple(ignored))

    def _pick(self, query: RenderQuery) -> ChatTemplate:
        if query.template is not None:
            return self._given(query.template)
        template = self._tool_template if query.tools else self._template
        if template is None:
            raise RequestError(
                "this model has no chat template.",
                fix="start the server with --chat-template FILE, or use /v1/completions.",
                code="no_chat_template",
            )
        return template

    def _format(self, template: ChatTemplate) -> str:
        return template.content_format if self._content_format == "auto" else self._content_format


def check_template(value: str | None) -> None:
    """Raise ConfigError unless --chat-template, where it is given, can be compiled."""
    source = load_template(value)
    if not source:
        return
    ChatTemplate(source, where=f"--chat-template {value}" if source != value else None)


def _build(source: str | None, facts: TokenizerFacts, where: str) -> ChatTemplate | None:
    return ChatTemplate(source, facts.special_tokens, where=where) if source else None


def _build_given(source: str, *, special: dict[str, str]) -> ChatTemplate:
    """Return a request's own template, under the same limits. Raises: RequestError"""
    try:
        return ChatTemplate(source, special)
    except ConfigError as error:
        raise RequestError(error.what, where="chat_template", code="chat_template_error") from error


def _check_flags(query: RenderQuery) -> None:
    if not query.continues_final_message:
        return
    if query.adds_generation_prompt:
        raise RequestError(
            "cannot be combined with add_generation_prompt.", where="continue_final_message"
        )
    if query.messages[-1].role not in FINAL_TURN_ROLES:
        raise RequestError(
            "the final message is not the assistant's.", where="continue_final_message"
        )


def _check_documents(query: RenderQuery, template: ChatTemplate) -> None:
    if query.documents and "documents" not in template.variables:
        raise RequestError(
            "this model's chat template has no place for documents.",
            where="documents",
            fix="send their text in a message.",
            code="unsupported_field",
        )


def _text(message: dict[str, Any]) -> str:
    content = message["content"]
    if isinstance(content, str):
        return content
    return str(content[-1]["text"]) if content else ""


def _cut_after_final(prompt: str, final: str) -> str:
    text = final.strip()
    at = prompt.rfind(text) if text else -1
    if at < 0:
        raise RequestError(
            "the chat template changes the final message, so it cannot be continued.",
            where="continue_final_message",
        )
    return prompt[: at + len(text)]


def _tail(prompt: str, messages: Sequence[dict[str, Any]]) -> str:
    """Return the prompt after the last turn that is not the assistant's: a marker that a user
    typed says nothing about the state in which the model begins. Turns are found in their order,
    so that a short one is not mistaken for a piece of the template."""
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
