"""Executor: starts workers, keeps steps in order, tells when one died, leaves nothing behind."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from dovetail.errors import EngineDead
from dovetail.interfaces.executor import Executor, PendingStep
from dovetail.interfaces.spec import RunSpec
from dovetail.interfaces.step import RowResult, StepPlan, StepResult
from dovetail.testing.contract import device_of, requires
from dovetail.testing.running import Rows, layout_for, run_spec, worker_selection

PROMPT = [3, 1, 4, 1, 5]
LEAVE_S = 5.0
DELAY_S = 0.5


def started(plugin: Any, run: RunSpec) -> tuple[Executor, Rows]:
    """Return an executor through its whole start, and rows on it."""
    executor: Executor = plugin(plugin.Options(), run, worker_selection(run.device))
    layout = layout_for(executor.kv_layers())
    executor.allocate(layout)
    return executor, Rows(lambda plan: executor.submit(plan).result(), len(layout.groups))


@pytest.fixture
def executor(plugin: Any) -> Iterator[Executor]:
    """Return a started executor over the tiny transformer."""
    made, _ = started(plugin, run_spec(device_of(plugin)))
    yield made
    made.shutdown()


def crashing(plugin: Any) -> RunSpec:
    """Return the spec of a model that raises in its second step."""
    scripts = [{"tokens": [7, 8], "crash_at": 1}]
    return run_spec(device_of(plugin), scripts=scripts)


class TestExecutor:
    """Clauses of executors."""

    kind = "executor"

    def test_runs_steps(self, executor: Executor) -> None:
        """A started executor has memory, answers steps, and is alive."""
        assert executor.free_bytes() > 0
        rows = Rows(lambda plan: executor.submit(plan).result())
        rows.add(0, PROMPT)
        assert len(rows.generate([0], 3)[0]) == 3
        executor.check()

    def test_keeps_the_order(self, executor: Executor) -> None:
        """Results belong to their plans, in the order of submission."""
        pending = [executor.submit(StepPlan(step_id=number, rows=())) for number in range(8)]
        assert [step.result().step_id for step in pending] == list(range(8))

    def test_two_executors_agree(self, plugin: Any, executor: Executor) -> None:
        """Two executors in one process draw the same tokens and do not collide."""
        second, others = started(plugin, run_spec(device_of(plugin)))
        rows = Rows(lambda plan: executor.submit(plan).result())
        rows.add(0, PROMPT)
        others.add(0, PROMPT)
        assert rows.generate([0], 3) == others.generate([0], 3)
        second.shutdown()
        executor.check()

    @requires("async_steps")
    def test_submit_returns_at_once(self, plugin: Any) -> None:
        """With async_steps a plan can be handed over before the previous result was read."""
        slow = [{"tokens": [7, 8], "delay_s": DELAY_S}]
        run = run_spec(device_of(plugin), scripts=slow, async_steps=True)
        executor, _ = started(plugin, run)
        pending: list[PendingStep] = []

        def submit(plan: StepPlan) -> StepResult:
            pending.append(executor.submit(plan))
            waiting = tuple(RowResult(row=step.row) for step in plan.rows)
            return StepResult(step_id=plan.step_id, rows=waiting)

        rows = Rows(submit)
        rows.add(0, PROMPT)
        start_s = time.perf_counter()
        rows.step({0: None})
        assert time.perf_counter() - start_s < DELAY_S / 2
        assert pending[0].result().rows[0].token_ids == (7,)
        executor.shutdown()

    def test_death_is_told(self, plugin: Any) -> None:
        """After a step that broke the worker every call says so, and callbacks were called."""
        executor, rows = started(plugin, crashing(plugin))
        told: list[str] = []
        executor.on_death(told.append)
        rows.add(0, PROMPT)
        rows.step({0: None})
        with pytest.raises(EngineDead):
            rows.step({0: None})
        with pytest.raises(EngineDead):
            executor.check()
        assert len(told) == 1
        executor.shutdown()

    def test_shutdown_leaves_nothing(self, plugin: Any) -> None:
        """Twice shut down, it has no thread, process or open pipe left."""
        me = psutil.Process()
        gc.collect()
        before = threading.active_count(), len(me.children(recursive=True))
        run = run_spec(device_of(plugin), async_steps=True)
        executor, _ = started(plugin, run)
        executor.shutdown()
        executor.shutdown()
        deadline_s = time.monotonic() + LEAVE_S
        while time.monotonic() < deadline_s:
            after = threading.active_count(), len(me.children(recursive=True))
            if after <= before:
                return
            time.sleep(0.05)
        assert after <= before

    def test_calls_after_shutdown_raise(self, plugin: Any) -> None:
        """A submit after shutdown is an EngineDead, not a hang."""
        executor, rows = started(plugin, run_spec(device_of(plugin)))
        executor.shutdown()
        rows.add(0, PROMPT)
        with pytest.raises(EngineDead):
            rows.step({0: None})
