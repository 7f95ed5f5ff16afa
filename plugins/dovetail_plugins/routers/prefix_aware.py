"""Prefix aware: prefers the engine that has the prefix cached, unless it is too busy.

The cost is the number of prompt tokens to compute before the request's first token: the engine's
queue, plus the uncached part of the prompt. The smallest sum wins. So a request follows its prefix
until that engine is busier by more than the prefix saves; then another engine computes the prefix,
and has it from then on.

What engines have cached is guessed from what was sent to them. Engines that publish KV events
report it: for them only requests of the last seconds are guessed, as events may be on the way.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from dovetail.interfaces.kv_event_publisher import Event
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.router import EngineView, RoutedRequest, Router, RouterFacts
from dovetail_plugins.routers._candidates import MOST, Candidates
from dovetail_plugins.routers._known_blocks import KnownBlocks
from dovetail_plugins.routers._prefix_index import PrefixIndex
from dovetail_plugins.routers._prefix_keys import PrefixKeys

MEMORY = 1 / 64
"""The share by which a new request changes the mean part of prompts that is not cached."""

ON_ITS_WAY_S = 3.0
"""What was sent to an engine counts as cached for so long, up to twice, until the engine says."""


@dataclass(frozen=True, kw_only=True)
class _Options:
    running_tokens: float = field(
        default=128.0,
        metadata={"help": "prompt tokens that a running request counts as", "ge": 0.0},
    )
    chunk_tokens: int = field(
        default=64,
        metadata={
            "help": "length of the pieces that are compared, in tokens; after the first 16, "
            "an eighth of what lies before them or less",
            "ge": 1,
        },
    )
    max_prompt_tokens: int = field(
        default=65536,
        metadata={"help": "tokens of one prompt that are looked at", "ge": 1},
    )
    max_index_chunks: int = field(
        default=1 << 19,
        metadata={"help": "chunks that are kept for all engines together", "ge": 1},
    )


class PrefixAware(Router):
    """The engine that computes the request's first token after the fewest prompt tokens."""

    info = Info(
        summary="where the request's prefix is cached, unless that engine is busier by more than "
        "the prefix saves"
    )
    capabilities = frozenset({"loads", "prefixes"})
    Options = _Options

    def __init__(self, options: Any, facts: RouterFacts) -> None:
        self._running_tokens: float = options.running_tokens
        self._count = facts.num_engines
        self._candidates = Candidates(facts.process)
        block = facts.block_tokens
        chunk = -(-options.chunk_tokens // block) * block
        most_tokens = min(options.max_prompt_tokens, facts.cache_tokens)
        self._keys = PrefixKeys(chunk_tokens=chunk, most_tokens=most_tokens)
        self._facts = facts
        self._most_keys = max(1, options.max_index_chunks // facts.num_engines)
        self._index = self._new_index()
        self._known = KnownBlocks(facts.num_engines, block)
        self._recent = [self._new_index(), self._new_index()]
        self._turned_s = 0.0
        self._uncached_share = 1.0

    def _new_index(self) -> PrefixIndex:
        return PrefixIndex(
            self._count,
            ends=self._keys.ends,
            cache_tokens=self._facts.cache_tokens,
            most_keys=self._most_keys,
        )

    def choose(self, request: RoutedRequest, engines: Sequence[EngineView]) -> int:
        """Return the engine with the fewest tokens to compute. Mutates: the index"""
        index, num_tokens = self._index, len(request.prompt_ids)
        keys = self._keys.of(request.prompt_ids, request.cache_salt)
        cached = self._cached(index.found(keys))
        informed = self._known.informed
        if informed or len(self._known):
            self._correct(cached, informed, request, keys)
        share, weight = self._uncached_share, self._running_tokens
        best, min_cost, saved = -1, float("inf"), 0
        for view in self._compared(engines, cached):
            number = view.number
            hit = cached.get(number, 0)
            pending = view.pending_tokens * share
            if pending - hit >= min_cost:
                continue  # whatever it runs
            cost = pending + view.num_running * weight - hit
            if cost < min_cost:
                best, min_cost, saved = number, cost, hit
        index.note(best, keys)
        if informed >> best & 1:
            self._recent[0].note(best, keys)
        self._uncached_share += MEMORY * ((num_tokens - saved) / num_tokens - share)
        return best

    def forget(self, engine: int) -> None:
        """Note that this engine has nothing cached. Mutates: the index"""
        self._index.forget(engine)
        for recent in self._recent:
            recent.forget(engine)

    def learn(self, engine: int, events: Sequence[Event] | None) -> None:
        """Process an engine's reports of cached and dropped blocks. Mutates: self"""
        if events is None:
            self._known.forget(engine)
        else:
            self._known.take(engine, events)

    def _correct(
        self, cached: dict[int, int], informed: int, request: RoutedRequest, keys: list[int]
    ) -> None:
        """Replace guesses with what engines report, or merge both for engines that have not
        reported everything. Reports do not distinguish salts and adapters, so those stay guesses.
        Mutates: cached, self"""
        self._turn()
        if request.cache_salt:
            return
        for number in [number for number in cached if informed >> number & 1]:
            del cached[number]
        said = self._known.found(request.prompt_ids)
        for levels in (said, *(recent.found(keys) for recent in self._recent)):
            for number, tokens in self._cached(levels).items():
                cached[number] = max(tokens, cached.get(number, 0))

    def _turn(self) -> None:
        """Drop old guesses. Mutates: self"""
        now_s = time.monotonic()
        if now_s - self._turned_s > ON_ITS_WAY_S:
            is_long_ago = now_s - self._turned_s > 2 * ON_ITS_WAY_S
            self._recent = [
                self._new_index(),
                self._new_index() if is_long_ago else self._recent[0],
            ]
            self._turned_s = now_s

    def _cached(self, levels: Sequence[tuple[int, int]]) -> dict[int, int]:
        """Return how many tokens engines have cached: all of few engines, else some of those that
        have the most."""
        cached: dict[int, int] = {}
        for tokens, numbers in levels:
            for number in self._candidates.some_of(numbers):
                cached[number] = tokens
            if len(cached) >= MOST:
                break
        return cached

    def _compared(
        self, engines: Sequence[EngineView], cached: Mapping[int, int]
    ) -> Sequence[EngineView]:
        """Return the engines to compare: candidates, and those that have some of the prefix."""
        views = self._candidates.of(engines)
        if len(views) == len(engines) or not cached:
            return views
        if len(engines) == self._count:
            return (*views, *(engines[number] for number in cached))
        return (*views, *_of_numbers(engines, sorted(cached)))


def _of_numbers(engines: Sequence[EngineView], numbers: Sequence[int]) -> Iterator[EngineView]:
    """Yield the engines of these numbers that are among `engines`, which are in their order."""
    for number in numbers:
        place = bisect_left(engines, number, key=attrgetter("number"))
        if place < len(engines) and engines[place].number == number:
            yield engines[place]
