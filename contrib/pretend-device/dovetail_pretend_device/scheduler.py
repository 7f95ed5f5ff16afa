"""BucketScheduler: dovetail's continuous scheduler, for a device with a few sizes of steps.

It names each step's size in the plan and counts the padding that the worker reports.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from dovetail.interfaces.data.schedule_spec import ScheduleSpec
from dovetail.interfaces.data.step import StepPlan, StepResult
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.scheduler import KVCache, RequestState
from dovetail.interfaces.scheduling_policy import SchedulingPolicy
from dovetail_plugins.schedulers.continuous import ContinuousScheduler
from dovetail_pretend_device.buckets import BUCKET, PADDING, bucket_of


class BucketScheduler(ContinuousScheduler):
    """Plans as its base does. `num_planned` tokens, and `num_padding` beside them, so far."""

    interface_version = 1
    info = Info(summary="continuous batching in steps of a few sizes")

    def __init__(
        self, options: Any, spec: ScheduleSpec, cache: KVCache, policy: SchedulingPolicy
    ) -> None:
        super().__init__(options, spec, cache, policy)
        self.num_planned = 0
        self.num_padding = 0

    def plan(self) -> StepPlan:
        """Return the next step with its size."""
        made = super().plan()
        if not made.rows:
            return made
        return msgspec.structs.replace(made, extra={BUCKET: bucket_of(made.num_tokens)})

    def update(self, plan: StepPlan, result: StepResult) -> Sequence[RequestState]:
        """Record a result and its padding. Mutates: self"""
        self.num_planned += plan.num_tokens
        self.num_padding += int(result.extra.get(PADDING, 0))
        return super().update(plan, result)
