"""What a step costs outside the forward pass: plan, update, messages, text. No model runs.

`python benchmarks/engine_overhead.py` prints microseconds per decode step at 1, 8 and 32 rows, for
the engine core alone (an executor that answers at once) and for an engine process with its API
process, where the time between two steps also holds both ends of the socket and detokenizing.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from dovetail import registry
from dovetail.engine.client.async_engine import AsyncEngine
from dovetail.engine.client.requests.input_processor import InputProcessor, load_tokenizer
from dovetail.engine.client.text.vocabularies import Vocabularies
from dovetail.engine.core import EngineCore
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.data.spec import EngineSpec
from dovetail.interfaces.data.step import RowResult, StepPlan, StepResult
from dovetail_testing.fakes.engine import FakeExecutor, fake_spec

NUM_TOKENS = 500
LETTER = ord("a")


class InstantExecutor(FakeExecutor):
    """Answers every sampling row with one letter; knows no rows."""

    def _run(self, plan: StepPlan) -> StepResult:
        started_s = time.perf_counter()
        rows = tuple(
            RowResult(row=step.row, token_ids=(LETTER,) if step.samples else ())
            for step in plan.rows
        )
        # Its own time is told as forward time, so that it can be taken off.
        return StepResult(
            step_id=plan.step_id, rows=rows, forward_s=time.perf_counter() - started_s
        )


def bench_spec() -> EngineSpec:
    """Return fakes around the real scheduler and policy."""
    spec = fake_spec(
        num_blocks=4096,
        block_tokens=16,
        max_step_tokens=512,
        max_model_tokens=1024,
        checks_invariants=False,
    )
    executor = msgspec.structs.replace(spec.executor, target=f"{__file__}:InstantExecutor")
    return msgspec.structs.replace(
        spec,
        executor=executor,
        scheduler=registry.choose("scheduler", "continuous"),
        policy=registry.choose("scheduling_policy", "fcfs"),
    )


def core_step_us(num_rows: int) -> float:
    """Return the median microseconds of a decode step of `num_rows` rows, executor excluded."""
    spec = bench_spec()
    core = EngineCore(spec)
    inputs = InputProcessor(spec, Vocabularies(spec, load_tokenizer(spec)))
    for i in range(num_rows):
        params = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True)
        core.add(inputs.prepare("a prompt", params, str(i), serial=i).requests[0])
    times_s = []
    while core.has_work:
        started_s = time.perf_counter()
        output = core.step()
        spent_s = time.perf_counter() - started_s
        if output.stats is not None and len(output.updates) == num_rows:
            times_s.append(spent_s - output.stats.forward_s)
    return statistics.median(times_s) * 1e6


async def served_step_us(num_rows: int) -> float:
    """Return the mean microseconds per step, from an engine process to deltas in this one."""
    engine = await AsyncEngine.start(bench_spec())
    params = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True)

    async def consume(request_id: str) -> None:
        async for _ in engine.generate("a prompt", params, request_id):
            pass

    await consume("warm-up")
    started_s = time.perf_counter()
    await asyncio.gather(*(consume(str(i)) for i in range(num_rows)))
    spent_s = time.perf_counter() - started_s
    await engine.shutdown()
    return spent_s / NUM_TOKENS * 1e6


def main(argv: Sequence[str]) -> int:
    """Print the table."""
    rows: list[Any] = [int(word) for word in argv] or [1, 8, 32]
    print(f"{'rows':>5} {'core us/step':>14} {'served us/step':>15}")
    for num_rows in rows:
        core_us = core_step_us(num_rows)
        served_us = asyncio.run(served_step_us(num_rows))
        print(f"{num_rows:>5} {core_us:>14.0f} {served_us:>15.0f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
