"""DeviceWorker: the common part of all workers; a subclass knows its device's memory.

Torch and the runner are imported when a worker is created, so importing this module is cheap.
"""

from __future__ import annotations

import gc
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from dovetail.errors import ConfigError, RequestError
from dovetail.imports import large_imports
from dovetail.interfaces.data.adapter_spec import AdapterFacts
from dovetail.interfaces.data.spec import RunSpec
from dovetail.interfaces.data.step import CachedLayer, KVLayout, StepPlan, StepResult
from dovetail.interfaces.executor import PendingStep, Preparation
from dovetail.interfaces.worker import Worker
from dovetail.registry.blame import blaming
from dovetail_kernels.spans import span
from dovetail_plugins.device_workers import profiler

if TYPE_CHECKING:
    import torch

    from dovetail.runner.device import DeviceCalls
    from dovetail.runner.model_runner import ModelRunner
    from dovetail_plugins.device_workers.new_weights import NewWeights
    from dovetail_plugins.device_workers.sleep import RunnerSleep
    from dovetail_plugins.weight_transfer.receiver import Receiver

RUNNING = ("keep", "abort")
"""What becomes of running requests when weights are replaced: they keep their cache, or end."""


class DeviceWorker(Worker):
    """One ModelRunner on one device, driven by one thread."""

    capabilities = frozenset({"kv_connector", "sleep", "stages", "swap"})

    def __init__(self, options: Any, run: RunSpec) -> None:
        self.options = options
        self.run = run
        with large_imports():  # the first use of torch
            self.device = self._open_device()
        self._set_threads()
        self._runner: ModelRunner | None = None
        self._sleep: RunnerSleep | None = None
        self._weights: NewWeights | None = None
        self._received: Receiver | None = None

    @abstractmethod
    def _open_device(self) -> torch.device:
        """Return the device of this rank, made current. Raises: ConfigError"""

    def _device_calls(self) -> DeviceCalls | None:
        """Return the calls to this device beyond torch's operators; None: the default for its torch
        device type (see runner.device)."""
        return None

    def _set_threads(self) -> None:
        import torch

        if self.run.num_threads > 0:
            torch.set_num_threads(self.run.num_threads)

    @property
    def runner(self) -> ModelRunner:
        """Return the runner; the model must be loaded."""
        assert self._runner is not None, "load() comes first, and nothing after shutdown()"
        return self._runner

    def load(self) -> None:
        """Build the model and fill its weights. Raises: ConfigError naming the file at fault."""
        with large_imports():
            from dovetail.runner.model_runner import ModelRunner

        with blaming("loading the model"):
            runner = ModelRunner(self.run, self.device, self._device_calls())
            runner.load()
        self._runner = runner

    def kv_layers(self) -> Sequence[CachedLayer]:
        """Return what the model's attention layers cache, in layer order."""
        return self.runner.kv_layers()

    def allocate(self, layout: KVLayout) -> None:
        """Create the KV tensors and the row state, and run a warm-up."""
        if layout.num_blocks < 1:
            raise ConfigError(
                "not one block of KV cache fits into the memory that is left.",
                where="--gpu-memory-utilization",
                fix="raise it, or use a smaller model or context.",
            )
        with blaming("creating the KV cache"):
            self.runner.allocate(layout)
        with blaming("the first step, which warms the model up,"):
            self.runner.warm_up()
        self.runner.open()
        self._warm_up_profiler()
        self._sleep = self._new_sleep(layout)

    def step(self, plan: StepPlan) -> StepResult:
        """Run one step."""
        with _step_span(plan):
            return self.runner.step(plan)

    def begin(self, plan: StepPlan) -> PendingStep:
        """Queue a step on the device."""
        with _step_span(plan):
            return self.runner.begin(plan)

    def learn(self, result: StepResult) -> None:
        """Record the tokens that the last stage drew in a step begun here."""
        self.runner.learn(result)

    def prepare(self, item: Preparation) -> AdapterFacts | None:
        """Load a constraint, read an adapter or load blocks. Raises: RequestError"""
        return self.runner.prepare(item)

    def get_ready_to_profile(self) -> None:
        """Create the folder for traces. Raises: RequestError"""
        profiler.get_ready(self.run)

    def start_profile(self) -> None:
        """Start to profile this rank. Raises: RequestError"""
        profiler.start(self.run, self.device)

    def stop_profile(self) -> str:
        """Stop to profile this rank; return the path of its trace. Raises: RequestError"""
        return profiler.stop(self.run)

    def read_weights(
        self, *, path: str, version: str = "", running: str = RUNNING[0], key: str = ""
    ) -> None:
        """Read the weights in a folder, or in a memory file with a key, next to those in use.
        Raises: RequestError"""
        if running not in RUNNING:
            fix = f"use one of: {', '.join(RUNNING)}."
            raise RequestError(f'"{running}" is none of them.', where="running", fix=fix)
        if self._sleep is not None and self._sleep.is_asleep:
            raise RequestError("the engine is asleep.", fix="wake it up first.", status=409)
        self._new_weights().read(path, key)

    def update_weights(
        self, *, path: str, version: str = "", running: str = RUNNING[0], key: str = ""
    ) -> dict[str, str]:
        """Use what `read_weights` has read; return path and version. Raises: RequestError"""
        self._new_weights().use(path)
        return {"path": path, "version": version}

    def drop_weights(self) -> None:
        """Drop what `read_weights` has read."""
        self._new_weights().drop()

    def join_weight_group(
        self,
        *,
        name: str,
        address: str,
        port: int,
        world_size: int,
        backend: str | None = None,
        timeout_s: float = 60.0,
        offset: int = 1,
        ticket: str = "",
        members: int = 1,
    ) -> None:
        """Join a trainer's process group (see weight_transfer.group) with all `members`, the ranks
        that get the same ticket. Raises: RequestError"""
        from dovetail_plugins.weight_transfer.group import Meeting

        meeting = Meeting(
            name=name,
            address=address,
            port=port,
            world_size=world_size,
            backend=backend or ("nccl" if self.device.type == "cuda" else "gloo"),
            timeout_s=timeout_s,
        )
        self._receiver().join(meeting, offset, ticket, members)

    def weight_groups(self) -> dict[str, int]:
        """Return the groups that this rank has joined by name, with their `members`."""
        return {} if self._received is None else self._received.members()

    def leave_weight_group(self, *, name: str) -> None:
        """Leave a trainer's process group."""
        self._receiver().leave(name)

    def receive_weights(
        self,
        *,
        name: str,
        names: Sequence[str],
        dtypes: Sequence[str],
        shapes: Sequence[Sequence[int]],
        folder: str,
        is_last: bool = True,
    ) -> str:
        """Receive tensors of a group into a new folder, or into that of earlier ones of the same
        update; return its path. Raises: RequestError"""
        from dovetail_plugins.weight_transfer.described import announced_tensors

        announced = announced_tensors(names, dtypes, shapes)
        return self._receiver().receive(name, announced, folder, is_last=is_last)

    def _receiver(self) -> Receiver:
        if self._received is None:
            from dovetail_plugins.weight_transfer.receiver import Receiver

            self._received = Receiver(self.device)
        return self._received

    def _new_weights(self) -> NewWeights:
        if self._weights is None:
            from dovetail_plugins.device_workers.new_weights import NewWeights

            self._weights = NewWeights(self.runner, self._release_memory)
        return self._weights

    def _warm_up_profiler(self) -> None:
        """Warm the profiler up, so that a later one starts without delay."""
        if self.run.profile is not None:
            profiler.warm_up(self.run.profile, self.device)

    def _new_sleep(self, layout: KVLayout) -> RunnerSleep:
        from dovetail_plugins.device_workers.sleep import RunnerSleep

        return RunnerSleep(self.runner, layout, self._release_memory)

    def _release_memory(self) -> None:
        """Return free memory of this process to the system."""
        from dovetail.runner.load.loader import give_memory_back

        give_memory_back()

    def sleep(self, level: int) -> None:
        """Release the memory of the cache and of the weights. Raises: RequestError"""
        assert self._sleep is not None, "allocate() comes first, and nothing after shutdown()"
        self._sleep.sleep(level)

    def wake_up(self, tags: Sequence[str]) -> None:
        """Take the memory again. Raises: RequestError, ConfigError"""
        assert self._sleep is not None, "allocate() comes first, and nothing after shutdown()"
        if "weights" in tags:
            self._sleep.wake_up_weights()
        if "kv_cache" in tags:
            self._sleep.wake_up_cache()

    def shutdown(self) -> None:
        """Release the model and the cache. May be called twice."""
        if self.run.profile is not None:
            profiler.drop()
        if self._sleep is not None:
            self._sleep.close()
        if self._runner is not None:
            self._runner.close()
        self._runner = None
        if self._received is not None:
            self._received.close()
        self._sleep = self._weights = self._received = None
        gc.collect()

    def _largest_step_bytes(self) -> int:
        """Return an upper bound on the memory of the largest step, besides weights and cache.

        Per token about 24 vectors of the hidden size (residual, q, k, v, gate and up of a
        feed-forward layer four times as wide); per row three float32 vectors of logits; and the
        stored media encodings.
        """
        run = self.run
        token_bytes = 24 * run.model.hidden_size * 4
        row_bytes = 3 * run.model.vocab_size * 4
        return run.max_step_tokens * token_bytes + run.max_rows * row_bytes + run.encodings_bytes


def _step_span(plan: StepPlan) -> AbstractContextManager[object]:
    """Return the span that names a step in a profiler's trace."""

    def size() -> str:
        return f"rows: {len(plan.rows)}, tokens: {sum(row.num_tokens for row in plan.rows)}"

    return span("step", size)
