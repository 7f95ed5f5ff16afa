"""cache_control as a hint: the prompt up to the last mark stays cached for the time it names.

The engine pins that prefix, as cache_pin_s does: other prefixes do not displace it, but a pin is
dropped when running requests need the room. Source: the Anthropic API reference, prompt caching.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dovetail_plugins.apis.messages.protocol import Block, CacheControl, CountRequest, Turn

SECONDS = {"5m": 300.0, "1h": 3600.0}
"""How long a mark keeps a prefix."""
IGNORED_NAME = "cache_control"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """The prefix to keep cached. `body` is the conversation up to the last mark (None: all of it),
    `ttl` a key of SECONDS."""

    ttl: str
    body: CountRequest | None = None

    @property
    def seconds(self) -> float:
        """Return the time."""
        return SECONDS[self.ttl]


def has_mark(body: CountRequest) -> bool:
    """Return whether a request has a mark, valid or not."""
    tools = [tool.cache_control for tool in body.tools or ()]
    blocks = body.system if isinstance(body.system, list) else []
    every = [*blocks, *(block for turn in body.messages for block in _blocks(turn))]
    return any([body.cache_control, *tools, *(mark for one in every for mark in _marks(one))])


def pin_of(body: CountRequest) -> Pin | None:
    """Return the pin that the last valid mark requests, or None."""
    own = body.cache_control
    if own is not None and _is_known(own):
        return Pin(ttl=own.ttl)
    turns = body.messages
    for number in reversed(range(len(turns))):
        blocks = _blocks(turns[number])
        last = _last_mark(blocks)
        if last is not None:
            ends_turn = last[0] == len(blocks) - 1
            is_all = ends_turn and all(turn.role == "system" for turn in turns[number + 1 :])
            return Pin(ttl=last[1], body=None if is_all else _cut(body, number, last[0]))
    system = body.system if isinstance(body.system, list) else []
    marks = [tool.cache_control for tool in body.tools or () if tool.cache_control]
    known = [mark.ttl for mark in (*marks, *_all_marks(system)) if _is_known(mark)]
    return Pin(ttl=known[-1], body=_without_turns(body)) if known else None


def _cut(body: CountRequest, number: int, place: int) -> CountRequest:
    """Return a body that ends with a block of a turn."""
    turn = body.messages[number]
    blocks = _blocks(turn)[: place + 1]
    ending = turn.model_copy(update={"content": blocks})
    return body.model_copy(update={"messages": [*body.messages[:number], ending]})


def _without_turns(body: CountRequest) -> CountRequest:
    """Return a body with the same tools and system prompt, and an empty turn."""
    return body.model_copy(update={"messages": [Turn(role="user", content="")]})


def _last_mark(blocks: list[Block]) -> tuple[int, str] | None:
    """Return the place of the last block with a mark, and its time."""
    for place in reversed(range(len(blocks))):
        known = [mark.ttl for mark in _marks(blocks[place]) if _is_known(mark)]
        if known:
            return place, max(known, key=SECONDS.__getitem__)
    return None


def _all_marks(blocks: list[Block]) -> Iterator[CacheControl]:
    for block in blocks:
        yield from _marks(block)


def _marks(block: Block) -> Iterator[CacheControl]:
    """Yield the marks of a block and of the blocks inside it."""
    if block.cache_control is not None:
        yield block.cache_control
    if isinstance(block.content, list):
        yield from _all_marks(block.content)


def _blocks(turn: Turn) -> list[Block]:
    return turn.content if isinstance(turn.content, list) else []


def _is_known(mark: CacheControl) -> bool:
    return mark.type == "ephemeral" and mark.ttl in SECONDS
