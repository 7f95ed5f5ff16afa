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
        held, engines, bit = self._held[engine], self._engines, 1 << engine
        new_tokens, count = 0, min(len(keys), self._most_keys)
        # The first keys last: they are used by more prompts, and useless without them.
        for key, size in zip(keys[count - 1 :: -1], self._sizes[count - 1 :: -1], strict=False):
            if key in held:
                held.move_to_end(key)
            else:
                held[key] = size
                new_tokens += size
                engines[key] = engines.get(key, 0) | bit
        self._held_tokens[engine] += new_tokens
        self._shrink(engine, self._most_keys, self._cache_tokens)

    def forget(self, engine: int) -> None:
        """Drop what an engine has. Mutates: self"""
        self._shrink(engine, 0, 0)

    def _shrink(self, engine: int, most_keys: int, most_tokens: int) -> None:
        """Drop what an engine used least recently until it is within bounds. Mutates: self"""
        held, engines, bit = self._held[engine], self._engines, 1 << engine
        tokens = self._held_tokens[engine]
        while tokens > most_tokens or len(held) > most_keys:
            key, size = held.popitem(last=False)
            tokens -= size
            left = engines[key] ^ bit
            if left:
                engines[key] = left
            else:
                del engines[key]
        self._held_tokens[engine] = tokens
