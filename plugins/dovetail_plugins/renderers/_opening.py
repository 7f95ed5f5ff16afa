"""Opening: the system message and the examples that conversations begin with by default.

Ollama's Modelfiles have them as SYSTEM and MESSAGE.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from dovetail.errors import ConfigError
from dovetail.interfaces.renderer import RendererInput

WHERE = "--plugin-options.renderer.messages"
ROLES = ("system", "user", "assistant")


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """`system` is for conversations without a system message; `messages` come before those of every
    conversation, after its system message."""

    system: str = ""
    messages: tuple[Mapping[str, str], ...] = ()

    def __post_init__(self) -> None:
        for message in self.messages:
            if set(message) != {"role", "content"} or message["role"] not in ROLES:
                raise ConfigError(
                    f"{dict(message)!r} is not a message.",
                    where=WHERE,
                    fix='write {"role": "user", "content": "..."}, the role one of '
                    f"{', '.join(ROLES)}.",
                )

    def before(self, given: RendererInput, content_format: str) -> RendererInput:
        """Return a conversation with what it begins with."""
        turns = list(given.messages)
        has_own = bool(turns) and turns[0]["role"] == "system"
        system = [{"role": "system", "content": self.system}] if self.system else []
        first = turns[:1] if has_own else list(_in_form(system, content_format))
        examples = _in_form(self.messages, content_format)
        return replace(given, messages=[*first, *examples, *turns[has_own:]])


def _in_form(
    messages: Iterable[Mapping[str, str]], content_format: str
) -> Iterable[dict[str, Any]]:
    for message in messages:
        text = message["content"]
        is_parts = content_format == "openai"
        yield {**message, "content": [{"type": "text", "text": text}] if is_parts else text}
