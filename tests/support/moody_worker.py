"""Moody: a worker whose second rank crashes, hangs or refuses as it is told. Needs no torch."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from dovetail.errors import ConfigError, RequestError
from dovetail.interfaces.data.spec import RunSpec
from dovetail.interfaces.data.step import KVLayer, KVLayout, StepPlan, StepResult
from dovetail.interfaces.executor import Preparation
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.worker import Worker

LAYER = KVLayer(name="a", num_kv_heads=1, head_size=8, dtype="float32")
CRASH, HANG = 7, 8
"""Numbers of steps that the second rank crashes or hangs in."""


class Moody(Worker):
    """Imports no torch; its second rank does what a step's number or a level says."""

    info = Info(summary="test worker: its second rank misbehaves", devices=("cpu",))
    capabilities = frozenset({"sleep"})

    def __init__(self, options: Any, run: RunSpec) -> None:
        self.is_second = run.rank.rank == 1

    def load(self) -> None:
        pass

    def kv_layers(self) -> Sequence[KVLayer]:
        return (LAYER,)

    def free_bytes(self) -> int:
        return 100 if self.is_second else 200

    def allocate(self, layout: KVLayout) -> None:
        if self.is_second and layout.num_blocks == CRASH:
            raise ConfigError("seven blocks are too few.")
        if layout.num_blocks == CRASH:
            time.sleep(60)

    def step(self, plan: StepPlan) -> StepResult:
        if self.is_second and plan.step_id == CRASH:
            raise ValueError("no luck")
        if plan.step_id in (CRASH, HANG):
            time.sleep(60)
        return StepResult(step_id=plan.step_id, rows=())

    def prepare(self, item: Preparation) -> None:
        if self.is_second:
            raise RequestError("the second rank cannot load this.")

    def sleep(self, level: int) -> None:
        if self.is_second:
            raise RequestError(f"no sleep at level {level}.")
