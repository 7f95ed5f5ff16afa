"""Opening: the system message and the examples that conversations begin with by default.

Ollama's Modelfiles have them as SYSTEM and MESSAGE.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from dovetail.errors import ConfigError
from dovetail.interfaces.renderer import Reads, RendererInput

WHERE = "--plugin-options.renderer.messages"
ROLES = ("system", "user", "assistant")
OWN_SYSTEM = ("system", "developer")


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

    def before(self, given: RendererInput, reads: Reads) -> RendererInput:
        """Return a conversation with what it begins with, in the form of its own messages."""
        turns = list(given.messages)
        is_parts = any(isinstance(turn["content"], list) for turn in turns)
        is_parts = is_parts or (reads.content == "openai" and not reads.takes_text)
        has_own = bool(turns) and turns[0]["role"] in OWN_SYSTEM
        system = [{"role": "system", "content": self.system}] if self.system else []
        first = turns[:1] if has_own else _in_form(system, is_parts=is_parts)
        examples = _in_form(self.messages, is_parts=is_parts)
        return replace(given, messages=[*first, *examples, *turns[has_own:]])


def _in_form(messages: Iterable[Mapping[str, str]], *, is_parts: bool) -> list[dict[str, Any]]:
    texts = [(message, message["content"]) for message in messages]
    return [
        {**message, "content": [{"type": "text", "text": text}] if is_parts else text}
        for message, text in texts
    ]
