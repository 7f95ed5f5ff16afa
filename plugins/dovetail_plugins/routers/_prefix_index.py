"""PrefixIndex: which engines probably have which prefixes cached. Knows no loads.

A prefix has a key (`_prefix_keys`) at each of some lengths, the same for all prompts. For each
engine the index stores the keys of what was last sent there, as many as the engine's cache holds
tokens. It forgets the least recently used first, and the longest of one prompt, as the engine does.
It never learns what an engine really has: a wrong guess, or two prefixes with one key, only costs a
prefill.

The keys form a radix tree: consecutive keys that the same engines have are one stretch, found by
its first key. A key covers everything before it, so bisection finds where two prompts diverge. A
prompt that no engine has costs one lookup and one stretch, however long it is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence

SPARE_PROMPTS = 64


class _Stretch:
    """Some of the keys of a prompt, from the `start`-th on.

    `last` has the engines that have all of it, each with the number of the last prompt there that
    it was part of; `engines` has them as bits. `before` is what comes before it (None: nothing).
    Who has a stretch has those before it, used as recently or later.
    """

    __slots__ = ("before", "engines", "keys", "last", "start")

    def __init__(
        self, before: _Stretch | None, start: int, keys: list[int], last: dict[int, int], bits: int
    ) -> None:
        self.before = before
        self.start = start
        self.keys = keys
        self.last = last
        self.engines = bits

    @property
    def stop(self) -> int:
        """Return the number of a prompt's keys up to its end."""
        return self.start + len(self.keys)


class _Held:
    """What one engine has: how many keys and tokens, and the prompts, the oldest first, by number
    and last stretch."""

    __slots__ = ("most_prompts", "num_keys", "prompts", "tokens")

    def __init__(self) -> None:
        self.prompts: deque[tuple[int, _Stretch]] = deque()
        self.tokens = self.num_keys = 0
        self.most_prompts = SPARE_PROMPTS


class PrefixIndex:
    """For each engine at most `most_keys` keys and `cache_tokens` tokens.

    `ends[i]` is how many tokens the i-th key of a prompt covers.
    """

    __slots__ = ("_bits", "_cache_tokens", "_ends", "_held", "_most_keys", "_number", "_stretches")

    def __init__(
        self, num_engines: int, *, ends: Sequence[int], cache_tokens: int, most_keys: int
    ) -> None:
        self._ends = (0, *ends)
        self._cache_tokens = cache_tokens
        self._most_keys = most_keys
        self._number = 0
        self._stretches: dict[int, _Stretch] = {}
        """By their first keys."""
        self._held = [_Held() for _ in range(num_engines)]
        self._bits = [1 << engine for engine in range(num_engines)]

    def __len__(self) -> int:
        return sum(usage.num_keys for usage in self._held)

    def found(self, keys: list[int]) -> list[tuple[int, int]]:
        """Return (tokens, engines as bits with exactly that many cached), longest first."""
        levels: list[tuple[int, int]] = []
        having, place = 0, 0
        while place < len(keys) and (stretch := self._stretches.get(keys[place])) is not None:
            if place and stretch.engines != having:
                levels.append((self._ends[place], having & ~stretch.engines))
            having = stretch.engines
            same = _same(stretch.keys, keys, place)
            place += same
            if same < len(stretch.keys):
                break
        if place:
            levels.append((self._ends[place], having))
        levels.reverse()
        return levels

    def note(self, engine: int, keys: list[int]) -> None:
        """Take note that a prompt with these keys goes to an engine. Mutates: self"""
        own = keys if len(keys) <= self._most_keys else keys[: self._most_keys]
        if not own:
            return
        self._number = number = self._number + 1
        place, before, usage = 0, None, self._held[engine]
        while place < len(own) and (stretch := self._stretches.get(own[place])) is not None:
            same = _same(stretch.keys, own, place)
            if same < len(stretch.keys):
                stretch = self._split(stretch, same)
            if engine not in stretch.last:
                stretch.engines |= self._bits[engine]
                self._count(usage, place, place + same)
            stretch.last[engine] = number
            place, before = place + same, stretch
        if place < len(own):
            rest = own[place:]
            before = _Stretch(before, place, rest, {engine: number}, self._bits[engine])
            self._stretches[rest[0]] = before
            self._count(usage, place, len(own))
        assert before is not None, "a prompt with keys has a stretch"
        self._keep(engine, number, before)
        self._shrink(engine, self._most_keys, self._cache_tokens)

    def _count(self, usage: _Held, start: int, stop: int) -> None:
        """Count keys that are new to an engine. Mutates: usage"""
        usage.num_keys += stop - start
        usage.tokens += self._ends[stop] - self._ends[start]

    def _keep(self, engine: int, number: int, last: _Stretch) -> None:
        """Keep a prompt's end; now and then drop those which later prompts have repeated. Mutates:
        self"""
        usage = self._held[engine]
        usage.prompts.append((number, last))
        if len(usage.prompts) > usage.most_prompts:
            usage.prompts = deque(one for one in usage.prompts if one[1].last.get(engine) == one[0])
            usage.most_prompts = 2 * len(usage.prompts) + SPARE_PROMPTS

    def _split(self, stretch: _Stretch, count: int) -> _Stretch:
        """Return a new stretch of the first `count` keys; the rest stays what prompts and longer
        prefixes refer to. Mutates: self"""
        head = _Stretch(
            stretch.before,
            stretch.start,
            stretch.keys[:count],
            dict(stretch.last),
            stretch.engines,
        )
        self._stretches[head.keys[0]] = head
        stretch.keys = stretch.keys[count:]
        stretch.start += count
        stretch.before = head
        self._stretches[stretch.keys[0]] = stretch
        return head

    def forget(self, engine: int) -> None:
        """Drop an engine's content. Mutates: self"""
        self._shrink(engine, 0, 0)

    def _shrink(self, engine: int, most_keys: int, most_tokens: int) -> None:
        """Drop what an engine used least recently until it is within bounds. Mutates: self"""
        usage, ends = self._held[engine], self._ends
        while usage.tokens > most_tokens or usage.num_keys > most_keys:
            number, stretch = usage.prompts[0]
            if stretch.last.get(engine) != number:  # the rest of it belongs to later prompts
                usage.prompts.popleft()
                continue
            start, stop = stretch.start, stretch.stop
            new_stop = bisect_right(ends, ends[stop] - (usage.tokens - most_tokens)) - 1
            new_stop = max(start, min(new_stop, stop - (usage.num_keys - most_keys)))
            self._count(usage, stop, new_stop)
            if new_stop > start:
                usage.prompts[0] = (number, self._cut(stretch, new_stop - start, engine))
                continue
            self._drop(stretch, engine)
            if stretch.before is None:
                usage.prompts.popleft()
            else:
                usage.prompts[0] = (number, stretch.before)

    def _cut(self, stretch: _Stretch, count: int, engine: int) -> _Stretch:
        """Return the first `count` keys of a stretch; an engine drops the rest. Mutates: self,
        stretch"""
        if len(stretch.last) == 1:
            del stretch.keys[count:]
            return stretch
        head = self._split(stretch, count)
        self._drop(stretch, engine)
        return head

    def _drop(self, stretch: _Stretch, engine: int) -> None:
        """Drop a stretch of an engine. Mutates: self, stretch"""
        del stretch.last[engine]
        stretch.engines ^= self._bits[engine]
        if not stretch.last:
            del self._stretches[stretch.keys[0]]


def _same(stretch: list[int], keys: list[int], place: int) -> int:
    """Return how many keys of a stretch match a prompt from a position on; the first one does."""
    count = len(stretch)
    part = keys[place : place + count]
    if part == stretch:
        return count
    low, high = 1, len(part)
    while low < high:  # the first `low` are the same, of the first `high` + 1 the last is not
        middle = (low + high + 1) // 2
        if part[middle - 1] == stretch[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low
