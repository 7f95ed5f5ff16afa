"""The prefix-aware router decides as the plainest code for it does: a least recently used list of
keys for each engine, and every candidate's costs in full."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import pytest

from dovetail.interfaces.router import EngineView, RoutedRequest, RouterFacts
from dovetail_plugins.routers._prefix_index import PrefixIndex
from dovetail_plugins.routers._prefix_keys import PrefixKeys
from dovetail_plugins.routers.prefix_aware import MEMORY, MOST, PrefixAware

CHUNK = 4


class PlainIndex:
    """What PrefixIndex does, a key at a time."""

    def __init__(
        self, num_engines: int, ends: Sequence[int], cache_tokens: int, most_keys: int
    ) -> None:
        self._ends, self._cache_tokens, self._most_keys = ends, cache_tokens, most_keys
        self._held: list[OrderedDict[int, int]] = [OrderedDict() for _ in range(num_engines)]

    def __len__(self) -> int:
        return sum(map(len, self._held))

    def found(self, keys: Sequence[int]) -> list[tuple[int, int]]:
        tokens = [self._cached(held, keys) for held in self._held]
        levels = sorted({count for count in tokens if count}, reverse=True)
        return [(n, sum(1 << e for e, own in enumerate(tokens) if own == n)) for n in levels]

    def _cached(self, held: OrderedDict[int, int], keys: Sequence[int]) -> int:
        found = [end for key, end in zip(keys, self._ends, strict=False) if key in held]
        return found[-1] if found else 0

    def note(self, engine: int, keys: Sequence[int]) -> None:
        held, before = self._held[engine], (0, *self._ends)
        for place in reversed(range(min(len(keys), self._most_keys))):  # the first are used last
            held[keys[place]] = self._ends[place] - before[place]
            held.move_to_end(keys[place])
        self._shrink(held, self._cache_tokens, self._most_keys)

    def forget(self, engine: int) -> None:
        self._held[engine].clear()

    def _shrink(self, held: OrderedDict[int, int], most_tokens: int, most_keys: int) -> None:
        while sum(held.values()) > most_tokens or len(held) > most_keys:
            held.popitem(last=False)


@dataclass
class View:
    number: int
    pending_tokens: int = 0
    num_running: int = 0
    num_waiting: int = 0
    kv_usage: float = 0.0


class PlainRouter(PrefixAware):
    """Compares every candidate in full."""

    def choose(self, request: RoutedRequest, engines: Sequence[EngineView]) -> int:
        keys = self._keys.of(request.prompt_ids, request.cache_salt)
        cached: dict[int, int] = {}
        for tokens, numbers in self._index.found(keys):
            cached.update(dict.fromkeys(self._candidates.some_of(numbers), tokens))
            if len(cached) >= MOST:
                break
        views = list(self._candidates.of(engines))
        if len(engines) > MOST:
            by_number = {view.number: view for view in engines}
            views += [by_number[number] for number in self._order(cached, engines)]
        costs = [
            view.pending_tokens * self._uncached_share
            + view.num_running * self._running_tokens
            - cached.get(view.number, 0)
            for view in views
        ]
        best = views[costs.index(min(costs))].number
        self._index.note(best, keys)
        count = len(request.prompt_ids)
        own_share = (count - cached.get(best, 0)) / count
        self._uncached_share += MEMORY * (own_share - self._uncached_share)
        return best

    def _order(self, cached: dict[int, int], engines: Sequence[EngineView]) -> list[int]:
        if len(engines) == self._count:
            return list(cached)
        return sorted(set(cached) & {view.number for view in engines})


class Prompts:
    """Prompts that branch from earlier ones at any place, as conversations do."""

    def __init__(self, random: Random, most: int) -> None:
        self._random, self._most = random, most
        self._earlier: list[tuple[int, ...]] = [()]

    def next(self) -> tuple[int, ...]:
        random = self._random
        before = random.choice(self._earlier[-60:])
        kept = before[: random.randrange(len(before) + 1)] if random.random() < 0.7 else before
        new = tuple(random.randrange(1000) for _ in range(random.randrange(1, 40 * CHUNK)))
        ids = (kept + new)[: self._most]
        self._earlier.append(ids)
        return ids


@pytest.mark.parametrize(
    ("num_engines", "cache_tokens", "most_keys"),
    [(1, 300, 1000), (3, 900, 1000), (3, 5000, 40), (30, 400, 12), (2, 7, 1000)],
)
def test_the_index_has_what_a_least_recently_used_list_has(
    num_engines: int, cache_tokens: int, most_keys: int
) -> None:
    random = Random(num_engines)
    made = PrefixKeys(chunk_tokens=CHUNK, most_tokens=cache_tokens)
    index = PrefixIndex(num_engines, ends=made.ends, cache_tokens=cache_tokens, most_keys=most_keys)
    plain = PlainIndex(num_engines, made.ends, cache_tokens, most_keys)
    prompts = Prompts(random, 3000)
    for _ in range(1500):
        keys = made.of(prompts.next(), "")
        assert index.found(keys) == plain.found(keys)
        engine = random.randrange(num_engines)
        index.note(engine, keys)
        plain.note(engine, keys)
        if random.random() < 0.01:
            index.forget(engine)
            plain.forget(engine)
        assert len(index) == len(plain)
    for engine in range(num_engines):
        index.forget(engine)
    assert not index._stretches, "nothing is left of what nobody has"


@pytest.mark.parametrize("num_engines", [2, 16, 60])
def test_decisions_are_those_of_the_plainest_code(num_engines: int) -> None:
    random = Random(num_engines)
    facts = RouterFacts(num_engines=num_engines, block_tokens=4, cache_tokens=1500, max_rows=8)
    options = PrefixAware.Options(chunk_tokens=CHUNK)
    router, plain = PrefixAware(options, facts), PlainRouter(options, facts)
    plain._keys = router._keys  # which are secret, and each router's own
    plain._index = PlainIndex(num_engines, router._keys.ends, 1500, options.max_index_chunks)  # type: ignore[assignment]
    views, prompts = [View(number) for number in range(num_engines)], Prompts(random, 3000)
    homes = set()
    for _ in range(1500):
        view = random.choice(views)
        view.pending_tokens, view.num_running = random.randrange(300), random.randrange(4)
        there = (
            views
            if random.random() < 0.8
            else sorted(
                random.sample(views, random.randrange(1, num_engines + 1)),
                key=lambda one: one.number,
            )
        )
        request = RoutedRequest(prompts.next())
        home = router.choose(request, there)
        assert home == plain.choose(request, there)
        homes.add(home)
    assert len(homes) > num_engines // 2, "the load is spread"
