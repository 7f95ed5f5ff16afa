"""ForwardPasses: runs a runner's model on the tokens of steps.

Small steps are recorded calls or a captured graph, large ones may be divided in halves, and all
others run eagerly. ModelRunner handles plans, an Ending what becomes of the hidden states.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch

from dovetail.interfaces.attention import AttentionBackend, BatchLayout
from dovetail.interfaces.data.spec import RunSpec
from dovetail.interfaces.model import RowView
from dovetail.layers.context import (
    ForwardContext,
    StepAdapters,
    step_adapters,
    step_media,
    use_adapters,
    use_context,
)
from dovetail.runner.device import DeviceCalls
from dovetail.runner.drafts import verify
from dovetail.runner.load.loader import LoadedModel
from dovetail.runner.parts import Parts
from dovetail.runner.replay import warm_up
from dovetail.runner.replay.compiled import CompiledForward, ModelForward
from dovetail.runner.replay.graphs import GraphManager, graph_manager, why_not_captured
from dovetail.runner.replay.halves import HalfStep, StepHalves, divided_step, step_halves
from dovetail.runner.replay.recorded import RecordedForward, recorder_of
from dovetail.runner.replay.timing_passes import choose_forward
from dovetail.runner.rows.batch import StepInputs
from dovetail.runner.rows.layer_groups import StateKeeper
from dovetail.runner.rows.skipped_tokens import NO_TOKENS, drawn_alone, may_leave_out
from dovetail.runner.rows.tensors import DeviceTensors, StepTensors
from dovetail.runner.step.allocated import Allocated
from dovetail.runner.step.part import Ending
from dovetail.runner.step.step_reader import Computed, StepPass


class ForwardPasses:
    """Call in this order: attach, allocate, then run for each step."""

    def __init__(
        self, run: RunSpec, device: torch.device, calls: DeviceCalls, parts: Parts, ending: Ending
    ) -> None:
        self._run, self._device, self._calls = run, device, calls
        self._parts, self._ending = parts, ending
        self.compiled: CompiledForward | None = None
        self.recorded: RecordedForward | None = None
        self.graphs: GraphManager | None = None
        self.halves: StepHalves | None = None

    def attach(self, loaded: LoadedModel, backend: AttentionBackend) -> None:
        """Run a loaded model from now on, which the parts have already. Mutates: self"""
        self._model, self._backend, self._inner = loaded.model, backend, loaded.inner
        self._leaves_out = may_leave_out(self._run, loaded.model)
        looks_in = loaded.inner or loaded.model.capabilities & {"needs_host_rows", "encoder"}
        is_compiled = self._run.compiles and not looks_in
        self.compiled = CompiledForward(loaded.model.forward, self._calls) if is_compiled else None

    def allocate(self, storage: Allocated) -> None:
        """Use these caches and rows from now on. Mutates: self"""
        run, tables, self._made = self._run, storage.batch.tables, storage
        sees_all = bool(storage.step_layers)
        self.halves = step_halves(run, self._calls, self._divided, sees_all=sees_all)
        self.recorded = recorder_of(
            run,
            self._device.type,
            self._forward_own,
            tables,
            self._inner,
            StateKeeper(storage.groups, tables, storage.caches),
            shares_rows=storage.groups.are_of_keys,
        )
        if isinstance(storage.step_tensors, DeviceTensors):
            inner, own = bool(self._inner), (self._forward_eagerly, storage.step_tensors, tables)
            reason = why_not_captured(run, self._backend, self._model, reads_inner=inner)
            self.graphs = graph_manager(run, *own, self._calls, reason)

    def release(self) -> None:
        """Release rows, recorded steps and graphs. Mutates: self"""
        self.halves, self.recorded, self.graphs = None, None, None
        del self._made

    def warm_up(self) -> None:
        """Record likely steps, choose the compiled or the eager pass, and capture graphs.
        Mutates: self"""
        run, recorded = self._run, self.recorded
        if recorded and run.acceptance is not None and run.rank.is_alone:
            recorded.record_ahead(warm_up.AHEAD_S)  # ranks do not share a clock
        if self.compiled:
            captured, tables = (recorded, self.graphs), self._made.batch.tables
            eager = self._forward_eagerly
            choose_forward(self.compiled, run, captured, eager, tables, self._device)
        if self.graphs and not self.graphs.reason:
            with torch.inference_mode():
                self.graphs.forget()
                self.graphs.capture()

    @contextmanager
    def undivided(self) -> Iterator[None]:
        """Run all steps in a with block whole. Mutates: self, until its end"""
        halves, self.halves = self.halves, None
        try:
            yield
        finally:
            self.halves = halves

    def idle(self) -> None:
        """Take part in a step without rows."""
        if self.halves:
            self.halves.abstain()

    def run(self, inputs: StepInputs, sampling: np.ndarray) -> Computed:
        """Run the model on a step's tokens. Shapes: sampling [S] indices of rows"""
        step = StepPass(
            inputs=inputs,
            sampling=sampling,
            after=verify.drawn_after(inputs, sampling),
            second_text=self._ending.second_text,
            adapters=step_adapters(),
            has_media=step_media() is not None,
        )
        for way in (self.halves, self.recorded, self.graphs):
            if way and (computed := way.take(step)):
                return computed
        return self._eagerly(step)

    def _eagerly(self, step: StepPass) -> Computed:
        """Run a whole step from Python."""
        placed, read = self._placed(step), self._read(step)
        tensors = placed.token_ids, placed.positions, placed.layouts
        hidden = self._forward_eagerly(*tensors, self._made.batch.views(step.inputs), read)
        return Computed(hidden=hidden, drawn_after=placed.drawn_after, drawn_rows=placed.drawn_rows)

    def _divided(self, step: StepPass, cut: int) -> Computed:
        """Run a step in two halves; the second begins with the token `cut`."""
        placed, around = self._placed(step), self._parts.around
        text, read = step.second_text, self._read(step)
        halves = divided_step(step.inputs, cut, placed, second_text=text, read=read, around=around)
        assert self.halves is not None
        hidden = self.halves.run(self._forward_half, halves)
        for number in self._inner:
            self._inner[number] = torch.cat([half.inner[number] for half in halves])
        return Computed(
            hidden=hidden,
            drawn_after=placed.drawn_after,
            drawn_rows=placed.drawn_rows,
            is_divided=True,
        )

    def _placed(self, step: StepPass) -> StepTensors:
        """Return a step's tensors. Mutates: the states of its drafts"""
        placed = self._made.step_tensors.place(step.inputs, step.after)
        placed.layouts = self._made.draft_states.laid(step.inputs, placed.layouts)
        return placed

    def _read(self, step: StepPass) -> np.ndarray | None:
        """Return the tokens whose hidden states are needed, None: all. Shapes: [S]"""
        is_plain = not (step.has_media or step.adapters)
        if not (is_plain and self._leaves_out) or self._ending.reads_all(step.inputs):
            return None
        return step.after if step.sampling.size else NO_TOKENS

    def _forward_half(self, half: HalfStep) -> torch.Tensor:
        """Run the model on a half. Shapes: -> [T of the half, E]"""
        return self._run_model(
            self._model.forward,
            half.token_ids,
            half.positions,
            half.layouts,
            self._made.batch.views(half.inputs),
            second_text=half.second_text,
            read=half.read,
            first_token=half.first_token,
            inner=half.inner,
        )

    def _forward_eagerly(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        layouts: Sequence[BatchLayout],
        rows: Sequence[RowView] = (),
        read: np.ndarray | None = None,
    ) -> torch.Tensor:
        """Run the model, compiled if that is faster. Shapes: as the model's, read [S]"""
        is_plain = not (step_adapters() or step_media()) and read is None
        forward = (self.compiled if is_plain else None) or self._model.forward
        text = self._ending.second_text
        return self._run_model(
            forward, token_ids, positions, layouts, rows, second_text=text, read=read
        )

    def _forward_own(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        layouts: Sequence[BatchLayout],
        second_text: torch.Tensor | None,
        adapters: StepAdapters | None,
    ) -> torch.Tensor:
        """Run the currently loaded model on a step that may be recorded. Shapes: as the model's"""
        forward = self._model.forward
        with use_adapters(adapters):
            return self._run_model(forward, token_ids, positions, layouts, second_text=second_text)

    def _run_model(
        self,
        forward: ModelForward,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        layouts: Sequence[BatchLayout],
        rows: Sequence[RowView] = (),
        *,
        second_text: torch.Tensor | None = None,
        read: np.ndarray | None = None,
        first_token: int = 0,
        inner: dict[int, torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """Run a forward pass on a step. `read`: only these tokens' hidden states are needed.
        Shapes: token_ids, positions, second_text [T], read [S] -> [T, E]"""
        for part in self._parts:
            part.before_pass(token_ids)
        prepare = partial(self._made.groups.prepared, self._backend)
        context = ForwardContext(
            backend=self._backend,
            prepared=prepare(layouts),
            caches=self._made.caches,
            rows=rows,
            second_text=second_text,
            drawn=None if read is None else drawn_alone(layouts, read, prepare),
            first_token=first_token,
            inner=inner,
        )
        with use_context(context):
            return forward(token_ids, positions)
