"""Worker: one rank on one device."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from dovetail.errors import RequestError
from dovetail.interfaces.data.adapter_spec import AdapterFacts
from dovetail.interfaces.data.spec import RunSpec
from dovetail.interfaces.data.step import CachedLayer, KVLayout, StepPlan, StepResult
from dovetail.interfaces.executor import DoneStep, PendingStep, Preparation, what_of
from dovetail.interfaces.plugin import Plugin


class Worker(Plugin):
    """Called by an executor in this order: construct, load, kv_layers, free_bytes, allocate, then
    step repeatedly, then shutdown. `why_not(device_type)` says which devices fit."""

    interface_version: ClassVar[int] = 2
    known_capabilities: ClassVar[Mapping[str, str]] = {
        "stages": "may be a stage of a pipeline (RankSpec.num_stages)",
        "overlapped_steps": "begin returns before the step has run, and the next step may start "
        "before this one's result is read",
        "sleep": "supports sleep mode: releases and restores its memory between steps",
        "kv_connector": "keeps blocks in a store and brings them back (StepPlan.block_orders)",
        "swap": "copies KV blocks to host memory and back (StepPlan.swapped_out, swapped_in)",
    }

    @abstractmethod
    def __init__(self, options: Any, run: RunSpec) -> None:
        """Set up the device and threads. Loads nothing yet."""

    @abstractmethod
    def load(self) -> None:
        """Build the model and load its weights. Raises: ConfigError naming the file at fault."""

    @abstractmethod
    def kv_layers(self) -> Sequence[CachedLayer]:
        """Return what the model's attention layers cache, in layer order."""

    @abstractmethod
    def free_bytes(self) -> int:
        """Return the bytes that the KV cache may take besides the weights and the largest step; in
        total the engine uses at most the share `run.memory_share` of the device's memory."""

    @abstractmethod
    def allocate(self, layout: KVLayout) -> None:
        """Create the KV tensors and the row state, and run one warm-up step."""

    @abstractmethod
    def step(self, plan: StepPlan) -> StepResult:
        """Run one step. A fault of one row is reported in its RowResult, not raised."""

    def begin(self, plan: StepPlan) -> PendingStep:
        """Submit a step to the device. The default runs it.

        With `run.async_steps` a worker with the capability "overlapped_steps" gets a step before
        the previous result was read; results are read in the order of the steps.
        """
        return DoneStep(self.step(plan))

    def learn(self, result: StepResult) -> None:
        """Take the tokens that the last stage of a pipeline drew in a step that this worker has
        begun. Called on workers of other stages, before the next step that needs them.
        The default: this worker is on the last stage."""
        raise NotImplementedError(f"{type(self).__name__} knows no pipeline stages")

    def prepare(self, item: Preparation) -> AdapterFacts | None:
        """Load a constraint, an adapter or blocks before a row needs them; return the facts about
        an adapter. May be called by another thread, during a step.

        Blocks are loaded by a thread of their own. Raises: RequestError. The default: none of them
        is supported.
        """
        raise RequestError(f"this worker does not support {what_of(item)}.")

    def sleep(self, level: int) -> None:
        """Release the memory of the KV cache and of the weights; no request is running.

        Level 1 saves the weights in host memory or a file, level 2 discards them. The cache's
        content is lost. Raises: RequestError. The default: this worker cannot sleep.
        """
        raise RequestError("this worker does not support sleep mode.")

    def wake_up(self, tags: Sequence[str]) -> None:
        """Restore the memory of "weights" and "kv_cache", if they are asleep.

        Steps can run again once both are restored. Raises: RequestError, ConfigError; what could
        not be restored stays asleep. The default: this worker cannot sleep.
        """
        raise RequestError("this worker does not support sleep mode.")

    def shutdown(self) -> None:
        """Release memory and threads. May be called twice."""
