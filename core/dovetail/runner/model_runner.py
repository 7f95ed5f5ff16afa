"""ModelRunner: turns a StepPlan into tensors, a forward pass, drawn tokens and a StepResult.

For a model that does not generate, results are pooled prompts instead of drawn tokens.

Owns the rows, the KV tensors and the sampling state of one rank. On an asynchronous device, a step
may begin before the previous one is read: the tokens drawn there stay on the device.
Independent of the request queue and of text; a fault of one row is reported in that row's result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import cast

import numpy as np
import torch
from torch import nn

from dovetail import registry
from dovetail.interfaces.acceptance import DraftProbabilities
from dovetail.interfaces.attention import AttentionBackend
from dovetail.interfaces.data.spec import RunSpec
from dovetail.interfaces.data.step import CachedLayer, KVLayout, RowResult, StepPlan, StepResult
from dovetail.interfaces.model import Model
from dovetail.layers.attention.other_dtype import in_dtype
from dovetail.layers.attention.paged import attention_layers, step_layers
from dovetail.layers.context import use_adapters, use_media
from dovetail.layers.dtypes import dtype_of
from dovetail.layers.kept import kept_layers
from dovetail.layers.moe.experts import Experts, help_others
from dovetail.layers.native import use_ops
from dovetail.parallel.context import over_ranks
from dovetail.parallel.engines import exchange
from dovetail.runner import measure
from dovetail.runner.device import DeviceCalls, calls_of
from dovetail.runner.drafts import verify
from dovetail.runner.drafts.runner import DraftRunner
from dovetail.runner.drafts.states import DraftStates
from dovetail.runner.forward_passes import ForwardPasses
from dovetail.runner.kv import allocation as kv_alloc
from dovetail.runner.kv.block_transfer import BlockTransfers
from dovetail.runner.kv.host_blocks import HostBlockStorage
from dovetail.runner.load.expert_balancer import expert_balancer
from dovetail.runner.load.loader import load_model
from dovetail.runner.load.offloaded_memory import offload
from dovetail.runner.lora.runner_adapters import runner_adapters, slots_in_use
from dovetail.runner.measure import PeakOf
from dovetail.runner.media.runner_media import RunnerMedia
from dovetail.runner.pending_steps import PendingStep, PendingSteps
from dovetail.runner.pooling import PromptPooling
from dovetail.runner.processors import chosen_processors
from dovetail.runner.prompt_logprobs import PromptLogprobs
from dovetail.runner.replay import warm_up
from dovetail.runner.replay.compiled import CompiledForward
from dovetail.runner.replay.graphs import GraphManager, graph_manager, why_not_captured
from dovetail.runner.replay.halves import step_halves
from dovetail.runner.replay.recorded import recorder_of
from dovetail.runner.replay.timing_passes import choose_forward
from dovetail.runner.results import verified_results
from dovetail.runner.rows.batch import Batch
from dovetail.runner.rows.layer_groups import LayerGroups, StateKeeper
from dovetail.runner.rows.skipped_tokens import may_leave_out
from dovetail.runner.rows.tensors import DeviceTensors, HostTensors
from dovetail.runner.stage_link import StageLink, UnseenDraws
from dovetail.runner.step_reader import BegunStep, Computed, StepReader
from dovetail.sampling.sampler import PendingDraws, Sampler
from dovetail.structured_output.cache import ConstraintCache
from dovetail.structured_output.mask_processor import ConstraintProcessor
from dovetail.structured_output.thinking import ReasoningBudget
from dovetail_kernels.spans import span


class ModelRunner(ForwardPasses):
    """Call in this order: load, kv_layers, allocate, then step repeatedly; from one thread."""

    def __init__(
        self, run: RunSpec, device: torch.device, calls: DeviceCalls | None = None
    ) -> None:
        self.run = run
        self.device = device
        self._calls = calls or calls_of(device)
        self._is_ahead = run.async_steps and self._calls.runs_ahead
        self._pending_steps = PendingSteps()
        self._graphs: GraphManager | None = None
        use_ops(run.ops)
        backend: AttentionBackend = registry.make(run.attention)
        self._own_backend = in_dtype(backend, run.attention_dtype, run.model.dtype)
        self._stage = StageLink(run, device)
        self._draws = self._stage.is_last and run.pooling is None
        self._pooling: PromptPooling | None = None
        constrained = run.structured_output if self._draws else None
        self.constraints = None if constrained is None else ConstraintCache(constrained)
        self._masks: ConstraintProcessor | None = None
        self.adapters = runner_adapters(run, device)
        self._drafts = DraftRunner(run, device) if run.drafts and self._draws else None
        self._draft_probabilities: DraftProbabilities | None = None
        self.transfers = BlockTransfers(run)
        self._ends: list[Callable[[], None]] = [self.transfers.close]

    def load(self) -> None:
        """Build the model and fill its weights. Raises: ConfigError. Mutates: self

        Meanwhile the vocabulary is prepared for constraints.
        """
        chosen_processors(
            self.run, self.device, draws=self._draws
        )  # reports a faulty one before the weights are read
        if self.constraints is not None:
            self.constraints.start()
        self._backend = over_ranks(self._own_backend, self.run.rank)
        loaded = load_model(self.run, self.device)
        self._model = loaded.model
        self._stage.attach(loaded.module)
        if self.adapters is not None:
            self.adapters.attach(loaded.module)
        if self._drafts is not None:
            self._drafts.load(loaded.model)
        self._inner = {} if self._drafts is None else self._drafts.inner
        self._compiled: CompiledForward | None = None
        looks_in = self._inner or self._model.capabilities & {"needs_host_rows", "encoder"}
        if self.run.compiles and not looks_in:
            self._compiled = CompiledForward(self._model.forward, self._calls)
        self.expert_balancer = expert_balancer(loaded.module, self.run)
        self._experts = [m for m in loaded.module.modules() if isinstance(m, Experts)]
        self._exchange = exchange() if self.run.rank.data_size > 1 else None
        self._attention = attention_layers(loaded.module)
        measure.set_given_scales(self._attention, self.run)
        self._layers = kept_layers(loaded.module, self.run)
        self._step_layers = step_layers(self._attention, self.run)
        self._leaves_out = may_leave_out(self.run, loaded.model)
        if self.run.pooling is not None and self._stage.is_last:
            using = self._using_adapter
            self._pooling = PromptPooling(self.run.pooling, loaded.model, self.device, using)

    def close(self) -> None:
        """Stop all background work. May be called twice."""
        for end in self._ends:
            end()

    @property
    def model(self) -> Model:
        """Return the model, a torch module. Requires `load`."""
        return self._model

    def weights(self) -> list[torch.Tensor]:
        """Return all tensors of the model and its drafter."""
        module = cast(nn.Module, self._model)
        drafts = [] if self._drafts is None else self._drafts.weights()
        return [*module.parameters(), *module.buffers(), *drafts]

    def kv_layers(self) -> Sequence[CachedLayer]:
        """Return what the layers cache, in layer order, then a drafter's."""
        return [*self._layers, *(() if self._drafts is None else self._drafts.layers)]

    def allocate(self, layout: KVLayout) -> None:
        """Create KV tensors, rows and sampling state. Raises: ConfigError. Mutates: self"""
        run = self.run
        processors = chosen_processors(run, self.device, draws=self._draws)
        if self.constraints is not None:
            self._masks = ConstraintProcessor(self.constraints, run.model.vocab_size)
            processors["structured output"] = self._masks
            processors["thinking budget"] = ReasoningBudget(self.constraints, run.model.vocab_size)
        self._layout = layout
        tensors = kv_alloc.allocate_tensors(layout, self.device)
        self._caches = kv_alloc.layer_caches(layout, self._layers, self._backend, tensors)
        self._caches |= kv_alloc.allocate_step(self._step_layers, self._backend, self.device, run)
        self._host = HostBlockStorage(layout, tensors) if layout.num_host_blocks else None
        self.transfers.attach(layout, tensors, self._layers)
        self._groups = LayerGroups(layout, self._layers, self._step_layers)
        sizes = (run.max_rows, run.max_model_tokens, len(layout.groups), layout.block_tokens)
        has_step_blocks, cross_rows = bool(self._step_layers), kv_alloc.cross_rows(layout)
        self._batch = Batch(*sizes, has_step_blocks=has_step_blocks, cross_rows=cross_rows)
        self._draft_states = DraftStates(layout, self._groups, self._batch.tables, self._caches)
        states = StateKeeper(self._groups, self._batch.tables, self._caches)
        self._recorded = recorder_of(
            run,
            self.device.type,
            self._forward_own,
            self._batch.tables,
            self._inner,
            states,
            shares_rows=self._groups.are_of_keys,
        )
        self._halves = step_halves(run, self._calls, sees_all=bool(self._step_layers))
        self._media = RunnerMedia(self._model, run, self.device, self._calls)
        self._ends.append(self._media.close)
        self._tensors: HostTensors | DeviceTensors = HostTensors(self._batch)
        if self._calls.runs_ahead:
            self._tensors = DeviceTensors(self._batch, self.device, self._calls)
            reason = why_not_captured(
                run, self._backend, self._model, reads_inner=bool(self._inner)
            )
            self._graphs = graph_manager(
                run, self._forward_eagerly, self._tensors, self._batch.tables, self._calls, reason
            )
        if self._drafts is not None:
            self._drafts.allocate(layout, self._batch, self._tensors)
        tells_logits = run.logprobs_scale == "logits"
        self._sampler = Sampler(
            run.max_rows,
            processors,
            tells_processed=run.logprobs_stage == "processed",
            tells_logits=tells_logits,
            acceptance=None if run.acceptance is None else registry.make(run.acceptance),
            vocab_size=run.model.vocab_size,
        )
        if self._drafts is not None:
            self._draft_probabilities = self._drafts.sample_by(self._sampler)
        forcing = None if run.async_steps else self._masks  # steps ahead assume one token per draw
        self._reader = StepReader(self._batch, self._sampler, forcing)
        self._prompt_logprobs = PromptLogprobs(tells_logits=tells_logits)
        self._unseen = UnseenDraws(self._batch)

    def warm_up(self) -> None:
        """Run a short prompt and two draws on row 0, then empty it; capture graphs. Mutates: self

        KV-cache scales that need measuring are decided first.
        """
        run, layout = self.run, self._layout
        num_tokens = warm_up.most_tokens(layout, run)
        if num_tokens < 1:
            return
        if run.kv_steps is not None:
            measure.decide_scales(self._attention, run.kv_steps, self._step_whole, layout, run)
        ahead, draws = self._calls.runs_ahead, run.pooling is None
        read = warm_up.read_by_encoder(layout, run.model.hidden_size)
        for plan in warm_up.first_steps(layout, num_tokens, read, is_compiling=ahead, draws=draws):
            self.step(plan)
            self._unseen.make_up(plan.step_id)
        if self._calls.runs_ahead and self._draws:
            hidden = torch.zeros(1, run.model.hidden_size, device=self.device)
            self._sampler.warm_up(self._model.logits(hidden.to(dtype_of(run.model.dtype))))
        self._reader.forget_last()
        if run.acceptance is not None and self._recorded is not None and run.rank.is_alone:
            self._recorded.record_ahead(warm_up.AHEAD_S)  # ranks do not share a clock
        if self._compiled is not None:
            captured = (self._recorded, self._graphs)
            eager, tables = self._forward_eagerly, self._batch.tables
            choose_forward(self._compiled, run, captured, eager, tables, self.device)
        self.capture_graphs()

    @torch.inference_mode()
    def capture_graphs(self) -> None:
        """Capture steps as graphs, replacing earlier captures. Mutates: self"""
        if self._graphs is not None and self._graphs.reason is None:
            self._graphs.forget()
            self._graphs.capture()

    def largest_step_bytes(self, peak_of: PeakOf) -> int:
        """Return the memory of a largest step besides weights and cache, including graphs.

        The runner must be allocated (again) afterwards. Mutates: self
        """
        draft = None if self._drafts is None else self._drafts.layout
        layout, plan = measure.largest_step(self._layers, self._backend, self.run, draft)
        self.allocate(layout)
        peak = measure.peak_bytes(lambda: self.step(plan), self._compiled, self._graphs, peak_of)
        self.release()
        return peak

    def release(self) -> None:
        """Release cache, rows and graphs, so that `allocate` can run again. Mutates: self"""
        self._pending_steps.resolve_all_but(0)
        self._graphs, self._host = None, None
        self.transfers.detach()
        caches = [] if self._drafts is None else self._drafts.release()
        caches += kv_alloc.cache_tensors(self._caches)
        offload(caches, keeps=False)  # an allocator may hold on to freed memory
        del self._caches, self._batch, self._tensors, self._recorded, self._sampler, self._reader

    def step(self, plan: StepPlan) -> StepResult:
        """Run one plan. Mutates: rows, KV cache, sampling state"""
        return self.begin(plan).result()

    def _step_whole(self, plan: StepPlan) -> StepResult:
        """Run one plan undivided. Mutates: as step"""
        halves, self._halves = self._halves, None
        try:
            return self.step(plan)
        finally:
            self._halves = halves

    @torch.inference_mode()
    def begin(self, plan: StepPlan) -> PendingStep:
        """Queue a step on the device. If steps run ahead, the previous one may still be unread; its
        draws are read first if this step depends on them.

        Mutates: rows, KV cache, sampling state
        """
        self._pending_steps.resolve_all_but(1 if self._is_ahead else 0)
        if self._drafts is not None:
            self._drafts.before(plan)
        if self._host is not None:
            self._host.swap_out(plan.swapped_out)
            self._host.swap_in(plan.swapped_in)
        self.transfers.follow(plan.block_orders)
        if self.adapters is not None:
            self.adapters.follow(plan)
        self._update_rows(plan)
        self._media.follow(plan)
        if self._pending_steps and self._must_know(plan):
            self._pending_steps.resolve_all_but(0)
        if not plan.rows:
            if self._halves is not None:
                self._halves.abstain()
            if self._exchange is not None:
                self._exchange.begin_step(0)
                help_others(self._experts, self.run.model, self.device)
            return self._pending_steps.start(lambda: StepResult(step_id=plan.step_id, rows=()))
        step = self._begin(plan)
        return self._pending_steps.start(lambda: self._reader.read(step))

    def _must_know(self, plan: StepPlan) -> bool:
        """Return whether the host must know all tokens before the step: one of its rows has a
        processor or drafts, or the model looks at rows."""
        rows = np.array([step.row for step in plan.rows], dtype=np.int64)
        return (
            self._sampler.has_processors(rows)
            or any(step.drafts or step.num_drafts for step in plan.rows)
            or "needs_host_rows" in self._model.capabilities
        )

    def _begin(self, plan: StepPlan) -> BegunStep:
        """Queue the step's work. Mutates: rows, KV cache, sampling state"""
        inputs = self._batch.gather(plan)
        if self._masks is not None:
            self._masks.begin(inputs.rows[inputs.samples].tolist())
        if self._pooling is not None:
            self._pooling.look_at(inputs)
        for row, fault in self._media.failures(inputs).items() if self._stage.is_last else ():
            (self._pooling or self._sampler).mark_failed(row, fault)
        sampling = np.flatnonzero(inputs.samples)
        self._stage.receive(len(inputs.token_ids))
        begun = self._calls.mark()
        slots = slots_in_use(self.adapters, inputs.adapters, inputs.positions)
        with use_adapters(slots), use_media(self._media.of_step(inputs)), span("forward"):
            computed = self._forward(inputs, sampling)
        step = BegunStep(
            step_id=plan.step_id,
            inputs=inputs,
            begun=begun,
            computed=self._calls.mark(),
            is_divided=computed.is_divided,
        )
        if not self._stage.is_last:
            return self._hand_on(step, computed)
        if self._pooling is not None:
            step.pooled = self._pooling.begin(inputs, computed.hidden, self._batch)
            step.ended = self._calls.mark()
            return step
        step.prompt = self._prompt_logprobs.begin(
            self._batch, inputs, computed.hidden, self._logits
        )
        step.aligned = self._media.alignment.results(inputs)
        if inputs.drafted and sampling.size:
            step.rows = self._verified(step, computed, sampling)
        elif sampling.size:
            pending = self._draw(computed, inputs.rows[sampling])
            step.drawn = (sampling, pending, self._batch.expect(inputs.rows[sampling]))
        if self._drafts is not None:
            self._drafts.after(step, computed.hidden, self._reader)
        step.ended = self._calls.mark()
        return step

    def _hand_on(self, step: BegunStep, computed: Computed) -> BegunStep:
        """Send a step's hidden states to the next stage; nothing is drawn here. Mutates: step"""
        self._stage.send(computed.hidden)
        self._unseen.begin(step.step_id, step.inputs)
        step.rows, step.ended = (), self._calls.mark()
        return step

    def learn(self, result: StepResult) -> None:
        """Record the tokens that the last stage drew in a step begun here. Mutates: rows"""
        self._unseen.learn(result)

    def _update_rows(self, plan: StepPlan) -> None:
        """Free rows, then fill the new ones. Mutates: self"""
        for row in plan.freed_rows:
            self._batch.free_row(row)
            self._media.free_row(row)
            if self._pooling is not None:
                self._pooling.remove_row(row)
            elif self._stage.is_last:
                self._sampler.remove_row(row)
                self._prompt_logprobs.remove_row(row)
        for new in plan.new_rows:
            self._batch.add_row(new)
            self._media.add_row(new, self._batch)
            if self._drafts is not None:
                self._drafts.add_row(new)
            rows = self._pooling or self._sampler
            if self._pooling is not None:
                self._pooling.add_row(new)
            elif self._stage.is_last:
                self._prompt_logprobs.add_row(new)
                self._sampler.add_row(self._batch.row_tokens(new), new.seed)
            size = self.run.model.vocab_size
            if self.adapters is not None:
                size = self.adapters.vocab_size(new.adapter_slot)
            foreign = self._batch.sanitize_row(new.row, size)
            if foreign is not None and self._stage.is_last:
                rows.mark_failed(new.row, f"token id {foreign} is outside the vocabulary")

    def _using_adapter(self, row: int | np.ndarray, count: int) -> AbstractContextManager[None]:
        """Make layers apply one row's adapter to `count` vectors, or each of several rows' to
        one."""
        if self.adapters is None:
            return nullcontext()
        slots = np.broadcast_to(self._batch.adapters[row], count)
        return use_adapters(slots_in_use(self.adapters, slots))

    def _logits(self, hidden: torch.Tensor, row: int | np.ndarray) -> torch.Tensor:
        """Return logits with the rows' adapters applied, for one row or one row per line.

        Shapes: hidden [S, E], row [S] -> [S, V], or more if adapters add tokens
        """
        with self._using_adapter(row, len(hidden)):
            return self._model.logits(hidden)

    def _draw(self, made: Computed, rows: np.ndarray) -> PendingDraws:
        """Start to draw a token for each row, and leave it on the device for the next step.

        Shapes: rows [S]. Mutates: sampling state
        """
        hidden = made.hidden if made.drawn_after is None else made.hidden[made.drawn_after]
        positions = self._batch.lengths[rows] - self._batch.num_prompt[rows]
        pending = self._sampler.begin(
            self._logits(hidden, rows), rows, positions, lambda: self._logits(hidden, rows)
        )
        if self._is_ahead and isinstance(self._tensors, DeviceTensors):
            assert made.drawn_rows is not None
            self._tensors.last_tokens.index_copy_(0, made.drawn_rows, pending.tokens)
        return pending

    def _verified(
        self, step: BegunStep, made: Computed, sampling: np.ndarray
    ) -> tuple[RowResult, ...]:
        """Draw for as long as drafts are accepted, and assemble the results. Mutates: self"""
        hidden = made.hidden if made.drawn_after is None else made.hidden[made.drawn_after]
        rows, sampled = verify.drawn_rows(step.inputs, sampling), self._draft_probabilities
        logits, inputs = partial(self._logits, hidden, rows), step.inputs
        draws = verify.verify_drafts(self._sampler, self._batch, inputs, sampling, logits, sampled)
        if self._draft_states.are_laid:
            self._draft_states.settle(verify.accepted(sampling, draws))
        return verified_results(step.inputs.steps, sampling.tolist(), draws, *step.prompt())
