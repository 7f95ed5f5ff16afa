"""PrefixIndex: which engines probably have which prefixes cached. Knows no loads.

A prefix has a key (`_prefix_keys`) at each of some lengths, the same for all prompts, so the
engines that have a prefix are found by looking the keys up in order. For each engine the index
keeps the keys of what was sent there last, as many as the engine's cache holds tokens, and forgets
the least recently used first, of one prompt the longest, as the engine does. It is never told what
an engine really has: a wrong guess, and two prefixes of one key, cost a prefill and no more.

Who has a prefix has all shorter ones, used as recently or later. So what is new of a prompt is
found by bisection, and a prompt is kept as a whole: one list, not an entry for each key.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence

SPARE_PROMPTS = 64


class _Held:
    """What one engine has: the number of the last prompt that each of its keys was part of, and
    the prompts, the oldest first. Of a prompt whose last key has a later number, all have."""

    __slots__ = ("last", "most_prompts", "prompts", "tokens")

    def __init__(self) -> None:
        self.last: dict[int, int] = {}
        self.prompts: deque[tuple[int, list[int]]] = deque()
        self.tokens = 0
        self.most_prompts = SPARE_PROMPTS

    def add(self, number: int, keys: list[int]) -> None:
        """Add a prompt. Mutates: self"""
        new = dict.fromkeys(keys, number)
        if self.last:
            self.last.update(new)
        else:
            self.last = new
        self.prompts.append((number, keys))
        if len(self.prompts) > self.most_prompts:
            last = self.last
            self.prompts = deque(one for one in self.prompts if last.get(one[1][-1]) == one[0])
            self.most_prompts = 2 * len(self.prompts) + SPARE_PROMPTS


class PrefixIndex:
    """For each engine at most `most_keys` keys and `cache_tokens` tokens.

    `ends[i]` is how many tokens the i-th key of a prompt covers.
    """

    __slots__ = ("_cache_tokens", "_ends", "_engines", "_held", "_most_keys", "_number")

    def __init__(
        self, num_engines: int, *, ends: Sequence[int], cache_tokens: int, most_keys: int
    ) -> None:
        self._ends = ends
        self._cache_tokens = cache_tokens
        self._most_keys = most_keys
        self._number = 0
        self._engines: dict[int, int] = {}
        """Key -> the engines that have its prefix, as bits."""
        self._held = [_Held() for _ in range(num_engines)]

    def __len__(self) -> int:
        return sum(len(held.last) for held in self._held)

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
        own, held = list(keys[: self._most_keys]), self._held[engine]
        if not own:
            return
        known = _first_missing(own, held.last)
        if known < len(own):
            self._add(own[known:], 1 << engine)
            held.tokens += self._tokens(len(own)) - self._tokens(known)
        self._number += 1
        held.add(self._number, own)
        self._shrink(engine, self._most_keys, self._cache_tokens)

    def _add(self, keys: list[int], bit: int) -> None:
        """Note that an engine has the prefixes of these keys. Mutates: self"""
        engines = self._engines
        known = _first_missing(keys, engines)
        for key in keys[:known]:
            engines[key] |= bit
        engines.update(dict.fromkeys(keys[known:], bit))

    def forget(self, engine: int) -> None:
        """Drop what an engine has. Mutates: self"""
        self._shrink(engine, 0, 0)

    def _shrink(self, engine: int, most_keys: int, most_tokens: int) -> None:
        """Drop what an engine used least recently until it is within bounds. Mutates: self"""
        held, bit = self._held[engine], 1 << engine
        while held.tokens > most_tokens or len(held.last) > most_keys:
            number, keys = held.prompts[0]
            later = bisect_left(keys, True, key=lambda key: held.last.get(key) == number)
            tokens, count = self._tokens(len(keys)), len(held.last)
            kept = bisect_right(self._ends, tokens - (held.tokens - most_tokens))
            kept = max(later, min(kept, len(keys) - (count - most_keys)))
            held.tokens -= tokens - self._tokens(kept)
            self._drop(held.last, keys[kept:], bit)
            del keys[kept:]
            if kept == later:  # what is left of it belongs to later prompts
                held.prompts.popleft()

    def _drop(self, last: dict[int, int], keys: list[int], bit: int) -> None:
        """Drop keys of an engine. Mutates: self, last"""
        engines = self._engines
        for key in keys:
            del last[key]
            left = engines.pop(key) ^ bit
            if left:
                engines[key] = left

    def _tokens(self, count: int) -> int:
        """Return how many tokens so many keys of a prompt cover."""
        return self._ends[count - 1] if count else 0


def _first_missing(keys: list[int], among: dict[int, int]) -> int:
    """Return how many of the first keys are there; of those behind them none is."""
    if keys[-1] in among:
        return len(keys)
    if keys[0] not in among:
        return 0
    return bisect_left(keys, True, key=lambda key: key not in among)
