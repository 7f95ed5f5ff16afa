"""ModelRunner: one StepPlan becomes tensors, a forward pass, drawn tokens and a StepResult.

Keeps the rows, the KV tensors and the sampling state of one rank. On a device that the host runs
ahead of, a step may begin before the one before it is read: what that one drew stays on the device.
Knows no request queue and no text; a fault that belongs to one row is reported in that row's
result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from dovetail.guided.rows import GuideRows
from dovetail.guided.table import GuideTable
from dovetail.guided.thinking import ThinkingRows
from dovetail.interfaces.attention import AttentionBackend, BatchLayout
from dovetail.interfaces.logits import RowTokens
from dovetail.interfaces.model import RowView
from dovetail.interfaces.spec import RunSpec
from dovetail.interfaces.step import (
    KVLayer,
    KVLayout,
    NewRow,
    RowResult,
    StepPlan,
    StepResult,
)
from dovetail.layers.attention import attention_layers, measuring
from dovetail.layers.context import ForwardContext, use_context
from dovetail.layers.dtypes import dtype_of
from dovetail.layers.kv_scales import set_scales, tell_measured
from dovetail.runner import verify, warm_up
from dovetail.runner.batch import Batch, Expected, StepInputs
from dovetail.runner.compiled import CompiledForward, ModelForward
from dovetail.runner.device import DeviceCalls, Moment, calls_of
from dovetail.runner.graphs import GraphManager
from dovetail.runner.host_blocks import HostBlockStorage
from dovetail.runner.kv_alloc import allocate_kv, group_of_layers, small_layout
from dovetail.runner.loader import build_plugin, load_model
from dovetail.runner.pending_steps import PendingStep, PendingSteps
from dovetail.runner.prompt_logprobs import PromptFinish, PromptLogprobs, nothing_told
from dovetail.runner.recorded import RecordedForward
from dovetail.runner.results import row_result, row_results
from dovetail.runner.tensors import DeviceTensors, HostTensors
from dovetail.runner.trial import trials
from dovetail.sampling.sampler import Draws, PendingDraws, Sampler

WARM_UP_TOKENS = 8
ALIGNED_TOKENS = 64
MEASURED_TOKENS = 256
"""Random tokens that decide the scales of the KV cache, where those are to be measured."""
GRAPH_BYTES = 8 << 20
"""What the driver takes for one captured step beside the memory that all of them share."""


@dataclass(slots=True, kw_only=True)
class _Computed:
    """What the model made of a step. `drawn_after` picks the tokens after which is drawn (None:
    all); `drawn_rows` are their rows, told where there are steps ahead.

    Shapes: hidden [T, E]; drawn_after, drawn_rows [S] on the device
    """

    hidden: torch.Tensor
    drawn_after: torch.Tensor | None = None
    drawn_rows: torch.Tensor | None = None


@dataclass(slots=True, kw_only=True)
class _Begun:
    """A step whose draws are not read yet. `rows`: results of a step that needed no reading;
    `prompt` waits for the logprobs of prompts."""

    step_id: int
    inputs: StepInputs
    begun: Moment
    computed: Moment
    rows: tuple[RowResult, ...] | None = None
    drawn: tuple[np.ndarray, PendingDraws, Expected] | None = None
    prompt: PromptFinish = nothing_told
    ended: Moment | None = None


class ModelRunner:
    """Call in this order: load, kv_layers, allocate, then step again and again; one thread."""

    def __init__(
        self, run: RunSpec, device: torch.device, calls: DeviceCalls | None = None
    ) -> None:
        self.run = run
        self.device = device
        self._calls = calls or calls_of(device)
        self._is_ahead = run.async_steps and self._calls.runs_ahead
        self._pending_steps = PendingSteps()
        self._last_ended: Moment | None = None
        self._graphs: GraphManager | None = None
        self._backend: AttentionBackend = build_plugin(run.attention)
        self.guides = GuideTable(run.guided) if run.guided is not None else None
        self._guide_rows: GuideRows | None = None

    def load(self) -> None:
        """Build the model and fill its weights. Raises: ConfigError. Mutates: self"""
        loaded = load_model(self.run, self.device)
        self._model = loaded.model
        self._compiled: CompiledForward | None = None
        if self.run.compiles and "reads_rows" not in self._model.capabilities:
            self._compiled = CompiledForward(self._model.forward, self._calls)
        self._attention = attention_layers(loaded.module)
        if self.run.kv_steps is None:
            given = self.run.kv_scales
            own = given[self.run.rank.tensor_rank] if given else ()
            set_scales(self._attention, self.run.kv_dtype, own)
        self._layers = [a.kv_layer(self.run.kv_dtype) for a in self._attention]

    def weights(self) -> list[torch.Tensor]:
        """Return all that the model keeps in memory."""
        module = cast(nn.Module, self._model)
        return [*module.parameters(), *module.buffers()]

    def kv_layers(self) -> Sequence[KVLayer]:
        """Return what the attention layers cache, in layer order."""
        return self._layers

    def allocate(self, layout: KVLayout) -> None:
        """Create KV tensors, rows and sampling state. Raises: ConfigError. Mutates: self"""
        run = self.run
        processors = {s.name: build_plugin(s, run.model.vocab_size) for s in run.logits_processors}
        if self.guides is not None:
            self._guide_rows = GuideRows(self.guides, run.model.vocab_size)
            processors["structured output"] = self._guide_rows
            processors["thinking budget"] = ThinkingRows(self.guides, run.model.vocab_size)
        self._layout = layout
        self._caches = allocate_kv(layout, self._layers, self._backend, self.device)
        host = (layout, self._layers, self._caches, self._backend)
        self._host = HostBlockStorage(*host) if layout.num_host_blocks else None
        self._groups = group_of_layers(layout)
        self._batch = Batch(
            run.max_rows, run.max_model_tokens, len(layout.groups), layout.block_tokens
        )
        self._recorded = self._recorder()
        self._tensors: HostTensors | DeviceTensors = HostTensors(self._batch)
        if self._calls.runs_ahead:
            self._tensors = DeviceTensors(self._batch, self.device, self._calls)
            self._graphs = self._graph_manager(self._tensors)
        tells_logits = run.logprobs_scale == "logits"
        self._sampler = Sampler(
            run.max_rows,
            processors,
            tells_processed=run.logprobs_stage == "processed",
            tells_logits=tells_logits,
        )
        self._prompt_logprobs = PromptLogprobs(tells_logits=tells_logits)

    def _recorder(self) -> RecordedForward | None:
        """Return what runs small steps as one call, where the run allows it."""
        if self.run.is_eager or self.device.type != "cpu":
            return None

        def own(*step: Any) -> torch.Tensor:  # of the model that is loaded by then
            return self._run_model(self._model.forward, *step)

        return RecordedForward(own, self._batch.tables, self.run.max_rows, self.run.graph_sizes)

    def _graph_manager(self, tensors: DeviceTensors) -> GraphManager:
        """Return what captures small steps; it says why where nothing is to be captured."""
        run, reason = self.run, None
        if run.is_eager or not run.graph_sizes:
            reason = "graphs are switched off"
        elif "graphs" not in self._backend.capabilities:
            reason = f"attention backend {run.attention.name} cannot be captured"
        elif "reads_rows" in self._model.capabilities:
            reason = "the model looks at rows on the host"
        manager = GraphManager(
            self._forward_eagerly,
            tensors,
            self._batch.tables,
            self._calls,
            sizes=() if reason else run.graph_sizes or (),
            max_model_tokens=run.max_model_tokens,
            device=self.device,
        )
        manager.reason = reason or manager.reason
        return manager

    def warm_up(self) -> None:
        """Run a short prompt and two draws on row 0, then empty it; capture graphs. Mutates: self

        Scales of the KV cache that are to be measured are decided before.
        """
        room = min(self._layout.num_blocks * self._layout.block_tokens, self.run.max_model_tokens)
        most = min(self.run.max_step_tokens, room - 1)
        if most < 1:
            return
        if self.run.kv_steps is not None:
            self._measure_scales(min(MEASURED_TOKENS, most), self.run.kv_steps)
        count = min(WARM_UP_TOKENS, most)
        self.step(warm_up.warm_up_prompt(self._layout, (0,) * count))
        self.step(warm_up.second_step(self._layout, count))
        self.step(warm_up.emptied(1))
        if self._calls.runs_ahead and most >= ALIGNED_TOKENS:
            # Triton compiles once more for numbers of tokens that 16 divides.
            self.step(warm_up.warm_up_prompt(self._layout, (0,) * ALIGNED_TOKENS))
            self.step(warm_up.emptied(1))
        if self._calls.runs_ahead:
            self._warm_up_sampler()
        self._last_ended = None
        if self._compiled is not None:
            self._choose_forward(self._compiled)
        self.capture_graphs()

    @torch.inference_mode()
    def _choose_forward(self, compiled: CompiledForward) -> None:
        """Find out at which sizes the compiled pass is the faster one. Mutates: compiled"""
        run, rows, captured = self.run, self.run.max_rows, 0
        if self._recorded is not None and self._recorded.reason is None:
            rows = 0  # such steps are recorded
        elif self._graphs is not None and self._graphs.reason is None:
            rows = captured = max(run.graph_sizes or (1,))
        most = min(run.max_step_tokens, run.max_model_tokens)
        passes = trials(
            self._forward_eagerly, self._batch.tables, self.device, most_rows=rows, most_tokens=most
        )
        compiled.choose(passes, captured)

    @torch.inference_mode()
    def _warm_up_sampler(self) -> None:
        """Compile what rows may ask of the sampler, where it has kernels to compile."""
        model = self.run.model
        hidden = torch.zeros(1, model.hidden_size, dtype=dtype_of(model.dtype), device=self.device)
        self._sampler.warm_up(self._model.logits(hidden))

    @torch.inference_mode()
    def capture_graphs(self) -> None:
        """Capture the steps that are to run as graphs, again if they were before. Mutates: self"""
        if self._graphs is not None and self._graphs.reason is None:
            self._graphs.forget()
            self._graphs.capture()

    def largest_step_bytes(self, peak_of: Callable[[Callable[[], object]], int]) -> int:
        """Return the memory that a largest step takes beside weights and cache, graphs included.

        `peak_of` runs a function and returns the most memory that it had at once. The runner must
        be allocated (again) afterwards.
        """
        run = self.run
        longest = min(run.max_model_tokens, run.max_step_tokens + 1)
        layout = small_layout(
            self._layers,
            self._backend,
            block_tokens=run.block_tokens,
            num_blocks=1 + -(-longest // run.block_tokens),
        )
        self.allocate(layout)
        plan = warm_up.largest_plan(
            layout,
            max_rows=run.max_rows,
            max_step_tokens=run.max_step_tokens,
            max_model_tokens=run.max_model_tokens,
        )
        self.step(plan)  # what is made once and kept is there before anything is measured
        peak = peak_of(lambda: self.step(plan))
        compiled = self._compiled
        if compiled is not None and compiled.compile(lambda: self.step(plan)):
            peak = max(peak, peak_of(lambda: compiled.compile(lambda: self.step(plan))))
        if self._graphs is not None and self._graphs.reason is None:
            self._graphs.run_largest()
            peak += peak_of(self._graphs.run_largest)
            peak += GRAPH_BYTES * self._graphs.num_wanted
        self.release()
        return peak

    def release(self) -> None:
        """Let go of cache, rows and graphs, so that `allocate` may come again. Mutates: self"""
        self._pending_steps.resolve_all_but(0)
        self._graphs, self._last_ended, self._host = None, None, None
        del self._caches, self._batch, self._tensors, self._recorded, self._sampler

    def _measure_scales(self, count: int, steps: tuple[float, float]) -> None:
        """Decide the KV cache's scales by a prompt of random tokens, the same at every start.

        Mutates: the attention layers
        """
        draw = torch.Generator().manual_seed(self.run.seed)
        token_ids = torch.randint(self.run.model.vocab_size, (count,), generator=draw).tolist()
        with measuring(self._attention, steps):
            self.step(warm_up.warm_up_prompt(self._layout, tuple(token_ids)))
        self.step(warm_up.emptied(1))
        tell_measured(self._attention)

    def step(self, plan: StepPlan) -> StepResult:
        """Run one plan. Mutates: rows, KV cache, sampling state"""
        return self.begin(plan).result()

    @torch.inference_mode()
    def begin(self, plan: StepPlan) -> PendingStep:
        """Hand a step to the device. Where the run asks for steps ahead and the device can, the one
        before may still be unread; its draws are read first if this step needs to know them.

        Mutates: rows, KV cache, sampling state
        """
        self._pending_steps.resolve_all_but(1 if self._is_ahead else 0)
        if self._host is not None:
            self._host.swap_out(plan.swapped_out)
            self._host.swap_in(plan.swapped_in)
        self._update_rows(plan)
        if self._pending_steps and self._must_know(plan):
            self._pending_steps.resolve_all_but(0)
        if not plan.rows:
            return self._pending_steps.start(lambda: StepResult(step_id=plan.step_id, rows=()))
        step = self._begin(plan)
        return self._pending_steps.start(lambda: self._read(step))

    def _must_know(self, plan: StepPlan) -> bool:
        """Return whether the host must know all tokens before the step: one of its rows has a
        processor or drafts, or the model looks at rows."""
        rows = np.array([step.row for step in plan.rows], dtype=np.int64)
        return (
            self._sampler.has_processors(rows)
            or any(step.drafts for step in plan.rows)
            or "reads_rows" in self._model.capabilities
        )

    def _begin(self, plan: StepPlan) -> _Begun:
        """Queue the step's work. Mutates: rows, KV cache, sampling state"""
        begun = self._calls.mark()
        inputs = self._batch.gather(plan)
        if self._guide_rows is not None:
            self._guide_rows.begin(inputs.rows[inputs.samples].tolist())
        sampling = np.flatnonzero(inputs.samples)
        made = self._forward(inputs, sampling)
        step = _Begun(step_id=plan.step_id, inputs=inputs, begun=begun, computed=self._calls.mark())
        step.prompt = self._prompt_logprobs.begin(
            self._batch, inputs, made.hidden, self._model.logits
        )
        if inputs.drafted and sampling.size:
            step.rows = self._verified(step, made, sampling)
        elif sampling.size:
            pending = self._draw(made, inputs.rows[sampling])
            step.drawn = (sampling, pending, self._batch.expect(inputs.rows[sampling]))
        step.ended = self._calls.mark()
        return step

    @torch.inference_mode()
    def _read(self, step: _Begun) -> StepResult:
        """Wait for a step's draws and return its result. Mutates: rows"""
        assert step.ended is not None, "a step is read once it has begun"
        if step.rows is None:
            step.rows = self._results(step)
        step.ended.wait()
        last, self._last_ended = self._last_ended, step.ended
        return StepResult(
            step_id=step.step_id,
            rows=step.rows,
            forward_s=step.computed.seconds_since(step.begun),
            sample_s=step.ended.seconds_since(step.computed),
            idle_s=0.0 if last is None else max(0.0, step.begun.seconds_since(last)),
        )

    def _update_rows(self, plan: StepPlan) -> None:
        """Free rows, then fill the new ones. Mutates: self"""
        for row in plan.freed_rows:
            self._batch.free_row(row)
            self._sampler.remove_row(row)
            self._prompt_logprobs.remove_row(row)
        for new in plan.new_rows:
            self._batch.add_row(new)
            self._prompt_logprobs.add_row(new)
            self._sampler.add_row(self._row_tokens(new), new.seed)
            foreign = self._batch.sanitize_row(new.row, self.run.model.vocab_size)
            if foreign is not None:
                self._sampler.mark_failed(new.row, f"token id {foreign} is outside the vocabulary")

    def _row_tokens(self, new: NewRow) -> RowTokens:
        return RowTokens(
            row=new.row,
            params=new.sampling,
            prompt_ids=self._batch.prompt_ids(new.row),
            output_ids=self._batch.output_ids(new.row),
        )

    def _forward(self, inputs: StepInputs, sampling: np.ndarray) -> _Computed:
        """Run the model on the step's tokens. Shapes: sampling [S] indices of rows"""
        if self._recorded is not None:
            hidden = self._recorded.run(inputs)
            if hidden is not None:
                after = verify.drawn_after(inputs, sampling)
                return _Computed(
                    hidden=hidden,
                    drawn_after=None if after is None else torch.from_numpy(after),
                )
        if self._graphs is not None and len(sampling) == len(inputs.steps):
            found = self._graphs.run(inputs)
            if found is not None:
                return _Computed(hidden=found[0], drawn_rows=found[1])
        placed = self._tensors.place(inputs, verify.drawn_after(inputs, sampling))
        hidden = self._forward_eagerly(
            placed.token_ids, placed.positions, placed.layouts, self._batch.views(inputs)
        )
        return _Computed(
            hidden=hidden, drawn_after=placed.drawn_after, drawn_rows=placed.drawn_rows
        )

    def _forward_eagerly(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        layouts: Sequence[BatchLayout],
        rows: Sequence[RowView] = (),
    ) -> torch.Tensor:
        """Run the model, compiled where that is faster. Shapes: as the model's"""
        forward = self._compiled or self._model.forward
        return self._run_model(forward, token_ids, positions, layouts, rows)

    def _run_model(
        self,
        forward: ModelForward,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        layouts: Sequence[BatchLayout],
        rows: Sequence[RowView] = (),
    ) -> torch.Tensor:
        """Run a forward pass on a step. Shapes: token_ids, positions [T] -> [T, E]"""
        prepared = [self._backend.prepare(layout) for layout in layouts]
        context = ForwardContext(
            backend=self._backend,
            prepared={name: prepared[g] for name, g in self._groups.items()},
            caches=self._caches,
            rows=rows,
        )
        with use_context(context):
            return forward(token_ids, positions)

    def _results(self, step: _Begun) -> tuple[RowResult, ...]:
        """Read what was drawn and put every row's result together. Mutates: self"""
        steps, (prompt, faults) = step.inputs.steps, step.prompt()
        if step.drawn is None:
            return row_results(steps, [], Draws(token_ids=[]), prompt, faults)
        sampling, pending, expected = step.drawn
        draws = pending.collect()
        self._batch.fill(expected, draws.token_ids)
        forced = self._force(expected.rows, draws)
        if len(sampling) == len(steps) and not (
            draws.faults or draws.logprobs or prompt or faults or forced
        ):
            return tuple(
                RowResult(row=one.row, token_ids=(token_id,))
                for one, token_id in zip(steps, draws.token_ids, strict=True)
            )
        return row_results(steps, sampling.tolist(), draws, prompt, faults, forced)

    def _force(self, rows: np.ndarray, draws: Draws) -> dict[int, tuple[int, ...]]:
        """Add the tokens that rows' forms leave no choice about; return them by index of the draw.

        Not with steps planned ahead: those count on one token. Mutates: self
        """
        if self._guide_rows is None or self.run.async_steps:
            return {}
        drew = {row: i for i, row in enumerate(rows.tolist()) if i not in draws.faults}
        found = {}
        for row, token_ids in self._guide_rows.forced(tuple(drew)).items():
            self._batch.extend(row, token_ids)
            self._sampler.note(row, token_ids)
            found[drew[row]] = tuple(token_ids)
        return found

    def _draw(self, made: _Computed, rows: np.ndarray) -> PendingDraws:
        """Begin to draw a token for each of the rows, and leave it on the device for the next step.

        Shapes: rows [S]. Mutates: sampling state
        """
        hidden = made.hidden if made.drawn_after is None else made.hidden[made.drawn_after]
        positions = self._batch.lengths[rows] - self._batch.num_prompt[rows]
        pending = self._sampler.begin(
            self._model.logits(hidden), rows, positions, lambda: self._model.logits(hidden)
        )
        if self._is_ahead and isinstance(self._tensors, DeviceTensors):
            assert made.drawn_rows is not None
            self._tensors.last_tokens.index_copy_(0, made.drawn_rows, pending.tokens)
        return pending

    def _verified(
        self, step: _Begun, made: _Computed, sampling: np.ndarray
    ) -> tuple[RowResult, ...]:
        """Draw as far as drafts come true and put every row's result together. Mutates: self"""
        hidden = made.hidden if made.drawn_after is None else made.hidden[made.drawn_after]
        inputs = step.inputs
        found = verify.verify_drafts(
            self._sampler, self._batch, inputs, sampling, lambda: self._model.logits(hidden)
        )
        drawn, (prompt, faults) = dict(zip(sampling.tolist(), found, strict=True)), step.prompt()
        return tuple(
            row_result(one, drawn.get(i), prompt.get(i, ()), faults.get(i))
            for i, one in enumerate(inputs.steps)
        )
