"""PretendWorker: runs steps padded to one of a few sizes, as a device with compiled shapes does.

The scheduler says in the plan's `extra` which size it planned for; the worker says in the result's
`extra` how much of that was padding. Neither dovetail's schedulers nor its workers look there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from dovetail.interfaces.data.step import StepPlan, StepResult
from dovetail.interfaces.executor import PendingStep
from dovetail.interfaces.plugin import Info
from dovetail_plugins.device_workers.device_worker import DeviceWorker
from dovetail_pretend_device.buckets import BUCKET, PADDING
from dovetail_pretend_device.platform import DEVICE

if TYPE_CHECKING:
    import torch

MEMORY_BYTES = 256 << 20
"""What the device pretends to have for the KV cache."""


class PretendWorker(DeviceWorker):
    """One ModelRunner, whose torch device is the CPU."""

    interface_version = 2
    info = Info(summary="runs a model on the pretend device", devices=(DEVICE,))
    capabilities = frozenset({"sleep"})

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why a device type cannot be served."""
        return [] if query in (None, DEVICE) else [f"runs on {DEVICE}, not on {query}"]

    def _open_device(self) -> torch.device:
        import torch

        return torch.device("cpu")  # a real one: torch.device("npu", self.run.rank.rank)

    def free_bytes(self) -> int:
        """Return the device's memory less that of a largest step."""
        room = int(self.run.memory_share * MEMORY_BYTES) - self._largest_step_bytes()
        return max(0, room)

    def step(self, plan: StepPlan) -> StepResult:
        """Run a step, and tell how much of the planned size was padding."""
        return with_padding(plan, super().step(plan))

    def begin(self, plan: StepPlan) -> PendingStep:
        """Hand a step to the device; its result tells of the padding."""
        return PaddedStep(plan, super().begin(plan))


class PaddedStep:
    """A step under way whose result tells of its padding."""

    def __init__(self, plan: StepPlan, pending: PendingStep) -> None:
        self._plan = plan
        self._pending = pending

    def result(self) -> StepResult:
        """Wait for the result."""
        return with_padding(self._plan, self._pending.result())


def with_padding(plan: StepPlan, result: StepResult) -> StepResult:
    """Return the result with the padding of the planned size, where the plan names one."""
    bucket = plan.extra.get(BUCKET)
    if bucket is None:  # another scheduler's plan
        return result
    padding = int(bucket) - plan.num_tokens
    return msgspec.structs.replace(result, extra={**result.extra, PADDING: padding})
