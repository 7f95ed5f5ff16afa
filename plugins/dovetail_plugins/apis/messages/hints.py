"""cache_control as a hint: the prompt's prefix stays cached for the longest time that a mark names.

The engine pins a whole prompt, so a mark counts if it is in the last turn; a pin is dropped when
running requests need the room. Other marks have no effect beyond the prefix cache itself, and are
reported.
"""

from __future__ import annotations

from collections.abc import Iterator

from dovetail_plugins.apis.messages.protocol import Block, CacheControl, CountRequest

SECONDS = {"5m": 300.0, "1h": 3600.0}
"""How long a mark keeps a prefix. Source: the Anthropic API reference, prompt caching."""


def marks(body: CountRequest) -> Iterator[CacheControl]:
    """Yield every mark of a request."""
    yield from _of_last_turn(body)
    for tool in body.tools or ():
        yield from _given(tool.cache_control)
    for block in body.system if isinstance(body.system, list) else ():
        yield from _given(block.cache_control)
    for turn in body.messages:
        yield from _of_blocks(turn.content)


def pin_time(body: CountRequest) -> str | None:
    """Return the longest time for which the whole prompt is marked; None if it is not."""
    found = {mark.ttl for mark in _of_last_turn(body) if mark.type == "ephemeral"}
    return max(found & SECONDS.keys(), key=SECONDS.__getitem__, default=None)


def _of_last_turn(body: CountRequest) -> Iterator[CacheControl]:
    """Yield the request's own mark, and those of the last turn that is not the system's."""
    yield from _given(body.cache_control)
    turns = [turn for turn in body.messages if turn.role != "system"]
    if turns:
        yield from _of_blocks(turns[-1].content)


def _of_blocks(content: str | list[Block]) -> Iterator[CacheControl]:
    for block in content if not isinstance(content, str) else ():
        yield from _given(block.cache_control)
        if isinstance(block.content, list):
            yield from _of_blocks(block.content)


def _given(mark: CacheControl | None) -> Iterator[CacheControl]:
    if mark is not None:
        yield mark
