"""Time of plan + update per step of the continuous scheduler, without a model.

Bar: 0.15 ms + 5 us per row. The second table adds a queue of waiting requests, and one
starts in every step: once under a policy with static keys, once under one whose keys move. Run with
PYTHONPATH=core:plugins:kernels from the repository root.
"""

from __future__ import annotations

import statistics
import time
from collections import deque

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
from dovetail_plugins.scheduling_policies.fcfs import Fcfs
from dovetail_plugins.scheduling_policies.longest_prefix import LongestPrefix

NUM_STEPS = 2_000
BLOCK_TOKENS = 16
PROMPT_TOKENS = 256
QUEUE_ROWS = 32
QUEUE_STEPS = 400


def make_scheduler(
    num_rows: int, windows: tuple[int | None, ...], policy: SchedulingPolicy | None = None
) -> ContinuousScheduler:
    """Return a scheduler with `num_rows` requests queued and blocks for all of them."""
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
    for i in range(num_rows):
        scheduler.add(_request(i, spec.max_model_tokens))
    return scheduler


def _request(i: int, max_model_tokens: int) -> Request:
    return Request(
        request_id=f"request-{i}",
        prompt_ids=[(i * 7919 + j) % 32_000 for j in range(PROMPT_TOKENS)],
        sampling=SamplingParams(eos_token_ids=(2,), stop_token_ids=(3,)),
        seed=i,
        max_model_tokens=max_model_tokens,
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


def measure_queue(num_waiting: int, policy: SchedulingPolicy) -> list[float]:
    """Return microseconds of plan + update when one request has left and another starts, sorted."""
    scheduler = make_scheduler(QUEUE_ROWS, (None,), policy)
    for i in range(QUEUE_ROWS, QUEUE_ROWS + num_waiting):
        scheduler.add(_request(i, PROMPT_TOKENS + 2 * NUM_STEPS))
    running: deque[str] = deque()
    times_us = []
    for i in range(QUEUE_STEPS):
        if len(running) == QUEUE_ROWS:
            scheduler.abort([running.popleft()])
        scheduler.add(_request(QUEUE_ROWS + num_waiting + i, PROMPT_TOKENS + 2 * NUM_STEPS))
        start = time.perf_counter()
        plan = scheduler.plan()
        planned = time.perf_counter()
        result = answer(plan)
        answered = time.perf_counter()
        scheduler.update(plan, result)
        times_us.append((planned - start + time.perf_counter() - answered) * 1e6)
        running.extend(new.request_id for new in plan.new_rows)
    return sorted(times_us)


def main() -> None:
    """Print one line per batch size and cache layout, and one per queue and policy."""
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
    print(f"\n{'waiting':>7} {'policy':>14} {'median us':>10} {'p90 us':>8}")
    for num_waiting in (0, 100, 1_000, 10_000):
        for policy in (Fcfs(None), LongestPrefix(LongestPrefix.Options())):
            times_us = measure_queue(num_waiting, policy)
            median, p90 = statistics.median(times_us), times_us[int(len(times_us) * 0.9)]
            print(f"{num_waiting:>7} {type(policy).__name__:>14} {median:>10.1f} {p90:>8.1f}")


if __name__ == "__main__":
    main()
