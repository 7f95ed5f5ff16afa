"""PrefixIndex: which engines probably have which prefixes cached. Knows no loads.

A prompt is cut into chunks of a few blocks. The key of a chunk covers everything before it too, as
a block's hash does, so the engines that have a prefix are found by looking its chunks up in order.
For each engine the index keeps the keys of what was sent there last, as many as the engine's cache
holds tokens, and forgets the least recently used first, as the engine does. It is never told what
an engine really has: a wrong guess, and two chunks of one 64-bit key, cost a prefill and no more.
"""

from __future__ import annotations

from collections.abc import Sequence


class PrefixIndex:
    """At most `capacity` chunks of `chunk_tokens` tokens for each of the engines."""

    __slots__ = ("_capacity", "_chunk_tokens", "_engines", "_held", "_max_chunks")

    def __init__(
        self, num_engines: int, *, chunk_tokens: int, capacity: int, max_chunks: int
    ) -> None:
        self._chunk_tokens = chunk_tokens
        self._capacity = capacity
        self._max_chunks = max_chunks
        self._engines: dict[int, int] = {}
        """Chunk -> the engines that have it, as bits."""
        self._held: list[dict[int, None]] = [{} for _ in range(num_engines)]
        """For each engine its chunks, the least recently used first."""

    def __len__(self) -> int:
        return sum(map(len, self._held))

    def keys(self, prompt_ids: Sequence[int], salt: str) -> list[int]:
        """Return the keys of a prompt's whole chunks, of a long prompt those of its beginning.

        The last token always has to be computed, so it belongs to none.
        """
        size, key = self._chunk_tokens, hash(salt)
        most = min((len(prompt_ids) - 1) // size, self._max_chunks)
        ids = tuple(prompt_ids[: most * size])
        keys = []
        for start in range(0, most * size, size):
            key = hash((key, ids[start : start + size]))
            keys.append(key)
        return keys

    def found(self, keys: Sequence[int]) -> list[tuple[int, int]]:
        """Return (how many of the first keys, engines as bits that have no more), longest first."""
        levels: list[tuple[int, int]] = []
        last, get = -1, self._engines.get
        for depth, key in enumerate(keys):
            having = get(key, 0) & last
            if having != last:
                if depth:
                    levels.append((depth, last & ~having))
                last = having
                if not having:
                    break
        else:
            if keys:
                levels.append((len(keys), last))
        levels.reverse()
        return levels

    def note(self, engine: int, keys: Sequence[int]) -> None:
        """Take note that a prompt with these keys goes to an engine. Mutates: self"""
        held, engines, bit = self._held[engine], self._engines, 1 << engine
        # The first chunks last: they are used by more prompts, and useless without them.
        for key in reversed(keys[: self._capacity]):
            if held.pop(key, bit) is bit:
                engines[key] = engines.get(key, 0) | bit
            held[key] = None
        while len(held) > self._capacity:
            self._drop(engine, next(iter(held)))

    def forget(self, engine: int) -> None:
        """Drop what an engine has. Mutates: self"""
        for key in tuple(self._held[engine]):
            self._drop(engine, key)

    def _drop(self, engine: int, key: int) -> None:
        del self._held[engine][key]
        left = self._engines[key] & ~(1 << engine)
        if left:
            self._engines[key] = left
        else:
            del self._engines[key]
