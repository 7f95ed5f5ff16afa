"""Engines that share experts: an idle one runs as many steps as the busy one, and both end."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dovetail.engine.core import EngineCore
from dovetail.engine.messages import EngineRequest
from dovetail.engine.parts import steps_together
from dovetail.engine.parts.steps_together import StepsTogether
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.data.spec import EngineSpec, Selection
from dovetail.interfaces.data.step import StepPlan, StepResult
from dovetail.interfaces.executor import PendingStep
from dovetail_testing.fakes.engine import FakeExecutor, fake_spec
from support.inside import executor_of

LIMIT_S = 10.0
PLAN = StepPlan(step_id=1, rows=())
meeting = threading.Barrier(2, timeout=LIMIT_S)


class Meeting(FakeExecutor):
    """A fake whose steps wait for those of the other engine, as an exchange of tokens does."""

    def submit(self, plan: StepPlan) -> PendingStep:
        """Count it, and hand it over."""
        self.num_steps = getattr(self, "num_steps", 0) + 1
        pending = super().submit(plan)

        class Waiting:
            def result(self) -> StepResult:
                meeting.wait()
                return pending.result()

        return Waiting()


def spec_of(folder: Path, place: int, *, async_steps: bool) -> EngineSpec:
    spec = fake_spec(async_steps=async_steps)
    rank = msgspec.structs.replace(spec.run.rank, data_rank=place, data_size=2)
    run = msgspec.structs.replace(spec.run, rank=rank, engines_folder=str(folder))
    executor = Selection(kind="executor", name="m", target=f"{__file__}:Meeting")
    return msgspec.structs.replace(spec, run=run, executor=executor)


def request(name: str, num_tokens: int) -> EngineRequest:
    params = SamplingParams(max_tokens=num_tokens, ignore_eos=True)
    return EngineRequest(request_id=name, prompt_ids=(65, 66, 67), sampling=params, seed=1)


def serve(core: EngineCore, arrivals: Sequence[tuple[float, EngineRequest]]) -> dict[str, int]:
    """Be an engine's loop until it is over; return how many tokens each request got."""
    counts: dict[str, int] = {}
    started_s, waiting = time.monotonic(), list(arrivals)
    while waiting or core.has_work or time.monotonic() < started_s + 0.3:
        while waiting and time.monotonic() - started_s >= waiting[0][0]:
            core.add(waiting.pop(0)[1])
        if core.has_work:
            for update in core.step().updates:
                done = counts.get(update.request_id, 0)
                counts[update.request_id] = done + len(update.token_ids)
        else:
            time.sleep(core.idle_wake_s)
    core.leave()
    return counts


@pytest.mark.parametrize("async_steps", [False, True])
def test_an_idle_engine_runs_the_steps_that_others_need(tmp_path: Path, async_steps: bool) -> None:
    steps_together.create(tmp_path, 2)
    cores: list[Any] = [EngineCore(spec_of(tmp_path, p, async_steps=async_steps)) for p in (0, 1)]
    arrivals = (
        [(0.0, request("a", 9)), (0.2, request("c", 5))],
        [(0.05, request("b", 4)), (0.1, request("d", 12))],
    )
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(serve, cores, arrivals))
    assert found == [{"a": 9, "c": 5}, {"b": 4, "d": 12}]
    steps = [executor_of(core).num_steps for core in cores]
    assert steps[0] == steps[1] > 12
    assert all(core.num_steps < steps[0] for core in cores), "steps along count for nobody"
    for core in cores:
        core.shutdown()
        core.shutdown()


def test_an_engine_that_ends_does_not_wait_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps_together, "LEAVE_LIMIT_S", 0.1)
    steps_together.create(tmp_path, 2)
    core = EngineCore(spec_of(tmp_path, 0, async_steps=False))
    started_s = time.monotonic()
    core.leave()
    assert 0.1 <= time.monotonic() - started_s < 2.0
    core.shutdown()


def test_counts_say_who_owes_a_step(tmp_path: Path) -> None:
    steps_together.create(tmp_path, 3)
    first, second, third = (StepsTogether(tmp_path, place, 3) for place in range(3))
    assert not any(one.has_work for one in (first, second, third))
    second.complete(PLAN)
    assert [one.has_work for one in (first, second, third)] == [True, False, True]
    first.complete(PLAN)
    for one in (first, second, third):
        assert not one.is_over
        one.announce_leave()
    assert first.is_over and second.is_over and not third.is_over
    third.complete(PLAN)
    assert third.is_over
    for one in (first, second, third):
        one.close()
        one.close()
