"""Blocks: an answer's events as a row of blocks, each opened, grown and closed in turn.

What the Responses and the Messages dialect have in common: reasoning, text and calls are parts of
one list, in the order in which they came.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from dovetail.server.events import (
    ContentDelta,
    Event,
    ReasoningDelta,
    ToolCallArgsDelta,
    ToolCallStart,
)

Kind = Literal["reasoning", "text", "call"]
What = Literal["opened", "grown", "closed"]


@dataclass(slots=True, kw_only=True)
class Block:
    """One part of an answer. `text` is all of it so far: of a call, its arguments."""

    index: int
    kind: Kind
    call_id: str = ""
    name: str = ""
    parts: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """Return the joined text."""
        return "".join(self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What happened to a block. `text` is what it has grown by."""

    what: What
    block: Block
    text: str = ""


class Blocks:
    """One answer. At most the last block is open, and `is_open` says whether."""

    def __init__(self, *, shows_reasoning: bool = True) -> None:
        self.blocks: list[Block] = []
        self._shows_reasoning = shows_reasoning
        self._calls: list[Block] = []
        self.is_open = False

    def feed(self, events: Iterable[Event]) -> list[Change]:
        """Return what the events change. Mutates: self"""
        changes: list[Change] = []
        for event in events:
            match event:
                case ContentDelta(text=text):
                    changes += self._grow("text", text)
                case ReasoningDelta(text=text) if self._shows_reasoning:
                    changes += self._grow("reasoning", text)
                case ToolCallStart(call_id=call_id, name=name):
                    changes += self._open("call", call_id, name)
                    self._calls.append(self.blocks[-1])
                case ToolCallArgsDelta(index=index, text=text):
                    changes.append(_grown(self._calls[index], text))
        return changes

    def finish(self) -> list[Change]:
        """Close what is open. Mutates: self"""
        return self._close()

    def next_turn(self) -> list[Change]:
        """Close what is open; calls are counted anew. Mutates: self"""
        self._calls = []
        return self._close()

    def _grow(self, kind: Kind, text: str) -> list[Change]:
        is_same = self.is_open and self.blocks[-1].kind == kind
        changes = [] if is_same else self._open(kind)
        return [*changes, _grown(self.blocks[-1], text)]

    def _open(self, kind: Kind, call_id: str = "", name: str = "") -> list[Change]:
        changes = self._close()
        self.is_open = True
        self.blocks.append(Block(index=len(self.blocks), kind=kind, call_id=call_id, name=name))
        return [*changes, Change(what="opened", block=self.blocks[-1])]

    def _close(self) -> list[Change]:
        if not self.is_open:
            return []
        self.is_open = False
        return [Change(what="closed", block=self.blocks[-1])]


def _grown(block: Block, text: str) -> Change:
    block.parts.append(text)
    return Change(what="grown", block=block, text=text)
