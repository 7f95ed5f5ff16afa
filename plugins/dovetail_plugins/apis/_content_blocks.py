"""ContentBlocks: an answer's events as a sequence of blocks, each opened, grown and closed in turn.

The Responses and Messages dialects share it: reasoning, text and calls are parts of one list, in
the order in which they arrived.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from dovetail.json_values import InvalidJson, json_value
from dovetail.server.endpoint import (
    ContentDelta,
    Event,
    ReasoningDelta,
    ToolCallArgsDelta,
    ToolCallStart,
)

Kind = Literal["reasoning", "text", "call"]
What = Literal["opened", "grown", "closed"]


@dataclass(slots=True, kw_only=True)
class ContentBlock:
    """One part of an answer. `text` is its text so far: the arguments of a call, or its input if
    the tool takes text (`is_custom`)."""

    index: int
    kind: Kind
    call_id: str = ""
    name: str = ""
    is_custom: bool = False
    parts: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """Return the joined text."""
        return "".join(self.parts)

    @property
    def arguments(self) -> dict[str, Any] | None:
        """Return the arguments of a call; None if the answer ended within them."""
        try:
            value = json_value(self.text)
        except InvalidJson:
            return None
        return value if isinstance(value, dict) else None

    @property
    def is_unfinished(self) -> bool:
        """Return whether it is a call with incomplete arguments, which cannot be executed."""
        return self.kind == "call" and not self.is_custom and self.arguments is None


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockChange:
    """A change of a block; `text` was appended to it."""

    what: What
    block: ContentBlock
    text: str = ""


class ContentBlocks:
    """One answer. Only the last block may be open; `is_open` says whether it is."""

    def __init__(self, *, shows_reasoning: bool = True) -> None:
        self.blocks: list[ContentBlock] = []
        self._shows_reasoning = shows_reasoning
        self._calls: list[ContentBlock] = []
        self.is_open = False

    def feed(self, events: Iterable[Event]) -> list[BlockChange]:
        """Return the block changes that the events make. Mutates: self"""
        changes: list[BlockChange] = []
        for event in events:
            match event:
                case ContentDelta(text=text):
                    changes += self._grow("text", text)
                case ReasoningDelta(text=text) if self._shows_reasoning:
                    changes += self._grow("reasoning", text)
                case ToolCallStart():
                    changes += self._open("call", event)
                    self._calls.append(self.blocks[-1])
                case ToolCallArgsDelta(index=index, text=text):
                    changes.append(_grown(self._calls[index], text))
        return changes

    def finish(self) -> list[BlockChange]:
        """Close the open block, if any. Mutates: self"""
        return self._close()

    def next_turn(self) -> list[BlockChange]:
        """Close the open block, if any, and restart the numbering of calls. Mutates: self"""
        self._calls = []
        return self._close()

    def _grow(self, kind: Kind, text: str) -> list[BlockChange]:
        is_same = self.is_open and self.blocks[-1].kind == kind
        changes = [] if is_same else self._open(kind)
        return [*changes, _grown(self.blocks[-1], text)]

    def _open(self, kind: Kind, call: ToolCallStart | None = None) -> list[BlockChange]:
        changes = self._close()
        self.is_open = True
        block = ContentBlock(index=len(self.blocks), kind=kind)
        if call is not None:
            block.call_id, block.name, block.is_custom = call.call_id, call.name, call.is_custom
        self.blocks.append(block)
        return [*changes, BlockChange(what="opened", block=self.blocks[-1])]

    def _close(self) -> list[BlockChange]:
        if not self.is_open:
            return []
        self.is_open = False
        return [BlockChange(what="closed", block=self.blocks[-1])]


def _grown(block: ContentBlock, text: str) -> BlockChange:
    block.parts.append(text)
    return BlockChange(what="grown", block=block, text=text)
