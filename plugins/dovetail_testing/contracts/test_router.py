"""Router: one of the engines that take requests, in bounded memory; its claims about loads and
prefixes hold."""

from __future__ import annotations

import time
import tracemalloc
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

from dovetail.interfaces.router import RoutedRequest, Router, RouterFacts
from dovetail_testing.contract import default_options, requires

NUM_ENGINES = 5
FACTS = RouterFacts(num_engines=NUM_ENGINES, block_tokens=16, cache_tokens=1 << 12, max_rows=64)
MANY = RouterFacts(num_engines=300, block_tokens=16, cache_tokens=1 << 12, max_rows=64)
NUM_REQUESTS = 200
PROMPT_TOKENS = 512
SECONDS_OF_1000 = 2.0
"""Far more than any good router takes: the machine may be busy."""


@dataclass(slots=True, kw_only=True)
class View:
    """An engine as a router sees it."""

    number: int
    num_running: int = 0
    num_waiting: int = 0
    pending_tokens: int = 0
    kv_usage: float = 0.0


def new_router(plugin: Any, facts: RouterFacts = FACTS) -> Router:
    """Return a new router with its default options."""
    router: Router = plugin(default_options(plugin), facts)
    return router


@pytest.fixture
def router(plugin: Any) -> Router:
    """Return the router with its default options."""
    return new_router(plugin)


def idle(count: int = NUM_ENGINES) -> list[View]:
    """Return engines that have nothing to do."""
    return [View(number=number) for number in range(count)]


def loaded(random: Random, count: int = NUM_ENGINES) -> list[View]:
    """Return some of the engines, each with something to do or nothing."""
    numbers = sorted(random.sample(range(count), random.randint(1, count)))
    return [
        View(
            number=number,
            num_running=random.choice((0, 3, 64)),
            num_waiting=random.choice((0, 0, 9)),
            pending_tokens=random.choice((0, 700, 90_000)),
            kv_usage=random.random(),
        )
        for number in numbers
    ]


def prompt(random: Random, num_tokens: int = PROMPT_TOKENS) -> tuple[int, ...]:
    """Return random tokens."""
    return tuple(random.choices(range(50_000), k=num_tokens))


def requests(seed: int, count: int = NUM_REQUESTS) -> list[RoutedRequest]:
    """Return requests of all lengths, some with a common beginning, some with a salt."""
    random = Random(seed)
    common = prompt(random)
    lengths = (1, 15, 16, 17, 64, 65, 300)
    return [
        RoutedRequest(
            common[: random.choice((0, 0, 128))] + prompt(random, random.choice(lengths)),
            cache_salt=random.choice(("", "", "salt")),
            num_completions=random.choice((1, 1, 4)),
        )
        for _ in range(count)
    ]


def choices(router: Router, seed: int, count: int = NUM_ENGINES) -> list[int]:
    """Return the engines chosen for the requests of a seed while loads and engines change."""
    random = Random(seed)
    return [router.choose(request, loaded(random, count)) for request in requests(seed)]


def where(router: Router, ids: Sequence[int], salt: str = "") -> int:
    """Return the engine chosen for a prompt among idle engines."""
    return router.choose(RoutedRequest(ids, salt), idle())


class TestRouter:
    """Clauses of routers."""

    kind = "router"

    @pytest.mark.parametrize("facts", [FACTS, MANY], ids=["few", "many"])
    def test_names_an_engine_that_takes_requests(self, plugin: Any, facts: RouterFacts) -> None:
        """Every choice is a plain int and the number of one of the offered engines."""
        router, random = new_router(plugin, facts), Random(1)
        for request in requests(1):
            engines = loaded(random, facts.num_engines)
            number = router.choose(request, engines)
            assert type(number) is int
            assert number in {engine.number for engine in engines}

    def test_a_single_engine_is_chosen(self, router: Router) -> None:
        """If one engine is left it gets everything, however busy it is."""
        busy = View(number=3, num_running=64, num_waiting=500, pending_tokens=10**6, kv_usage=1.0)
        assert {router.choose(request, [busy]) for request in requests(2)} == {3}

    def test_is_deterministic(self, plugin: Any) -> None:
        """Two routers with the same input make the same choices."""
        assert choices(new_router(plugin), 3) == choices(new_router(plugin), 3)

    def test_leaves_the_tokens_alone(self, router: Router) -> None:
        """The prompt is as it was."""
        random = Random(4)
        ids = list(prompt(random))
        before = list(ids)
        router.choose(RoutedRequest(ids), idle())
        assert ids == before

    def test_uses_every_engine(self, router: Router) -> None:
        """Of engines that have nothing to do each gets some of the requests."""
        random = Random(5)
        got = Counter(where(router, prompt(random)) for _ in range(NUM_REQUESTS))
        assert set(got) == set(range(NUM_ENGINES))

    def test_forgets(self, router: Router) -> None:
        """An engine that has lost its cache can be chosen again; forgetting twice is fine."""
        choices(router, 6)
        for number in (*range(NUM_ENGINES), 0):
            router.forget(number)
        assert where(router, (1, 2, 3)) in range(NUM_ENGINES)

    def test_memory_is_bounded(self, router: Router) -> None:
        """Its memory of requests does not grow for ever."""
        random, sizes = Random(7), []
        tracemalloc.start()
        try:
            for _ in range(2):
                for _ in range(NUM_REQUESTS):
                    where(router, prompt(random))
                sizes.append(tracemalloc.get_traced_memory()[0])
        finally:
            tracemalloc.stop()
        assert sizes[1] < 1.2 * sizes[0] + 4096

    def test_is_quick(self, router: Router) -> None:
        """A thousand choices take no time that anybody would notice."""
        random = Random(8)
        prompts = [RoutedRequest(prompt(random)) for _ in range(NUM_REQUESTS)]
        engines = idle()
        started_s = time.perf_counter()
        for _ in range(1000 // NUM_REQUESTS):
            for request in prompts:
                router.choose(request, engines)
        assert time.perf_counter() - started_s < SECONDS_OF_1000

    @requires("loads")
    @pytest.mark.parametrize("facts", [FACTS, MANY], ids=["few", "many"])
    def test_a_busy_engine_is_spared(self, plugin: Any, facts: RouterFacts) -> None:
        """An engine with a long queue gets nothing while the others have nothing to do."""
        router, random = new_router(plugin, facts), Random(9)
        engines = idle(facts.num_engines)
        engines[2] = View(number=2, num_running=64, num_waiting=50, pending_tokens=10**5)
        got = {router.choose(RoutedRequest(prompt(random)), engines) for _ in range(NUM_REQUESTS)}
        assert got and 2 not in got

    @requires("prefixes")
    def test_a_prefix_is_followed(self, router: Router) -> None:
        """Requests with the same beginning go to one engine while all are idle."""
        random = Random(10)
        shared = [prompt(random) for _ in range(3 * NUM_ENGINES + 1)]
        first = [where(router, ids) for ids in shared]
        again = [where(router, ids + prompt(random, 100)) for ids in shared]
        assert again == first
        assert len(set(first)) > 1

    @requires("prefixes")
    def test_a_salt_is_another_prefix(self, router: Router) -> None:
        """Requests of other salts share nothing, so they need not meet."""
        ids = prompt(Random(11))
        first = {where(router, ids, f"salt {number}") for number in range(4 * NUM_ENGINES)}
        assert len(first) > 1

    @requires("prefixes")
    def test_a_prefix_is_left_for_an_idle_engine(self, router: Router) -> None:
        """An engine that has the prefix is avoided if its queue costs more than the prefix saves,
        and chosen if it costs less."""
        ids = prompt(Random(12))
        home = where(router, ids)
        engines = idle()
        engines[home] = View(number=home, num_running=1, num_waiting=0, pending_tokens=32)
        assert router.choose(RoutedRequest(ids), engines) == home
        engines[home] = View(number=home, num_running=9, num_waiting=60, pending_tokens=60 * 512)
        assert router.choose(RoutedRequest(ids), engines) != home

    @requires("prefixes")
    def test_a_forgotten_prefix_is_not_followed(self, router: Router) -> None:
        """After forget nothing draws a request to an engine."""
        ids = prompt(Random(13))
        home = where(router, ids)
        engines = idle()
        engines[home] = View(number=home, pending_tokens=32)
        assert router.choose(RoutedRequest(ids), engines) == home
        router.forget(home)
        assert router.choose(RoutedRequest(ids), engines) != home
