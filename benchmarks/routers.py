"""Routers against a model of many engines: cache hits, time to first token, decisions a second.

The routers are the real plugins. An engine is a model: requests wait in line, a step computes a
budget of prompt tokens and one token of every running request, a prefix cache of bounded blocks
forgets the least recently used. The load has the statistics of published traces (`LOADS`); the
traces themselves are not needed. Run with PYTHONPATH=core:plugins:kernels from the root:

    python benchmarks/routers.py --engines 1000 --requests 1000000 --rates 1.6
    python benchmarks/routers.py --decisions
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import math
import time
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from dovetail import registry
from dovetail.interfaces.router import RoutedRequest, Router, RouterFacts

ROUTERS = ("round_robin", "least_loaded", "prefix_aware")
BLOCK = 512
"""Tokens of a block in the model; prompts are whole blocks, as in Mooncake's published traces."""
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
    "Mooncake's trace of an hour: 7,590 prompt tokens and 182 answer tokens on average, half of "
    "the blocks found again in an unbounded cache (Qin et al., 2024, arXiv 2407.00079, 4.2)"
)
LOADS = {
    "mooncake": Load(
        turns=1.6, num_systems=64, system_tokens=1536, new_tokens=4250.0, sigma=1.2,
        answer_tokens=182.0, pause_s=60.0, source=_SOURCE,
    ),
    "nothing shared": Load(
        turns=1.0, num_systems=1, system_tokens=0, new_tokens=8650.0, sigma=1.0,
        answer_tokens=182.0, pause_s=1.0, source="the same lengths without a common prefix",
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """An engine's times and memory: about one large GPU with a model of 8 billion parameters."""

    prefill_tokens_s: float = 16_000.0
    step_s: float = 0.012
    row_s: float = 0.00006
    budget_tokens: int = 8192
    max_rows: int = 256
    cache_tokens: int = 400_000


@dataclass(slots=True)
class Job:
    """A request under way. `blocks` are its prompt's keys, `left` prompt tokens to compute."""

    arrived_s: float
    blocks: tuple[int, ...]
    num_answer: int
    left: int = 0


class Model:
    """An engine: what a router sees of it, and what it does. A router's token is a block here.

    A step computes at most `budget_tokens` of prompts; steps without any are taken together until a
    request ends or another comes.
    """

    def __init__(self, number: int, hardware: Hardware) -> None:
        self.number = number
        self.pending_tokens = 0
        self.hit_blocks = 0
        self.asked_blocks = 0
        self.version = 0
        self._hardware = hardware
        self._most_blocks = hardware.cache_tokens // BLOCK
        self._held_blocks = 0
        self._steps = 0
        self._began_s = self._step_s = 0.0
        self._planned = 0
        self._waiting: deque[Job] = deque()
        self._filling: list[Job] = []
        self._drawing: list[tuple[int, int, Job]] = []
        self._cache: OrderedDict[int, None] = OrderedDict()

    @property
    def num_running(self) -> int:
        """Return the requests that are in steps."""
        return len(self._filling) + len(self._drawing)

    @property
    def num_waiting(self) -> int:
        """Return the requests in line."""
        return len(self._waiting)

    @property
    def kv_usage(self) -> float:
        """Return the share of the cache that requests hold."""
        return min(1.0, self._held_blocks / self._most_blocks)

    def add(self, job: Job, now_s: float) -> float | None:
        """Queue a request; return when the next thing happens, None when that is known already."""
        self._waiting.append(job)
        self.pending_tokens += len(job.blocks)
        if not self._planned:
            return self._plan(now_s)
        done = max(1, math.ceil((now_s - self._began_s) / self._step_s))
        if done >= self._planned:
            return None
        self._planned = done
        self.version += 1
        return self._began_s + done * self._step_s

    def go_on(self, now_s: float, first: list[float]) -> float | None:
        """Record the planned steps; return when the next thing happens, None for never."""
        self._steps += self._planned
        for job in self._filling:
            if not job.left:
                first.append(now_s - job.arrived_s)
                self.pending_tokens -= len(job.blocks)
                self._keep(job.blocks)
                heapq.heappush(self._drawing, (self._steps + job.num_answer - 1, id(job), job))
        self._filling = [job for job in self._filling if job.left]
        while self._drawing and self._drawing[0][0] <= self._steps:
            job = heapq.heappop(self._drawing)[2]
            self._held_blocks -= _held(job)
            self._keep(job.blocks)
        return self._plan(now_s)

    def _plan(self, now_s: float) -> float | None:
        budget = self._hardware.budget_tokens
        filled = 0
        for job in self._filling:
            filled += self._fill(job, budget - filled)
        while self._waiting and filled < budget and self._admits(self._waiting[0]):
            job = self._waiting.popleft()
            self._begin(job)
            filled += self._fill(job, budget - filled)
        if not self._filling and not self._drawing:
            self._planned = 0
            return None
        hardware = self._hardware
        self._step_s = hardware.step_s + len(self._drawing) * hardware.row_s
        self._step_s += filled / hardware.prefill_tokens_s
        self._began_s = now_s
        self._planned = 1 if self._filling else max(1, self._drawing[0][0] - self._steps)
        self.version += 1
        return now_s + self._planned * self._step_s

    @staticmethod
    def _fill(job: Job, budget: int) -> int:
        take = min(job.left, budget)
        job.left -= take
        return take

    def _admits(self, job: Job) -> bool:
        fits = self._held_blocks + _held(job) <= self._most_blocks
        return (fits or not self.num_running) and self.num_running < self._hardware.max_rows

    def _begin(self, job: Job) -> None:
        hit = 0
        for key in job.blocks[:-1]:  # the last token is always computed
            if key not in self._cache:
                break
            hit += 1
        job.left = (len(job.blocks) - hit) * BLOCK
        self.hit_blocks += hit
        self.asked_blocks += len(job.blocks)
        self._held_blocks += _held(job)
        self._filling.append(job)

    def _keep(self, blocks: tuple[int, ...]) -> None:
        """Have a prompt's blocks cached, the first ones last to be forgotten."""
        cache = self._cache
        for key in reversed(blocks):
            cache[key] = None
            cache.move_to_end(key)
        while len(cache) > self._most_blocks:
            cache.popitem(last=False)


def _held(job: Job) -> int:
    return len(job.blocks) + job.num_answer // BLOCK + 1


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
    """What a router made of a load. Times in seconds."""

    possible_share: float
    hit_share: float
    p50_s: float
    p99_s: float
    decide_us: float


def simulate(
    router: Router, load: Load, hardware: Hardware, num_engines: int, rate: float, count: int
) -> Result:
    """Return what becomes of `count` requests at `rate` a second."""
    engines = [Model(number, hardware) for number in range(num_engines)]
    events: list[tuple[float, int, int]] = []
    first: list[float] = []
    seen: set[int] = set()
    num_seen = num_looked = 0
    decide_s = now_s = 0.0

    def note(engine: Model, at_s: float | None) -> None:
        if at_s is not None:
            heapq.heappush(events, (at_s, engine.number, engine.version))

    def run_until(limit_s: float) -> None:
        while events and events[0][0] <= limit_s:
            at_s, number, version = heapq.heappop(events)
            engine = engines[number]
            if version == engine.version:
                note(engine, engine.go_on(at_s, first))

    for job in arrivals(load, rate, count, Random(1)):
        now_s = job.arrived_s
        run_until(now_s)
        started_s = time.perf_counter()
        number = router.choose(RoutedRequest(job.blocks), engines)
        decide_s += time.perf_counter() - started_s
        note(engines[number], engines[number].add(job, now_s))
        if num_looked < LOOKED_BLOCKS:
            num_looked += len(job.blocks)
            num_seen += sum(key in seen for key in job.blocks)
            seen.update(job.blocks)
    run_until(math.inf)
    first.sort()
    num_asked = sum(engine.asked_blocks for engine in engines)
    return Result(
        possible_share=num_seen / num_looked,
        hit_share=sum(engine.hit_blocks for engine in engines) / num_asked,
        p50_s=first[len(first) // 2],
        p99_s=first[len(first) * 99 // 100],
        decide_us=decide_s / count * 1e6,
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


def compare(num_engines: int, count: int, names: list[str], rates: list[float]) -> None:
    """Print a row for every load, rate (requests a second for each engine) and router."""
    hardware = Hardware()
    print("| load | engines | rate | router | possible hits | hits | first token p50, p99 s | us |")
    print("|---|---|---|---|---|---|---|---|")
    for name, rate, router_name in itertools.product(names, rates, ROUTERS):
        router = made(router_name, num_engines, cache_tokens=hardware.cache_tokens)
        got = simulate(router, LOADS[name], hardware, num_engines, rate * num_engines, count)
        print(
            f"| {name} | {num_engines} | {rate:g} | `{router_name}` | {got.possible_share:.1%} "
            f"| {got.hit_share:.1%} | {got.p50_s:.2f}, {got.p99_s:.2f} | {got.decide_us:.0f} |",
            flush=True,
        )


def decisions() -> None:
    """Print decisions a second over real prompts, half of each shared with others."""
    print("| engines | prompt tokens | " + " | ".join(ROUTERS) + " |")
    print("|---|---|---|---|---|")
    random = Random(0)
    for num_engines in (8, 1000):
        for num_tokens in (256, 1024, 8192):
            half = num_tokens // 2
            shared = [_ids(random, half) for _ in range(64)]
            prompts = [
                RoutedRequest(random.choice(shared) + _ids(random, half)) for _ in range(2000)
            ]
            engines = [Model(number, Hardware()) for number in range(num_engines)]
            rates = [_rate(name, num_engines, prompts, engines) for name in ROUTERS]
            cells = " | ".join(f"{rate:,.0f}" for rate in rates)
            print(f"| {num_engines} | {num_tokens} | {cells} |", flush=True)


def _rate(name: str, num_engines: int, prompts: list[RoutedRequest], engines: list[Model]) -> float:
    router = made(name, num_engines, cache_tokens=400_000, block_tokens=16)
    best = 0.0
    for _ in range(3):
        started_s = time.perf_counter()
        for prompt in prompts:
            router.choose(prompt, engines)
        best = max(best, len(prompts) / (time.perf_counter() - started_s))
    return best


def _ids(random: Random, count: int) -> tuple[int, ...]:
    return tuple(random.randrange(150_000) for _ in range(count))


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engines", type=int, default=8)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--loads", nargs="+", choices=sorted(LOADS), default=sorted(LOADS))
    parser.add_argument(
        "--rates", type=float, nargs="+", default=[1.2, 1.6], help="for each engine"
    )
    parser.add_argument("--decisions", action="store_true", help="measure the routers alone")
    args = parser.parse_args()
    if args.decisions:
        decisions()
    else:
        compare(args.engines, args.requests, args.loads, args.rates)


if __name__ == "__main__":
    main()
