"""Time of plan + update per step of the continuous scheduler, without a model.

Bar: 0.15 ms + 5 us per row. The second table is of 32 rows, of which one ends and another starts in
every step, by policy: a step without a queue and with one of several owners, what the queue adds
(bar: 50 us), and what an arrival takes. It is processor time; the steps of a policy's queues
alternate. Run with PYTHONPATH=core:plugins:kernels from the repository root; --queues prints the
second table alone.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from dovetail.engine.kv import prefix_hash
from dovetail.engine.kv.kv_cache import KVCacheManager
from dovetail.engine.kv.kv_groups import plan_layout
from dovetail.engine.request import Request
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.data.schedule_spec import ScheduleSpec
from dovetail.interfaces.data.spec import CacheSpec
from dovetail.interfaces.data.step import KVLayer, RowResult, StepPlan, StepResult
from dovetail.interfaces.scheduling_policy import SchedulingPolicy
from dovetail_plugins.schedulers.continuous import ContinuousOptions, ContinuousScheduler
from dovetail_plugins.scheduling_policies.fair import Fair
from dovetail_plugins.scheduling_policies.fcfs import Fcfs
from dovetail_plugins.scheduling_policies.longest_prefix import LongestPrefix
from dovetail_plugins.scheduling_policies.priority import PriorityFirst
from dovetail_plugins.scheduling_policies.shortest_first import ShortestFirst

NUM_STEPS = 2_000
BLOCK_TOKENS = 16
PROMPT_TOKENS = 256
QUEUE_ROWS = 32
QUEUE_STEPS = 600
QUEUE_WAITING = 10_000
QUEUE_OWNERS = (1, 50, 10_000)
QUEUE_PREFIXES = 50
POLICIES: dict[str, Callable[[], SchedulingPolicy]] = {
    "fcfs": lambda: Fcfs(None),
    "priority": lambda: PriorityFirst(None),
    "fair": lambda: Fair(Fair.Options()),
    "longest-prefix": lambda: LongestPrefix(LongestPrefix.Options()),
    "shortest-first": lambda: ShortestFirst(ShortestFirst.Options()),
}


def make_scheduler(
    num_rows: int,
    windows: tuple[int | None, ...],
    policy: SchedulingPolicy | None = None,
    num_queued: int | None = None,
) -> ContinuousScheduler:
    """Return a scheduler with `num_queued` (None: `num_rows`) requests queued, and blocks for
    `num_rows`."""
    spec = ScheduleSpec(
        max_rows=num_rows,
        max_step_tokens=8192,
        max_model_tokens=PROMPT_TOKENS + 2 * NUM_STEPS,
        uses_chunked_prefill=True,
        long_prefill_tokens=0,
        async_steps=False,
    )
    num_blocks = 2 + num_rows * len(windows) * (spec.max_model_tokens // BLOCK_TOKENS + 2)
    cache = CacheSpec(
        block_tokens=BLOCK_TOKENS,
        num_blocks=num_blocks,
        memory_bytes=None,
        memory_share=0.0,
        uses_prefix_cache=True,
        hash_algorithm=prefix_hash.DEFAULT,
    )
    layers = [
        KVLayer(name=str(i), num_kv_heads=1, head_size=64, dtype="float32", window_tokens=window)
        for i, window in enumerate(windows)
    ]
    layout = plan_layout(layers, block_tokens=BLOCK_TOKENS, num_blocks=num_blocks)
    manager = KVCacheManager(layout, cache, b"benchmark")
    scheduler = ContinuousScheduler(ContinuousOptions(), spec, manager, policy or Fcfs(None))
    for i in range(num_rows if num_queued is None else num_queued):
        prompt_ids = [(i * 7919 + j) % 32_000 for j in range(PROMPT_TOKENS)]
        scheduler.add(_request(i, spec.max_model_tokens, prompt_ids))
    return scheduler


def _request(i: int, max_model_tokens: int, prompt_ids: list[int], **more: Any) -> Request:
    return Request(
        request_id=f"request-{i}",
        prompt_ids=prompt_ids,
        sampling=SamplingParams(eos_token_ids=(2,), stop_token_ids=(3,)),
        seed=i,
        max_model_tokens=max_model_tokens,
        **more,
    )


def answer(plan: StepPlan) -> StepResult:
    """Return a result in which every sampling row drew token 5."""
    drawn = (5,)
    rows = tuple(RowResult(row=r.row, token_ids=drawn if r.samples else ()) for r in plan.rows)
    return StepResult(step_id=plan.step_id, rows=rows)


def measure(num_rows: int, windows: tuple[int | None, ...]) -> list[float]:
    """Return microseconds of plan + update for each decode step, sorted."""
    scheduler = make_scheduler(num_rows, windows)
    while len((plan := scheduler.plan()).rows) < num_rows or not plan.rows[-1].samples:
        scheduler.update(plan, answer(plan))
    scheduler.update(plan, answer(plan))
    times_us = []
    for _ in range(NUM_STEPS):
        start = time.perf_counter()
        plan = scheduler.plan()
        planned = time.perf_counter()
        result = answer(plan)
        answered = time.perf_counter()
        scheduler.update(plan, result)
        times_us.append((planned - start + time.perf_counter() - answered) * 1e6)
    return sorted(times_us)


class Queue:
    """A scheduler with requests that run and wait; in each step one leaves, one comes, and one
    starts."""

    def __init__(self, policy: SchedulingPolicy, num_waiting: int, num_owners: int) -> None:
        self._scheduler = make_scheduler(QUEUE_ROWS, (None,), policy, num_queued=0)
        self._num_owners, self._num_added = num_owners, 0
        self._running: deque[str] = deque()
        self._random = Random(0)
        for _ in range(QUEUE_ROWS + num_waiting):
            self._add()

    def _add(self) -> None:
        i = self._num_added
        self._num_added += 1
        start = i % QUEUE_PREFIXES * 7919
        shared = range(start, start + PROMPT_TOKENS * 3 // 4)
        prompt_ids = [*shared, *(self._random.randrange(32_000) for _ in range(PROMPT_TOKENS // 4))]
        self._scheduler.add(
            _request(
                i, PROMPT_TOKENS + 2 * NUM_STEPS, prompt_ids, arrival_s=i / 1000,
                owner=(f"owner-{self._random.randrange(self._num_owners)}", 1.0),
            )
        )  # fmt: skip

    def step(self) -> tuple[float, float]:
        """Return microseconds of processor time of plan + update, and of the arrival before."""
        if len(self._running) == QUEUE_ROWS:
            self._scheduler.abort([self._running.popleft()])
        begun = time.thread_time_ns()
        self._add()
        added = time.thread_time_ns()
        plan = self._scheduler.plan()
        planned = time.thread_time_ns()
        result = answer(plan)
        answered = time.thread_time_ns()
        self._scheduler.update(plan, result)
        ended = time.thread_time_ns()
        self._running.extend(new.request_id for new in plan.new_rows)
        return (planned - added + ended - answered) / 1e3, (added - begun) / 1e3


def measure_queues(
    make: Callable[[], SchedulingPolicy], num_waiting: int
) -> dict[tuple[int, int], tuple[float, float, float]]:
    """Return, by numbers of waiting requests and owners, microseconds of a step, what waiting adds
    to it, and of an arrival: means of steps that alternate with those of the others."""
    places = [(waiting, owners) for owners in QUEUE_OWNERS for waiting in (0, num_waiting)]
    queues = {place: Queue(make(), *place) for place in places}
    found: dict[tuple[int, int], list[tuple[float, float]]] = {place: [] for place in queues}
    gc.collect()
    gc.disable()
    for _ in range(QUEUE_STEPS):
        for place, queue in queues.items():
            found[place].append(queue.step())
    gc.enable()
    middle = {
        place: [_usual(column) for column in zip(*steps[QUEUE_ROWS:], strict=True)]
        for place, steps in found.items()
    }
    return {
        (waiting, owners): (us, us - middle[0, owners][0], arrival)
        for (waiting, owners), (us, arrival) in middle.items()
    }


def _usual(values: Sequence[float]) -> float:
    """Return the mean without the largest and the smallest twentieth."""
    spare = len(values) // 20
    return statistics.fmean(sorted(values)[spare:-spare])


def print_steps() -> None:
    """Print one line per batch size and cache layout."""
    print(f"{'rows':>5} {'groups':>6} {'median us':>10} {'p90 us':>8} {'us/row':>7} {'bar us':>7}")
    for windows in ((None,), (None, 1024)):
        for num_rows in (1, 8, 32, 128):
            times_us = measure(num_rows, windows)
            median = statistics.median(times_us)
            p90 = times_us[int(len(times_us) * 0.9)]
            bar = 150 + 5 * num_rows
            print(
                f"{num_rows:>5} {len(windows):>6} {median:>10.1f} {p90:>8.1f} "
                f"{median / num_rows:>7.2f} {bar:>7}"
            )


def print_queues(names: Sequence[str]) -> None:
    """Print one line per policy and queue."""
    columns = ("owners", "waiting", "us", "added us", "ratio", "us/arrival")
    print(f"{'policy':>14}" + "".join(f"{column:>11}" for column in columns))
    for name in names:
        figures = measure_queues(POLICIES[name], QUEUE_WAITING)
        for (waiting, owners), (us, added, arrival) in figures.items():
            line = f"{name:>14}{owners:>11}{waiting:>11}{us:>11.1f}{added:>11.1f}"
            print(f"{line}{us / (us - added):>11.2f}{arrival:>11.1f}")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--queues", nargs="*", choices=POLICIES, help="of these policies; none: all"
    )
    chosen = parser.parse_args()
    if chosen.queues is None:
        print_steps()
        print()
    print_queues(chosen.queues or list(POLICIES))


if __name__ == "__main__":
    main()
