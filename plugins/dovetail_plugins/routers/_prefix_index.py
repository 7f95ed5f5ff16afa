"""PrefixIndex: which engines probably have which prefixes cached. Knows no loads.

A prefix has a key (`_prefix_keys`) at each of some lengths, the same for all prompts, so the
engines that have a prefix are found by looking the keys up in order. For each engine the index
keeps the keys of what was sent there last, as many as the engine's cache holds tokens, and forgets
the least recently used first, as the engine does. It is never told what an engine really has: a
wrong guess, and two prefixes of one key, cost a prefill and no more.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class PrefixIndex:
    """For each engine at most `most_keys` keys and `cache_tokens` tokens.

    `ends[i]` is how many tokens the i-th key of a prompt covers.
    """

    __slots__ = (
        "_cache_tokens",
        "_ends",
        "_engines",
        "_held",
        "_held_tokens",
        "_most_keys",
        "_sizes",
    )

    def __init__(
        self, num_engines: int, *, ends: Sequence[int], cache_tokens: int, most_keys: int
    ) -> None:
        self._ends = ends
        self._sizes = [end - start for start, end in zip((0, *ends), ends, strict=False)]
        self._cache_tokens = cache_tokens
        self._most_keys = most_keys
        self._engines: dict[int, int] = {}
        """Key -> the engines that have its prefix, as bits."""
        self._held: list[OrderedDict[int, int]] = [OrderedDict() for _ in range(num_engines)]
        """For each engine its keys and the tokens of their last chunks, the least recently used
        first."""
        self._held_tokens = [0] * num_engines

    def __len__(self) -> int:
        return sum(map(len, self._held))

    def found(self, keys: Sequence[int]) -> list[tuple[int, int]]:
        """Return (tokens, engines as bits that have so many and no more), longest first."""
        levels: list[tuple[int, int]] = []
        last, tokens, get = -1, 0, self._engines.get
        for key, end in zip(keys, self._ends, strict=False):
            having = get(key, 0) & last
            if having != last:
                if tokens:
                    levels.append((tokens, last & ~having))
                last = having
                if not having:
                    break
            tokens = end
        else:
            if keys:
                levels.append((tokens, last))
        levels.reverse()
        return levels

    def note(self, engine: int, keys: Sequence[int]) -> None:
        """Take note that a prompt with these keys goes to an engine. Mutates: self"""
        held, engines, sizes, bit = self._held[engine], self._engines, self._sizes, 1 << engine
        new_tokens = 0
        # The first keys last: they are used by more prompts, and useless without them.
        for number in range(min(len(keys), self._most_keys) - 1, -1, -1):
            key = keys[number]
            if key in held:
                held.move_to_end(key)
            else:
                held[key] = size = sizes[number]
                new_tokens += size
                engines[key] = engines.get(key, 0) | bit
        self._held_tokens[engine] += new_tokens
        while self._held_tokens[engine] > self._cache_tokens or len(held) > self._most_keys:
            self._drop_oldest(engine)

    def forget(self, engine: int) -> None:
        """Drop what an engine has. Mutates: self"""
        while self._held[engine]:
            self._drop_oldest(engine)

    def _drop_oldest(self, engine: int) -> None:
        key, size = self._held[engine].popitem(last=False)
        self._held_tokens[engine] -= size
        left = self._engines[key] & ~(1 << engine)
        if left:
            self._engines[key] = left
        else:
            del self._engines[key]
