"""Routers against a model of many engines: cache hits, time to first token, decisions a second.

The routers are the real plugins. An engine is a model: requests wait in line, a step computes a
budget of prompt tokens and one token of every running request, a prefix cache of bounded blocks
forgets the least recently used. With `--scheduler` it has dovetail's own scheduler and block
accounting, and only the time of a step is a model. The load has the statistics of published traces
(`LOADS`); the traces themselves are not needed. Run with PYTHONPATH=core:plugins:kernels from the
root:

    python -m benchmarks.routers --engines 1000 --requests 1000000 --loads conversation
    python -m benchmarks.routers --engines 8 --requests 4000 --scheduler
    python -m benchmarks.routers --decisions
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import math
import statistics
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

from benchmarks.engine_model import BLOCK, Hardware, Job, Model
from benchmarks.scheduled_model import ScheduledModel
from dovetail import registry
from dovetail.interfaces.router import RoutedRequest, Router, RouterFacts

ROUTERS = ("round_robin", "least_loaded", "prefix_aware")
NUM_LOOKS = 1000
LOOKED_BLOCKS = 1_000_000
"""Of so many blocks it is found out which an unbounded cache would have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Statistics of a load. Tokens, but for shares.

    Requests belong to conversations of `turns` turns on average (geometric), each of which begins
    with one of `num_systems` common beginnings of `system_tokens`, drawn by Zipf's law. A turn's
    prompt is everything so far and `new_tokens` (log-normal of this mean and sigma); answers have
    `answer_tokens` on average. Between two turns lie `pause_s` on average (exponential).
    """

    turns: float
    num_systems: int
    system_tokens: int
    new_tokens: float
    sigma: float
    answer_tokens: float
    pause_s: float
    source: str


_SOURCE = (
    "Mooncake's first trace of an hour: 7,590 prompt tokens and 182 answer tokens on average, half "
    "of the blocks found again in an unbounded cache (Qin et al., 2024, arXiv 2407.00079, 4.2)"
)
_TRACES = (
    "mean lengths of prompts and answers and the share of blocks that an unbounded cache has, from "
    "the traces of Qin et al., FAST 2025 (Mooncake), appendix: "
)
LOADS = {
    "conversation": Load(
        turns=1.65, num_systems=1, system_tokens=512, new_tokens=8100.0, sigma=1.1,
        answer_tokens=343.0, pause_s=60.0,
        source=_TRACES + "conversation: 12,035 and 343 tokens, 40 %",
    ),
    "tools": Load(
        turns=1.15, num_systems=64, system_tokens=4608, new_tokens=3900.0, sigma=1.2,
        answer_tokens=182.0, pause_s=60.0,
        source=_TRACES + "tools and agents: 8,596 and 182 tokens, 59 %",
    ),
    "mooncake": Load(
        turns=1.6, num_systems=64, system_tokens=1536, new_tokens=4250.0, sigma=1.2,
        answer_tokens=182.0, pause_s=60.0, source=_SOURCE,
    ),
    "nothing shared": Load(
        turns=1.0, num_systems=1, system_tokens=0, new_tokens=8650.0, sigma=1.0,
        answer_tokens=182.0, pause_s=1.0, source="the same lengths without a common prefix",
    ),
}  # fmt: skip


def arrivals(load: Load, rate: float, count: int, random: Random) -> Iterator[Job]:
    """Yield `count` requests in the order of their times, `rate` a second.

    Conversations begin as a Poisson process; their later turns come when they come.
    """
    weights = [1 / (place + 1) for place in range(load.num_systems)]
    systems = [_keys(random, load.system_tokens) for _ in weights]
    mu = math.log(load.new_tokens) - load.sigma**2 / 2
    later: list[tuple[float, int, tuple[int, ...]]] = []
    begins_s, serial = 0.0, 0
    for _ in range(count):
        if later and later[0][0] <= begins_s:
            now_s, _, history = heapq.heappop(later)
        else:
            now_s, history = begins_s, random.choices(systems, weights)[0]
            begins_s += random.expovariate(rate / load.turns)
        new = min(30_000.0, random.lognormvariate(mu, load.sigma))
        blocks = history + _keys(random, max(BLOCK, new))
        num_answer = max(1, min(2000, int(random.expovariate(1 / load.answer_tokens))))
        yield Job(now_s, blocks, num_answer)
        if random.random() < 1 - 1 / load.turns and len(blocks) * BLOCK < 60_000:
            serial += 1
            back_s = now_s + random.expovariate(1 / load.pause_s)
            heapq.heappush(later, (back_s, serial, blocks + _keys(random, num_answer)))


def _keys(random: Random, tokens: float) -> tuple[int, ...]:
    return tuple(random.getrandbits(60) for _ in range(int(tokens) // BLOCK))


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a router made of a load. Times in seconds.

    `imbalance` is the standard deviation of the tokens that wait in engines over their mean, and
    `busiest` the busy time of the busiest engine over the mean.
    """

    possible_share: float
    hit_share: float
    mean_s: float
    p50_s: float
    p99_s: float
    imbalance: float
    busiest: float
    decide_us: float
    num_first: int


@dataclass(slots=True)
class Looks:
    """What is looked at while a simulation runs."""

    first_s: list[float] = field(default_factory=list)
    spreads: list[float] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)
    num_seen: int = 0
    num_looked: int = 0

    def at_prompt(self, blocks: Sequence[int]) -> None:
        """Count which blocks an unbounded cache would have."""
        if self.num_looked < LOOKED_BLOCKS:
            self.num_looked += len(blocks)
            self.num_seen += sum(key in self.seen for key in blocks)
            self.seen.update(blocks)

    def at_engines(self, engines: Sequence[Model]) -> None:
        """Note how unequal their lines are."""
        waiting = [engine.pending_tokens for engine in engines]
        mean = statistics.fmean(waiting)
        if mean:
            self.spreads.append(statistics.pstdev(waiting, mean) / mean)


def simulate(
    router: Router, load: Load, engines: Sequence[Model], rate: float, count: int
) -> Result:
    """Return what becomes of `count` requests at `rate` a second."""
    events: list[tuple[float, int, int]] = []
    looks = Looks()
    decide_s = 0.0
    period = max(1, count // NUM_LOOKS)

    def note(engine: Model, at_s: float | None) -> None:
        if at_s is not None:
            heapq.heappush(events, (at_s, engine.number, engine.version))

    def run_until(limit_s: float) -> None:
        while events and events[0][0] <= limit_s:
            at_s, number, version = heapq.heappop(events)
            engine = engines[number]
            if version == engine.version:
                note(engine, engine.go_on(at_s, looks.first_s))

    for serial, job in enumerate(arrivals(load, rate, count, Random(1))):
        run_until(job.arrived_s)
        if serial % period == 0:
            looks.at_engines(engines)
        started_s = time.perf_counter()
        number = router.choose(RoutedRequest(job.blocks), engines)
        decide_s += time.perf_counter() - started_s
        note(engines[number], engines[number].add(job, job.arrived_s))
        looks.at_prompt(job.blocks)
    run_until(math.inf)
    return _result(engines, looks, decide_s / count)


def _result(engines: Sequence[Model], looks: Looks, decide_s: float) -> Result:
    first_s = sorted(looks.first_s)
    busy = [engine.busy_s for engine in engines]
    return Result(
        possible_share=looks.num_seen / looks.num_looked,
        hit_share=sum(engine.hit_blocks for engine in engines)
        / sum(engine.asked_blocks for engine in engines),
        mean_s=statistics.fmean(first_s),
        p50_s=first_s[len(first_s) // 2],
        p99_s=first_s[len(first_s) * 99 // 100],
        imbalance=statistics.fmean(looks.spreads) if looks.spreads else 0.0,
        busiest=max(busy) / statistics.fmean(busy),
        decide_us=decide_s * 1e6,
        num_first=len(first_s),
    )


def made(name: str, num_engines: int, *, cache_tokens: int, block_tokens: int = 1) -> Router:
    """Return a router by name; without `block_tokens` its token is a block of the model."""
    plugin = registry.load("router", name)
    options = plugin.Options()
    if block_tokens == 1 and name == "prefix_aware":
        options = plugin.Options(chunk_tokens=1, running_tokens=options.running_tokens / BLOCK)
    facts = RouterFacts(
        num_engines=num_engines,
        block_tokens=block_tokens,
        cache_tokens=cache_tokens // (BLOCK if block_tokens == 1 else 1),
        max_rows=Hardware().max_rows,
    )
    router: Router = plugin(options, facts)
    return router


def compare(
    num_engines: int,
    count: int,
    names: list[str],
    rates: list[float],
    routers: list[str],
    make: Callable[[int, Hardware], Model],
) -> None:
    """Print a row for every load, rate (requests a second for each engine) and router."""
    hardware = Hardware()
    print(
        "| load | engines | rate | router | possible hits | hits | first token mean, p50, p99 s "
        "| imbalance | busiest | us |\n|---|---|---|---|---|---|---|---|---|---|"
    )
    for name, rate, router_name in itertools.product(names, rates, routers):
        router = made(router_name, num_engines, cache_tokens=hardware.cache_tokens)
        engines = [make(number, hardware) for number in range(num_engines)]
        got = simulate(router, LOADS[name], engines, rate * num_engines, count)
        print(
            f"| {name} | {num_engines} | {rate:g} | `{router_name}` | {got.possible_share:.1%} "
            f"| {got.hit_share:.1%} | {got.mean_s:.2f}, {got.p50_s:.2f}, {got.p99_s:.2f} "
            f"| {got.imbalance:.2f} | {got.busiest:.2f} | {got.decide_us:.0f} |",
            flush=True,
        )


def decisions(routers: list[str]) -> None:
    """Print decisions a second over prompts as a tokenizer makes them: half of each shared with
    others, nothing shared, and seen before."""
    print("| engines | prompt tokens | prompts | " + " | ".join(routers) + " |")
    print("|---|---|---|" + "---|" * len(routers))
    random = Random(0)
    for num_tokens, num_engines in itertools.product((256, 2048, 8192, 65536), (2, 16, 1000)):
        count = max(40, min(1000, 2_000_000 // num_tokens))
        half = num_tokens // 2
        shared = [_ids(random, half) for _ in range(16)]
        prompts = {
            "half shared": [random.choice(shared) + _ids(random, half) for _ in range(count)],
            "nothing shared": [_ids(random, num_tokens) for _ in range(count)],
            "seen before": [_ids(random, num_tokens) for _ in range(8)] * (count // 8),
        }
        for what, ids in prompts.items():
            rates = [_rate(name, num_engines, ids) for name in routers]
            cells = " | ".join(f"{rate:,.0f}" for rate in rates)
            print(f"| {num_engines} | {num_tokens} | {what} | {cells} |", flush=True)


def _rate(name: str, num_engines: int, prompts: list[array[int]]) -> float:
    """Return decisions a second; the first quarter warms up."""
    router = made(name, num_engines, cache_tokens=400_000, block_tokens=16)
    engines = [Model(number, Hardware()) for number in range(num_engines)]
    taken_s = []
    for ids in prompts:
        request = RoutedRequest(tuple(ids))  # new objects, as a tokenizer makes them
        started_s = time.perf_counter()
        router.choose(request, engines)
        taken_s.append(time.perf_counter() - started_s)
    return 1 / statistics.fmean(taken_s[len(taken_s) // 4 :])


def _ids(random: Random, count: int) -> array[int]:
    return array("I", (random.randrange(150_000) for _ in range(count)))


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engines", type=int, default=8)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--loads", nargs="+", choices=sorted(LOADS), default=sorted(LOADS))
    parser.add_argument(
        "--rates", type=float, nargs="+", default=[1.2, 1.6], help="for each engine"
    )
    parser.add_argument("--routers", nargs="+", choices=ROUTERS, default=list(ROUTERS))
    parser.add_argument(
        "--scheduler", action="store_true", help="engines with dovetail's scheduler; slow"
    )
    parser.add_argument("--decisions", action="store_true", help="measure the routers alone")
    args = parser.parse_args()
    if args.decisions:
        decisions(args.routers)
        return
    make: Callable[[int, Hardware], Model] = ScheduledModel if args.scheduler else Model
    compare(args.engines, args.requests, args.loads, args.rates, args.routers, make)


if __name__ == "__main__":
    main()
