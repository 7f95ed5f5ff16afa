"""GoTemplate: one parsed Go template, what it reads, and a bounded way to run it.

It has the place of a Jinja template in the renderer, and is chosen by what is written in it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dovetail.errors import ConfigError, RequestError
from dovetail.interfaces.renderer import Reads
from dovetail_plugins.renderers import _budget as budget
from dovetail_plugins.renderers.go_template.conversation import GoChat
from dovetail_plugins.renderers.go_template.lexing import GoTemplateError

_ACTION = re.compile(
    r"\{\{(?:-\s)?\s*(?:\w+\s+)*(?:/\*|[.$]|\"|`|"
    r"(?:if|range|with|end|else|define|template|block|break|continue|currentDate)\b)"
)
"""An action that Go has and Jinja does not."""
_JINJA = ("{%", "{#")
SWITCHES = ("enable_thinking", "thinking")
LEVEL = "reasoning_effort"
SUFFIX = "suffix"
_FIELDS = {"Think": (*SWITCHES, LEVEL), "IsThinkSet": SWITCHES, "ThinkLevel": (LEVEL,)}
"""Fields for thinking, and the variables that set them."""


def is_go(source: str) -> bool:
    """Return whether a template is written in Go's language, not in Jinja."""
    return not any(mark in source for mark in _JINJA) and bool(_ACTION.search(source))


class GoTemplate:
    """A parsed template; immutable, shared by all requests and threads."""

    def __init__(self, source: str, *, begins: str = "", where: str | None = None) -> None:
        """`begins` is a token's text that prompts begin with: templates of Ollama's do not write
        it. Raises: ConfigError"""
        self.source = source
        self._begins = begins
        try:
            self._chat = GoChat(source)
        except GoTemplateError as error:
            raise ConfigError(
                f"the chat template, written in Go's language, cannot be compiled: {error}.",
                where=where or "--chat-template",
                fix="mend it, or give another with --chat-template FILE.",
            ) from error
        names = self._chat.names
        read = {name for field, found in _FIELDS.items() if field in names for name in found}
        self.reads = Reads(
            roles=self._chat.constants,
            variables=frozenset(read | ({SUFFIX} if "Suffix" in names else set())),
            writes=_Written(source),
            looks_for=self._chat.constants,
        )

    def render(self, variables: Mapping[str, Any]) -> str:
        """Return the prompt. Raises: RequestError if the template fails, is too costly or has no
        place for what the conversation has"""
        messages, tools = variables["messages"], variables["tools"] or ()
        if tools and "Tools" not in self._chat.names:
            raise _no_place("tools", ".Tools")
        if not (variables["add_generation_prompt"] or variables["continue_final_message"]):
            raise RequestError(
                "a template in Go's language always opens the model's turn.",
                where="add_generation_prompt",
                fix="leave it out.",
                code="unsupported_field",
            )
        with budget.limited(), budget.as_request_error():
            text = self._chat.render(
                messages,
                tools,
                thinking=_thinking(variables),
                suffix=str(variables.get(SUFFIX) or ""),
            )
        return text if text.startswith(self._begins) else self._begins + text


def beginning(special: Mapping[str, str], own_template: str | None) -> str:
    """Return the text of the token that a model's prompts begin with: the checkpoint's template
    shows whether there is one. Without a template there is one, unless it is the end token too."""
    token = special.get("bos_token", "")
    if not own_template or is_go(own_template):
        return "" if token == special.get("eos_token") else token
    is_written = "bos_token" in own_template or bool(token and token in own_template)
    return token if is_written else ""


class _Written:
    """The texts that a template's source contains."""

    def __init__(self, source: str) -> None:
        self._source = source

    def __contains__(self, text: object) -> bool:
        return str(text) in self._source


def _thinking(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields for thinking, in Ollama's terms."""
    switch = next((bool(variables[name]) for name in SWITCHES if name in variables), None)
    level = str(variables.get(LEVEL) or "")
    thinks = switch if switch is not None else level not in ("", "none")
    is_set = switch is not None or bool(level)
    return {"Think": thinks, "ThinkLevel": level if thinks else "", "IsThinkSet": is_set}


def _no_place(where: str, field: str) -> RequestError:
    return RequestError(
        f"this model's chat template has no place for them: it has no {field}.",
        where=where,
        fix="leave them out, or start the server with another --chat-template.",
        code="unsupported_field",
    )
