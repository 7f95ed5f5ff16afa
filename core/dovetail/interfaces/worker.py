"""Worker: one rank's life on one device."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from dovetail.errors import RequestError
from dovetail.interfaces.guided import Guide
from dovetail.interfaces.plugin import Plugin
from dovetail.interfaces.spec import RunSpec
from dovetail.interfaces.step import KVLayer, KVLayout, StepPlan, StepResult


class Worker(Plugin):
    """Called by an executor in this order: construct, load, kv_layers, free_bytes, allocate,
    then step again and again, then shutdown. `why_not(device_type)` says which devices fit."""

    interface_version: ClassVar[int] = 1

    @abstractmethod
    def __init__(self, options: Any, run: RunSpec) -> None:
        """Set the device and threads up. Loads nothing yet."""

    @abstractmethod
    def load(self) -> None:
        """Build the model and fill its weights. Raises: ConfigError naming the file at fault."""

    @abstractmethod
    def kv_layers(self) -> Sequence[KVLayer]:
        """Return what the model's attention layers cache, in layer order."""

    @abstractmethod
    def free_bytes(self) -> int:
        """Return the bytes free for the KV cache once weights and a largest step are in place."""

    @abstractmethod
    def allocate(self, layout: KVLayout) -> None:
        """Create the KV tensors and the row state, and run one warm-up step."""

    @abstractmethod
    def step(self, plan: StepPlan) -> StepResult:
        """Run one step. A fault of one row is reported in its RowResult, not raised."""

    def prepare(self, guide: Guide) -> None:
        """Load a form before a row needs it. May be called by a thread of its own, beside a step.

        Raises: RequestError. The default: this worker holds no answer to a form.
        """
        raise RequestError("this worker holds no answer to a form.")

    def shutdown(self) -> None:
        """Give memory and threads back. May be called twice."""
