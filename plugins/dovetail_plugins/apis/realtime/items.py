"""Items of a conversation: messages of text, pictures and sound. Source: as `protocol`"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec


class Part(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A part of an item: text, a picture's URL, or sound in the session's format."""

    type: Literal["input_text", "input_audio", "input_image", "output_text", "text"]
    text: str | None = None
    audio: bytes | None = None
    image_url: str | None = None
    transcript: str | None = None
    detail: str | None = None


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """A message. `rate_hz` is that of its sound, whose samples have 16 bits."""

    role: Literal["user", "system", "assistant"]
    content: tuple[Part, ...] = ()
    id: str = ""
    type: Literal["message"] = "message"
    object: str = "realtime.item"
    status: Literal["completed", "incomplete", "in_progress"] = "completed"
    rate_hz: int = 0

    @property
    def num_bytes(self) -> int:
        """Return about how much memory it takes."""
        return 256 + sum(
            len(part.audio or b"") + len(part.text or "") + len(part.image_url or "")
            for part in self.content
        )

    def shown(self) -> Mapping[str, Any]:
        """Return the item as clients see it, without its sound."""
        parts = [msgspec.structs.replace(part, audio=None) for part in self.content]
        return {
            "id": self.id,
            "object": self.object,
            "type": self.type,
            "status": self.status,
            "role": self.role,
            "content": msgspec.to_builtins(parts),
        }
