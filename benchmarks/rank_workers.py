"""Workers of `benchmarks.ranks`: ranks load this file by its path, so it imports no benchmark."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from dovetail.interfaces.data.spec import RunSpec
from dovetail.interfaces.data.step import KVLayer, KVLayout, RowResult, StepPlan, StepResult
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.worker import Worker
from dovetail.parallel.groups import stage_after, stage_before
from dovetail_testing.stage_worker import StageWorker

SLEEP_S = 0.01


class PlainWorker(Worker):
    """Has no model: a step keeps its core busy for a while and gives every row a token."""

    info = Info(summary="benchmark worker: no model", devices=("cpu",))

    def __init__(self, options: Any, run: RunSpec) -> None:
        self.step_s = float(run.load_options.get("step_us", 0)) * 1e-6

    def load(self) -> None:
        """Load nothing."""

    def kv_layers(self) -> Sequence[KVLayer]:
        """Return nothing."""
        return ()

    def free_bytes(self) -> int:
        """Return nothing."""
        return 0

    def allocate(self, layout: KVLayout) -> None:
        """Allocate nothing."""

    def step(self, plan: StepPlan) -> StepResult:
        """Return a token a row, drawn when the computing is over; `forward_s` is all the time that
        this took."""
        started_s = time.perf_counter()
        while time.perf_counter() - started_s < self.step_s:
            pass
        rows = tuple(RowResult(row=row.row, token_ids=(row.start,)) for row in plan.rows)
        took_s = time.perf_counter() - started_s
        return StepResult(step_id=plan.step_id, rows=rows, forward_s=took_s)


class SleepyStage(StageWorker):
    """A stage that sleeps instead of computing, so that a busy machine does not disturb it."""

    def step(self, plan: StepPlan) -> StepResult:
        """Sleep between what comes and what goes."""
        if self._rank.stage:
            stage_before().receive(torch.zeros(16, 1024))
        time.sleep(SLEEP_S)
        result = super().step(plan)
        if not self._rank.is_last_stage:
            stage_after().send(torch.ones(16, 1024))
        return result
