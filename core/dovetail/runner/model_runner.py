"""ModelRunner: one StepPlan becomes tensors, a forward pass, drawn tokens and a StepResult.

Keeps the rows, the KV tensors and the sampling state of one rank. Knows no request queue and no
text; a fault that belongs to one row is reported in that row's result.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
import torch

from dovetail.guided.rows import GuideRows
from dovetail.guided.table import GuideTable
from dovetail.guided.thinking import ThinkingRows
from dovetail.interfaces.attention import AttentionBackend, BatchLayout
from dovetail.interfaces.logits import RowTokens
from dovetail.interfaces.model import RowView
from dovetail.interfaces.sampling_params import SamplingParams
from dovetail.interfaces.spec import RunSpec
from dovetail.interfaces.step import (
    KVLayer,
    KVLayout,
    NewRow,
    RowResult,
    RowStep,
    StepPlan,
    StepResult,
    TokenLogprobs,
)
from dovetail.layers.attention import attention_layers, measuring
from dovetail.layers.context import ForwardContext, use_context
from dovetail.layers.kv_scales import set_scales, tell_measured
from dovetail.runner import verify
from dovetail.runner.batch import Batch, StepInputs
from dovetail.runner.kv_alloc import allocate_kv, group_of_layers
from dovetail.runner.loader import build_plugin, load_model
from dovetail.runner.prompt_logprobs import PromptLogprobs
from dovetail.runner.recorded import RecordedForward
from dovetail.sampling.sampler import NOTHING_LEFT, Draws, Sampler

WARM_UP_TOKENS = 8
MEASURED_TOKENS = 256
"""Random tokens that decide the scales of the KV cache, where those are to be measured."""


class ModelRunner:
    """Call in this order: load, kv_layers, allocate, then step again and again; one thread."""

    def __init__(self, run: RunSpec, device: torch.device) -> None:
        self.run = run
        self.device = device
        self._backend: AttentionBackend = build_plugin(run.attention)
        self.guides = GuideTable(run.guided) if run.guided is not None else None
        self._guide_rows: GuideRows | None = None

    def load(self) -> None:
        """Build the model and fill its weights. Raises: ConfigError. Mutates: self"""
        loaded = load_model(self.run, self.device)
        self._model = loaded.model
        self._attention = attention_layers(loaded.module)
        if not self.run.measures_kv_scales:
            given = self.run.kv_scales
            own = given[self.run.rank.tensor_rank] if given else ()
            set_scales(self._attention, self.run.kv_dtype, own)
        self._layers = [a.kv_layer(self.run.kv_dtype) for a in self._attention]

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
        self._groups = group_of_layers(layout)
        self._batch = Batch(
            run.max_rows, run.max_model_tokens, len(layout.groups), layout.block_tokens
        )
        self._recorded = self._recorder()
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
        return RecordedForward(self._forward_eagerly, self._batch.tables, self.run.max_rows)

    def warm_up(self) -> None:
        """Run a short prompt and two draws on row 0, then empty it. Mutates: self

        Scales of the KV cache that are to be measured are decided before.
        """
        room = min(self._layout.num_blocks * self._layout.block_tokens, self.run.max_model_tokens)
        most = min(self.run.max_step_tokens, room - 1)
        if most < 1:
            return
        if self.run.measures_kv_scales:
            self._measure_scales(min(MEASURED_TOKENS, most))
        count = min(WARM_UP_TOKENS, most)
        self.step(_warm_up_prompt(self._layout, (0,) * count))
        again = RowStep(
            row=0,
            start=count,
            num_tokens=1,
            samples=True,
            new_blocks=((),) * len(self._layout.groups),
        )
        self.step(StepPlan(step_id=-1, rows=(again,)))
        self.step(StepPlan(step_id=-1, rows=(), freed_rows=(0,)))

    def _measure_scales(self, count: int) -> None:
        """Decide the KV cache's scales by a prompt of random tokens, the same at every start.

        Mutates: the attention layers
        """
        draw = torch.Generator().manual_seed(self.run.seed)
        token_ids = torch.randint(self.run.model.vocab_size, (count,), generator=draw).tolist()
        with measuring(self._attention):
            self.step(_warm_up_prompt(self._layout, tuple(token_ids)))
        self.step(StepPlan(step_id=-1, rows=(), freed_rows=(0,)))
        tell_measured(self._attention)

    @torch.inference_mode()
    def step(self, plan: StepPlan) -> StepResult:
        """Run one plan. Mutates: rows, KV cache, sampling state"""
        self._update_rows(plan)
        if not plan.rows:
            return StepResult(step_id=plan.step_id, rows=())
        start_s = time.perf_counter()
        inputs = self._batch.gather(plan)
        if self._guide_rows is not None:
            self._guide_rows.begin(inputs.rows[inputs.samples].tolist())
        hidden = self._forward(inputs)
        forward_s = time.perf_counter()
        results = self._results(inputs, hidden)
        return StepResult(
            step_id=plan.step_id,
            rows=results,
            forward_s=forward_s - start_s,
            sample_s=time.perf_counter() - forward_s,
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
            foreign = self._batch.mend_row(new.row, self.run.model.vocab_size)
            if foreign is not None:
                self._sampler.condemn(new.row, f"token id {foreign} is outside the vocabulary")

    def _row_tokens(self, new: NewRow) -> RowTokens:
        return RowTokens(
            row=new.row,
            params=new.sampling,
            prompt_ids=self._batch.prompt_ids(new.row),
            output_ids=self._batch.output_ids(new.row),
        )

    def _forward(self, inputs: StepInputs) -> torch.Tensor:
        """Return the final hidden states of the step's tokens. Shapes: [T, E]"""
        if self._recorded is not None:
            hidden = self._recorded.run(inputs)
            if hidden is not None:
                return hidden
        return self._forward_eagerly(
            self._on_device(inputs.token_ids),
            self._on_device(inputs.positions),
            self._layouts(inputs),
            self._batch.views(inputs),
        )

    def _forward_eagerly(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        layouts: Sequence[BatchLayout],
        rows: Sequence[RowView] = (),
    ) -> torch.Tensor:
        """Run the model. Shapes: token_ids, positions [T] -> [T, E]"""
        prepared = [self._backend.prepare(layout) for layout in layouts]
        context = ForwardContext(
            backend=self._backend,
            prepared={name: prepared[g] for name, g in self._groups.items()},
            caches=self._caches,
            rows=rows,
        )
        with use_context(context):
            return self._model.forward(token_ids, positions)

    def _layouts(self, inputs: StepInputs) -> list[BatchLayout]:
        """Return the step's layout for each KV group."""
        if inputs.drafted:
            inputs = verify.one_by_one(inputs)
        seq_lens = inputs.seq_lens
        query_start = self._on_device(inputs.query_start.astype(np.int32))
        seq_lens_device = self._on_device(seq_lens.astype(np.int32))
        query_start_host, seq_lens_host = inputs.query_start.tolist(), seq_lens.tolist()
        max_seq_tokens = max(seq_lens_host)
        return [
            BatchLayout(
                query_start=query_start,
                seq_lens=seq_lens_device,
                block_table=self._on_device(table.gather(inputs.rows, max_seq_tokens)),
                slots=self._on_device(table.slots(inputs.token_rows, inputs.positions)),
                query_start_host=query_start_host,
                seq_lens_host=seq_lens_host,
                block_tokens=table.block_tokens,
                max_query_tokens=int(inputs.counts.max()),
                max_seq_tokens=max_seq_tokens,
            )
            for table in self._batch.tables
        ]

    def _results(self, inputs: StepInputs, hidden: torch.Tensor) -> tuple[RowResult, ...]:
        """Draw for the rows that sample and put every row's result together. Mutates: self"""
        prompt, faults = self._prompt_logprobs.compute(
            self._batch, inputs, hidden, self._model.logits
        )
        sampling = np.flatnonzero(inputs.samples)
        if not sampling.size:
            return _row_results(inputs.steps, [], Draws(token_ids=[]), prompt, faults)
        if inputs.drafted:
            return self._verified(inputs, hidden, sampling, prompt, faults)
        draws = self._draw(inputs, hidden, sampling)
        self._batch.append(inputs.rows[sampling], draws.token_ids)
        forced = self._force(inputs.rows[sampling], draws)
        if len(sampling) == len(inputs.steps) and not (
            draws.faults or draws.logprobs or prompt or faults or forced
        ):
            return tuple(
                RowResult(row=step.row, token_ids=(token_id,))
                for step, token_id in zip(inputs.steps, draws.token_ids, strict=True)
            )
        return _row_results(inputs.steps, sampling.tolist(), draws, prompt, faults, forced)

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

    def _draw(self, inputs: StepInputs, hidden: torch.Tensor, sampling: np.ndarray) -> Draws:
        """Return the tokens drawn after the selected rows' last tokens. Mutates: sampling state"""
        if len(hidden) != len(sampling):
            last = inputs.query_start[1:][sampling] - 1
            hidden = hidden[self._on_device(last)]
        rows = inputs.rows[sampling]
        positions = self._batch.lengths[rows] - self._batch.num_prompt[rows]
        return self._sampler.sample(
            self._model.logits(hidden), rows, positions, lambda: self._model.logits(hidden)
        )

    def _verified(
        self,
        inputs: StepInputs,
        hidden: torch.Tensor,
        sampling: np.ndarray,
        prompt: dict[int, tuple[TokenLogprobs, ...]],
        faults: dict[int, str],
    ) -> tuple[RowResult, ...]:
        """Draw as far as drafts come true and put every row's result together. Mutates: self"""
        positions = verify.drawn_positions(inputs, sampling)
        if len(positions) < len(hidden):
            hidden = hidden[self._on_device(positions)]
        found = verify.draw_along(
            self._sampler, self._batch, inputs, sampling, lambda: self._model.logits(hidden)
        )
        drawn = dict(zip(sampling.tolist(), found, strict=True))
        return tuple(
            _row_result(step, drawn.get(i), prompt.get(i, ()), faults.get(i))
            for i, step in enumerate(inputs.steps)
        )

    def _on_device(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(self.device, non_blocking=True)


def _row_results(
    steps: Sequence[RowStep],
    sampling: Sequence[int],
    draws: Draws,
    prompt: dict[int, tuple[TokenLogprobs, ...]],
    prompt_faults: dict[int, str],
    forced: Mapping[int, tuple[int, ...]] = MappingProxyType({}),
) -> tuple[RowResult, ...]:
    """Return one result per row. `sampling` are the indices of the rows that drew, `forced` what
    came after a draw without one."""
    drawn = {index: i for i, index in enumerate(sampling)}
    results = []
    for index, step in enumerate(steps):
        i = drawn.get(index)
        fault = prompt_faults.get(index) or (draws.faults.get(i) if i is not None else None)
        if fault is not None:
            results.append(_faulty(step, fault))
            continue
        logprobs = draws.logprobs.get(i) if i is not None else None
        results.append(
            RowResult(
                row=step.row,
                token_ids=() if i is None else (draws.token_ids[i], *forced.get(i, ())),
                logprobs=() if logprobs is None else (logprobs,),
                prompt_logprobs=prompt.get(index, ()),
            )
        )
    return tuple(results)


def _row_result(
    step: RowStep,
    drawn: verify.RowDraws | None,
    prompt: tuple[TokenLogprobs, ...],
    fault: str | None,
) -> RowResult:
    """Return the result of one row of a step with drafts. `drawn` None: it did not sample."""
    fault = fault or (drawn.fault if drawn is not None else None)
    if fault is not None:
        return _faulty(step, fault)
    if drawn is None:
        return RowResult(row=step.row, prompt_logprobs=prompt)
    return RowResult(
        row=step.row,
        token_ids=tuple(drawn.token_ids),
        logprobs=tuple(drawn.logprobs),
        prompt_logprobs=prompt,
    )


def _faulty(step: RowStep, fault: str) -> RowResult:
    status = 400 if fault == NOTHING_LEFT else 500
    return RowResult(row=step.row, fault=fault, fault_status=status)


def _warm_up_prompt(layout: KVLayout, token_ids: tuple[int, ...]) -> StepPlan:
    """Return a plan that computes some tokens on row 0 and draws by the longest route."""
    count = len(token_ids)
    blocks = tuple(range(-(-(count + 1) // layout.block_tokens)))
    num_groups = len(layout.groups)
    new = NewRow(
        row=0,
        request_id="warm-up",
        token_ids=token_ids,
        num_prompt_tokens=count,
        num_computed_tokens=0,
        blocks=(blocks,) * num_groups,
        sampling=SamplingParams(top_k=4, top_p=0.9, logprobs=1),
        seed=0,
    )
    step = RowStep(row=0, start=0, num_tokens=count, samples=True, new_blocks=((),) * num_groups)
    return StepPlan(step_id=-1, rows=(step,), new_rows=(new,))
