"""ModelRunner: turns a StepPlan into tensors, a forward pass, and a StepResult.

Owns the rows, the KV tensors and the features (parts) of one rank. On an asynchronous device, a
step may begin before the previous one is read: the tokens drawn there stay on the device.
Independent of the request queue and of text; a fault of one row is reported in that row's result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from dovetail import registry
from dovetail.errors import RequestError
from dovetail.interfaces.attention import AttentionBackend
from dovetail.interfaces.data.adapter_spec import AdapterFacts
from dovetail.interfaces.data.spec import RunSpec
from dovetail.interfaces.data.step import CachedLayer, KVLayout, StepPlan, StepResult
from dovetail.interfaces.executor import Preparation, what_of
from dovetail.interfaces.model import Model
from dovetail.layers.attention.other_dtype import in_dtype
from dovetail.layers.attention.paged import attention_layers, step_layers
from dovetail.layers.kept import kept_layers
from dovetail.layers.native import use_ops
from dovetail.parallel.context import over_ranks
from dovetail.runner import measure
from dovetail.runner.device import DeviceCalls, calls_of
from dovetail.runner.forward_passes import ForwardPasses
from dovetail.runner.kv.allocation import cache_tensors
from dovetail.runner.load.loader import load_model
from dovetail.runner.load.offloaded_memory import offload
from dovetail.runner.measure import PeakOf
from dovetail.runner.parts import Parts, ending_of, parts_of
from dovetail.runner.replay import warm_up
from dovetail.runner.step.allocated import Allocated
from dovetail.runner.step.pending_steps import PendingStep, PendingSteps
from dovetail.runner.step.step_reader import BegunStep, StepReader
from dovetail_kernels.spans import span


class ModelRunner:
    """Call in this order: load, kv_layers, allocate, then step repeatedly; from one thread."""

    def __init__(
        self, run: RunSpec, device: torch.device, calls: DeviceCalls | None = None
    ) -> None:
        self.run = run
        self.device = device
        self._calls = calls or calls_of(device)
        self._max_ahead = int(run.async_steps and self._calls.runs_ahead)
        self._pending_steps = PendingSteps()
        self._reader = StepReader()
        use_ops(run.ops)
        backend: AttentionBackend = registry.make(run.attention)
        self._own_backend = in_dtype(backend, run.attention_dtype, run.model.dtype)
        self._ending = ending_of(run, device, self._calls)
        self.parts = Parts(parts_of(run, device, self._calls, self._ending))
        self._ending.around_vectors = self.parts.around_rows
        self.passes = ForwardPasses(run, device, self._calls, self.parts, self._ending)
        self._inner: dict[int, torch.Tensor | None] = {}

    def load(self) -> None:
        """Build the model and fill its weights. Raises: ConfigError. Mutates: self"""
        for part in self.parts:
            part.start()
        self._backend = over_ranks(self._own_backend, self.run.rank)
        self._loaded = replace(load_model(self.run, self.device), inner=self._inner)
        for part in self.parts:
            part.attach(self._loaded)
        self.passes.attach(self._loaded, self._backend)
        self._attention = attention_layers(self._loaded.module)
        measure.set_given_scales(self._attention, self.run)
        self._layers = kept_layers(self._loaded.module, self.run)

    def close(self) -> None:
        """Stop all background work. May be called twice."""
        for part in self.parts:
            part.close()

    @property
    def model(self) -> Model:
        """Return the model, a torch module. Requires `load`."""
        return self._loaded.model

    def weights(self) -> list[torch.Tensor]:
        """Return all tensors of the model and the parts."""
        module = self._loaded.module
        own = [tensor for part in self.parts for tensor in part.weights()]
        return [*module.parameters(), *module.buffers(), *own]

    def kv_layers(self) -> Sequence[CachedLayer]:
        """Return what the layers cache, in layer order, then the parts."""
        return [*self._layers, *(layer for part in self.parts for layer in part.layers())]

    def allocate(self, layout: KVLayout) -> None:
        """Create KV tensors, rows and sampling state. Raises: ConfigError. Mutates: self"""
        self.allocated = Allocated(
            self.run,
            layout,
            self._backend,
            self.device,
            self._calls,
            layers=self._layers,
            step_layers=step_layers(self._attention, self.run),
        )
        for part in self.parts:
            self.allocated.processors.update(part.processors())
        for part in self.parts:
            part.allocate(self.allocated)
        self.passes.allocate(self.allocated)

    def warm_up(self) -> None:
        """Run a short prompt and two draws on row 0, or one token if the weights take long to read,
        then empty it; capture graphs. Mutates: self

        KV-cache scales that need measuring are decided first.
        """
        run, layout = self.run, self.allocated.layout
        num_tokens = warm_up.most_tokens(layout, run)
        if num_tokens < 1:
            return
        if run.kv_steps is not None:
            with self.passes.undivided():
                measure.decide_scales(self._attention, run.kv_steps, self.step, layout, run)
        ahead, size = self._calls.runs_ahead, sum(one.nbytes for one in self.weights())
        is_brief = size >= warm_up.LARGE_BYTES and not ahead
        num_tokens = 1 if is_brief else num_tokens
        draws = not run.pooling and not is_brief
        read = warm_up.read_by_encoder(layout, run.model.hidden_size)
        for plan in warm_up.first_steps(layout, num_tokens, read, is_compiling=ahead, draws=draws):
            self.step(plan)
            self._ending.make_up(plan.step_id)
        self._ending.warm_up()
        self._reader.forget_last()
        self.passes.warm_up()

    def open(self) -> None:
        """Prepare for the first request; the runner is warm. Raises: ConfigError"""
        for part in self.parts:
            part.open()

    def prepare(self, item: Preparation) -> AdapterFacts | None:
        """Load what a row will need; another thread may call this. Raises: RequestError"""
        for part in self.parts:
            if isinstance(item, part.prepares):
                return part.prepare(item)
        raise RequestError(f"this engine runs without {what_of(item)}.")

    def largest_step_bytes(self, peak_of: PeakOf) -> int:
        """Return the memory of a largest step besides weights and cache, including graphs.

        The runner must be allocated (again) afterwards. Mutates: self
        """
        layout, plan = measure.largest_step(self._layers, self._backend, self.run, self._draft)
        self.allocate(layout)
        passes = self.passes
        peak = measure.peak_bytes(lambda: self.step(plan), passes.compiled, passes.graphs, peak_of)
        self.release()
        return peak

    def _draft(self, num_blocks: int) -> KVLayout | None:
        """Return the layout of the parts' own layers, if they have any."""
        layouts = (part.own_layout(num_blocks) for part in self.parts)
        return next(filter(None, layouts), None)

    def release(self) -> None:
        """Release cache, rows and graphs, so that `allocate` can run again. Mutates: self"""
        self._pending_steps.resolve_all_but(0)
        self.passes.release()
        caches = [tensor for part in self.parts for tensor in part.release()]
        caches += cache_tensors(self.allocated.caches)
        offload(caches, keeps=False)  # an allocator may hold on to freed memory
        del self.allocated

    def step(self, plan: StepPlan) -> StepResult:
        """Run one plan. Mutates: rows, KV cache, sampling state"""
        return self.begin(plan).result()

    @torch.inference_mode()
    def begin(self, plan: StepPlan) -> PendingStep:
        """Queue a step on the device. If steps run ahead, the previous one may still be unread; its
        draws are read first if this step depends on them.

        Mutates: rows, KV cache, sampling state
        """
        self._pending_steps.resolve_all_but(self._max_ahead)
        for part in self.parts:
            part.before(plan)
        self._update_rows(plan)
        for part in self.parts:
            part.follow(plan)
        if self._pending_steps and self._must_know(plan):
            self._pending_steps.resolve_all_but(0)
        if not plan.rows:
            self.passes.idle()
            for part in self.parts:
                part.idle(plan)
            return self._pending_steps.start(lambda: StepResult(step_id=plan.step_id, rows=()))
        step = self._begin(plan)
        return self._pending_steps.start(lambda: self._reader.read(step))

    def _must_know(self, plan: StepPlan) -> bool:
        """Return whether the host must know all tokens before the step: a part must, or the model
        looks at rows."""
        looks = "needs_host_rows" in self.model.capabilities
        return looks or any(part.must_know(plan) for part in self.parts)

    def _begin(self, plan: StepPlan) -> BegunStep:
        """Queue the step's work. Mutates: rows, KV cache, sampling state"""
        inputs = self.allocated.batch.gather(plan)
        for part in self.parts:
            part.begin(inputs)
        sampling = np.flatnonzero(inputs.samples)
        begun = self._calls.mark()
        with self.parts.around(inputs), span("forward"):
            computed = self.passes.run(inputs, sampling)
        step = BegunStep(
            step_id=plan.step_id,
            inputs=inputs,
            sampling=sampling,
            begun=begun,
            computed=self._calls.mark(),
            is_divided=computed.is_divided,
        )
        self._ending.end(step, computed)
        for part in self.parts:
            part.after(step, computed)
        step.ended = self._calls.mark()
        return step

    def learn(self, result: StepResult) -> None:
        """Record the tokens that the last stage drew in a step begun here. Mutates: rows"""
        self._ending.learn(result)

    def _update_rows(self, plan: StepPlan) -> None:
        """Free rows, then fill the new ones. Mutates: self"""
        batch = self.allocated.batch
        for row in plan.freed_rows:
            for part in self.parts:  # while the row still has its tokens
                part.free_row(row)
            batch.free_row(row)
        for new in plan.new_rows:
            batch.add_row(new)
            for part in self.parts:
                part.add_row(new)
            size = self.run.model.vocab_size + sum(part.added_tokens(new) for part in self.parts)
            foreign = batch.sanitize_row(new.row, size)
            if foreign is not None:
                fault = f"token id {foreign} is outside the vocabulary"
                self._ending.mark_failed(new.row, fault)
