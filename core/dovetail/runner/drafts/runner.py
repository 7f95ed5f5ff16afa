"""DraftRunner: runs a drafter model alongside the model: its KV cache, and the drafts of each step.

After the model's step the drafter catches up on new tokens, all rows in one pass. Then it drafts
token by token, each time for all rows that want another one. A row that wants no drafts waits, or
is dropped. The drafter caches a token under the block id that the model's first KV group uses for
it. Independent of requests: it only knows rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from dovetail import registry
from dovetail.errors import BrokenPlugin
from dovetail.interfaces.attention import AttentionBackend, BatchLayout
from dovetail.interfaces.data.spec import RunSpec, WorkerDraftSpec
from dovetail.interfaces.data.step import CachedLayer, KVLayout, NewRow, RowResult, StepPlan
from dovetail.layers.attention import attention_layers
from dovetail.layers.attention.kv_scales import set_scales
from dovetail.layers.attention.other_dtype import in_dtype
from dovetail.layers.context import LayerCache
from dovetail.runner.drafts.blocks import DraftBlocks
from dovetail.runner.drafts.chain import CATCH_UP_TOKENS, DraftChain
from dovetail.runner.drafts.loader import (
    DraftTarget,
    drafter_run,
    kept_layers,
    load_drafter,
    look_into,
    states_within,
)
from dovetail.runner.drafts.masked import MaskedGuesses
from dovetail.runner.drafts.passes import DraftPasses, lines_of
from dovetail.runner.drafts.rows import DraftRows
from dovetail.runner.drafts.sampled import SampledDrafts, chosen
from dovetail.runner.endings.drawing import DrawingEnd
from dovetail.runner.endings.results import with_drafts
from dovetail.runner.kv.allocation import (
    allocate_tensors,
    cache_tensors,
    layer_caches,
    small_layout,
)
from dovetail.runner.kv.host_blocks import HostBlockStorage
from dovetail.runner.load.loader import LoadedModel
from dovetail.runner.replay.recorded import is_recorded
from dovetail.runner.rows.batch import StepInputs
from dovetail.runner.step.allocated import Allocated
from dovetail.runner.step.part import RunnerPart
from dovetail.runner.step.step_reader import BegunStep, Computed

LAG_STATES = 96
"""A row that wants no drafts catches up once this many hidden states wait for it."""
FINISHED_TOKENS = 64
"""A row that ends with more tokens than this to catch up on leaves them to later prefix hits."""


class DraftRunner(RunnerPart):
    """The drafter of a runner. `drawing` gets the distributions that drafts are sampled from."""

    def __init__(
        self, spec: WorkerDraftSpec, run: RunSpec, device: torch.device, drawing: DrawingEnd
    ) -> None:
        self._spec = spec
        self._target_run = run
        self._run = drafter_run(run, spec)
        self._device = device
        self._drawing = drawing
        backend: AttentionBackend = registry.make(spec.attention)
        self._backend = in_dtype(backend, run.attention_dtype, spec.model.dtype)
        self._caches: dict[str, LayerCache] = {}
        self._host: HostBlockStorage | None = None
        self._sampled: SampledDrafts | None = None
        self._layers: list[CachedLayer] = []

    def attach(self, loaded: LoadedModel) -> None:
        """Build the drafter for a loaded model. Raises: ConfigError. Mutates: self, the model"""
        run, self._inner = self._target_run, loaded.inner
        target = DraftTarget(spec=run.model, rank=run.rank, model=loaded.model)
        self._drafter = load_drafter(self._spec, self._run, target, self._device)
        self._inner_layers = self._drafter.inner_layers()
        look_into(loaded.model, self._inner_layers, self._inner)
        self._attention = attention_layers(self._drafter.module())
        set_scales(self._attention, self._run.kv_dtype, ())
        self._layers = kept_layers(self._drafter.module(), self._run)
        self._continues = "hidden_states" in self._drafter.capabilities
        self._reads_model = "model_cache" in self._drafter.capabilities

    def weights(self) -> list[torch.Tensor]:
        """Return all tensors of the drafter except its cache."""
        module = self._drafter.module()
        return [*module.parameters(), *module.buffers()]

    def layers(self) -> list[CachedLayer]:
        """Return what the drafter caches."""
        return self._layers

    def own_layout(self, num_blocks: int) -> KVLayout | None:
        """Return a layout of its layers alone; None if they cache nothing."""
        if not self._layers:
            return None
        tokens = self._run.block_tokens
        return small_layout(self._layers, self._backend, block_tokens=tokens, num_blocks=num_blocks)

    def allocate(self, storage: Allocated) -> None:
        """Create the KV tensors and the rows' state. Raises: ConfigError. Mutates: self"""
        draft, batch = storage.layout.draft, storage.batch
        if self._layers and draft is None:
            raise BrokenPlugin(
                "the layout has no room for the drafter's layers.",
                where="--kv-policy",
                fix="use --kv-policy paged, or a drafter without attention.",
            )
        self._batch = batch
        if draft is not None:
            memory = allocate_tensors(draft, self._device)
            for tensor in memory:
                tensor.zero_()  # positions without catch-up are read too
            self._caches = layer_caches(draft, self._layers, self._backend, memory)
            self._host = HostBlockStorage(draft, memory) if draft.num_host_blocks else None
        shift = int(self._continues)
        keeps = self._continues and bool(self._layers)
        self._rows = DraftRows(
            batch,
            self._spec.max_tokens,
            shift=shift,
            keeps=keeps,
            is_ahead=self._target_run.async_steps,
        )
        self._filled: DraftBlocks | None = None
        if draft is not None:
            self._filled = DraftBlocks(draft, batch.tables[0])
        records = is_recorded(self._run, self._device.type) and not self._reads_model
        backend, caches, prepare = self._backend, self._caches, self._prepared
        if self._reads_model:
            run = self._target_run
            backend = in_dtype(registry.make(run.attention), run.attention_dtype, run.model.dtype)
            caches, prepare = storage.caches, partial(storage.groups.prepared, backend)
        self._passes = DraftPasses(
            self._drafter,
            backend,
            self._layers,
            caches,
            prepare,
            batch,
            storage.step_tensors,
            records=records,
        )
        self._chain: DraftChain | None = None
        block = self._drafter.masked_block()
        if records and block is None:
            max_drafts = self._spec.max_tokens
            self._chain = DraftChain(self._passes.forward, self._drafter, batch, max_drafts)
        if self._spec.is_sampled:
            self._sampled = self._drawing.draft_probabilities = SampledDrafts(self._drawing.sampler)
        self._masked: MaskedGuesses | None = None
        if block is not None:
            self._masked = MaskedGuesses(block, self._drafter, self._passes, batch, self._sampled)

    def _prepared(self, layouts: Sequence[BatchLayout]) -> Mapping[str, Any]:
        """Return its layers' view of a pass: all use the block ids of the model's first group."""
        prepared = self._backend.prepare(layouts[0]) if self._layers else None
        return {layer.name: prepared for layer in self._layers}

    def release(self) -> list[torch.Tensor]:
        """Release cache and rows; return the KV tensors. Mutates: self"""
        caches = cache_tensors(self._caches)
        self._host = None
        self._caches = {}
        del self._batch, self._rows, self._passes, self._chain
        return caches

    def before(self, plan: StepPlan) -> None:
        """Catch up on rows that end, then copy blocks to and from the host. Mutates: the cache"""
        if not self._caches:
            return
        if plan.freed_rows:
            self._finish(np.array(plan.freed_rows, dtype=np.int64))
        if self._filled is not None:
            self._filled.swap(plan.swapped_out, plan.swapped_in)
        if self._host is not None:
            self._host.swap_out(plan.swapped_out)
            self._host.swap_in(plan.swapped_in)

    def add_row(self, new: NewRow) -> None:
        """Start a row with what the drafter has of the model's cached prefix. It computes what is
        missing, unless that takes hidden states. Mutates: self"""
        num_cached = num_filled = new.num_computed_tokens
        if self._filled is not None:
            num_filled = self._filled.begin(new.row, new.blocks[0], num_cached)
        self._rows.begin(new.row, num_filled, new.sampling)
        if self._chain is not None:
            self._chain.begin(new.row)
        if self._continues and num_filled < num_cached:
            self._begin_anew(new.row, num_cached)

    def _begin_anew(self, row: int, start: int) -> None:
        """Start a row's context at a position: nothing before it is cached. Mutates: self"""
        self._rows.begin_anew(row, start, self._run.block_tokens)
        if self._filled is not None:
            self._filled.skip(row, start)

    def after(self, step: BegunStep, computed: Computed) -> None:
        """Process a step; its results get the requested drafts. Mutates: step, the cache, the rows'
        state"""
        hidden = computed.hidden
        if self._filled is not None:
            self._filled.take(step.inputs.steps)
        if any(row.num_drafts for row in step.inputs.steps):
            step.collect()
        elif not (self._layers and self._continues) or self._has_nothing_to_do(step.inputs, hidden):
            return
        step.rows = self._draft(step.inputs, hidden, step.rows)

    @property
    def _skips(self) -> bool:
        """Return whether rows that want no drafts are dropped and later restarted. Not if drafts
        are sampled: draws would then depend on the time of the restart."""
        return self._continues and self._sampled is None and self._chain is not None

    def _has_nothing_to_do(self, inputs: StepInputs, hidden: torch.Tensor) -> bool:
        """Return whether a step that wants no drafts needs no more work. Mutates: as _only_keeps"""
        return bool(inputs.samples.all()) if self._skips else self._only_keeps(inputs, hidden)

    def _only_keeps(self, inputs: StepInputs, hidden: torch.Tensor) -> bool:
        """Store the states of a step in which every row computed its last known token and none
        wants drafts; return whether no more work is needed. Mutates: the rows' state"""
        is_plain = self._continues and not (self._inner_layers or inputs.drafted)
        if not (is_plain and inputs.is_decoding) or self._target_run.async_steps:
            return False
        lengths, computed = self._batch.lengths, self._rows.computed
        last_start = self._spec.max_model_tokens - self._spec.max_tokens
        for step in inputs.steps:
            lag = step.start - computed[step.row]
            if lengths[step.row] != step.start + 2 or step.start >= last_start:
                return False
            if not 0 <= lag < LAG_STATES:
                return False
        self._rows.limits[inputs.rows] = inputs.starts
        states = hidden.clone()
        for i, step in enumerate(inputs.steps):
            self._rows.keep(step.row, states, i, i + 1)
        return True

    def _draft(
        self,
        inputs: StepInputs,
        hidden: torch.Tensor,
        rows: tuple[RowResult, ...] | None,
    ) -> tuple[RowResult, ...] | None:
        """Return a step's results with the requested drafts. `rows` None: the results are not read
        yet, and no drafts are wanted. Shapes: hidden [T, E]"""
        if self._inner_layers:
            hidden = states_within(self._inner, self._inner_layers)
        known = self._rows.known(inputs.rows)
        wants = self._wanted(inputs, known, rows)
        self._rows.settle(inputs)
        if self._skips:
            self._resume(inputs)
        due, limits = self._due(inputs, hidden, known, wants)
        if not due.size:
            return rows
        rows_due = inputs.rows[due]
        states = self._states(inputs, hidden, due, limits) if self._continues else None
        limits, wants = limits[due], wants[due]
        if not self._continues:
            self._shorten(rows_due, limits)
        drafts, computed = self._catch_up(rows_due, limits, wants, states)
        self._note(rows_due, limits)
        if rows is None or not drafts:
            return rows
        chosen = due if len(drafts) == len(due) else due[wants > 0]
        self._rows.note_drafts(inputs.rows[chosen], known[chosen], drafts, computed)
        return with_drafts(rows, chosen.tolist(), drafts)

    def _resume(self, inputs: StepInputs) -> None:
        """Restart dropped rows with this step. Mutates: the rows' state"""
        behind = np.flatnonzero(self._rows.computed[inputs.rows] < inputs.starts)
        for i in behind.tolist():
            row, start = int(inputs.rows[i]), int(inputs.starts[i])
            if self._rows.computed[row] + self._rows.num_kept(row) < start:
                self._begin_anew(row, start)

    def _catch_up(
        self, rows: np.ndarray, limits: np.ndarray, wants: np.ndarray, states: torch.Tensor | None
    ) -> tuple[list[list[int]], list[int]]:
        """Compute the tokens of rows up to `limits`. Return the drafts of rows that want some, and
        how many of each were computed. `states` are the model's, concatenated by row. Shapes: rows,
        limits, wants [R], states [N, E]. Mutates: the cache"""
        starts = self._rows.computed[rows]
        chain = self._chain if self._sampled is None and wants.all() else None
        found = None
        if chain is not None and chain.takes(len(rows)):
            if int((limits - starts - 1).sum()) > CATCH_UP_TOKENS:
                starts, states = self._catch_up_to_last(rows, starts, limits, states)
            found = chain.run(rows, starts, limits, wants, states, self._rows.skipped)
        if found is not None and found.are_proven:
            drafts, counts, num_drafts = found.drafts, found.likely.tolist(), found.made
        else:
            is_wanting = wants > 0
            num_known = limits - starts
            states = self._passes.over(rows, starts, num_known, None, states, 0)
            if not is_wanting.any():
                return [], []
            last, wants = (np.cumsum(num_known) - 1)[is_wanting], wants[is_wanting]
            asking = rows[is_wanting], limits[is_wanting]
            if self._masked is not None:
                drafts, wants = self._masked.guess(*asking, wants)
            else:
                drafts = self._guess_by_depth(*asking, wants, lines_of(states, last))
            if chain is not None and found is not None:
                chain.prove(found, drafts)
            rows, counts, num_drafts = asking[0], wants.tolist(), wants
        own = zip(rows.tolist(), drafts.tolist(), counts, strict=True)
        row_drafts = [self._rows.until_end(row, line[:n]) for row, line, n in own]
        return row_drafts, (num_drafts - 1).tolist()

    def _catch_up_to_last(
        self,
        rows: np.ndarray,
        starts: np.ndarray,
        limits: np.ndarray,
        states: torch.Tensor | None,
    ) -> tuple[np.ndarray, torch.Tensor | None]:
        """Compute all but the last token of each row; return the new starts, and the last tokens'
        states. Shapes: [R] thrice, [N, E] -> [R], [R, E]. Mutates: the cache"""
        counts = limits - starts
        has_more, ends = counts > 1, np.cumsum(counts)
        own = np.delete(np.arange(ends[-1]), ends - 1)
        before = None if states is None else lines_of(states, own)
        chosen = rows[has_more], starts[has_more], counts[has_more] - 1
        self._passes.over(*chosen, None, before, 0)
        return limits - 1, None if states is None else lines_of(states, ends - 1)

    def _wanted(
        self, inputs: StepInputs, known: np.ndarray, rows: tuple[RowResult, ...] | None
    ) -> np.ndarray:
        """Return how many drafts each row gets. None after a fault or its end, or if some tokens
        need no draw: the next step could not verify drafts after them. Shapes: [R]"""
        max_tokens = min(self._spec.max_tokens, self._spec.max_model_tokens)
        lengths, seq_lens = self._batch.lengths[inputs.rows].tolist(), inputs.seq_lens.tolist()
        wants = [0] * len(lengths)
        for i, (step, count) in enumerate(zip(inputs.steps, known.tolist(), strict=True)):
            is_known = count == lengths[i] and count <= seq_lens[i] + 1
            if step.num_drafts and is_known and (rows is None or self._goes_on(rows[i])):
                wants[i] = min(step.num_drafts, max_tokens)
        return np.array(wants, dtype=np.int64)

    def _goes_on(self, result: RowResult) -> bool:
        """Return whether a row continues after what it drew."""
        return result.fault is None and not self._rows.has_ended(result.row, result.token_ids)

    def _due(
        self, inputs: StepInputs, hidden: torch.Tensor, known: np.ndarray, wants: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the indices of the rows to catch up on now, and how far each row can be computed.
        Stores the states of the others. Shapes: [D], [R]. Mutates: the rows' state"""
        rows, row_state = inputs.rows, self._rows
        limits = row_state.reach(inputs, known)
        if not self._continues:
            limits = np.where(wants > 0, known, limits)
        if not self._layers:
            row_state.computed[rows] = limits - 1
            return np.flatnonzero(wants), limits
        largest_limit, skips = self._spec.max_model_tokens - self._spec.max_tokens, self._skips
        if not self._continues:
            is_due = (wants > 0) & (limits <= largest_limit) & (limits > row_state.computed[rows])
            return np.flatnonzero(is_due), limits
        lags, ends = limits - row_state.computed[rows], self._batch.lengths[rows] - 1
        valid, due = np.minimum(inputs.seq_lens, ends), []
        numbers = (limits, lags, valid, wants, inputs.samples)
        lines = zip(*(each.tolist() for each in numbers), strict=True)
        for i, (limit, lag, end, wanted, draws) in enumerate(lines):
            if limit > largest_limit or (skips and draws and not wanted):
                continue
            if lag > 0 and (wanted or lag >= LAG_STATES) and limit == end:
                due.append(i)
            else:  # others have tokens that the host does not know yet
                self._wait(inputs, hidden, i, end)
        return np.array(due, dtype=np.int64), limits

    def _guess_by_depth(
        self, rows: np.ndarray, starts: np.ndarray, wants: np.ndarray, states: torch.Tensor
    ) -> np.ndarray:
        """Return the drafts of each row, one depth at a time, from the state at its last known
        token; unused entries are zero. `starts` are the positions of the next tokens.
        Shapes: rows, starts, wants [R], states [R, E] -> [R, D]. Mutates: the cache"""
        drafts = np.zeros((len(rows), int(wants.max())), dtype=np.int64)
        live = np.arange(len(rows))
        if self._sampled is not None:
            self._sampled.begin(rows)
        for depth in range(drafts.shape[1]):
            if depth:
                going = np.flatnonzero(wants[live] > depth)
                states, live = lines_of(states, going), live[going]
                tokens = drafts[live, depth - 1]
                places = starts[live] - 1 + (0 if self._reads_model else depth)
                states = self._passes.over(
                    rows[live], places, np.ones_like(places), tokens, states, depth
                )
            logits = self._drafter.logits(states, depth)
            drawn = starts[live] + depth - self._batch.num_prompt[rows[live]]
            drafts[live, depth] = chosen(self._sampled, logits, rows[live], drawn)
        return drafts

    def _finish(self, rows: np.ndarray) -> None:
        """Catch up on rows that end: later requests may hit their blocks. Mutates: cache"""
        rows = rows[self._batch.lengths[rows] > 0]
        self._rows.settle_ended(rows)
        limits = self._rows.limits[rows]
        if not self._continues:
            table = self._batch.tables[0]
            limits = np.minimum(self._rows.known(rows) - 1, table.counts[rows] * table.block_tokens)
        lag = limits - self._rows.computed[rows]
        size = self._run.block_tokens
        ends_block = limits // size > self._rows.computed[rows] // size
        is_due = (lag > 0) & (lag <= FINISHED_TOKENS) & ends_block
        is_due &= limits + self._spec.max_tokens <= self._spec.max_model_tokens
        if self._continues:
            is_due &= lag <= [self._rows.num_kept(row) for row in rows.tolist()]
        if not is_due.any():
            return
        rows, limits = rows[is_due], limits[is_due]
        starts = self._rows.computed[rows]
        states = None
        if self._continues:
            row_states = [torch.cat(self._rows.kept(row)) for row in rows.tolist()]
            counts = (limits - starts).tolist()
            states = torch.cat([one[:n] for one, n in zip(row_states, counts, strict=True)])
        self._passes.over(rows, starts, limits - starts, None, states, 0)
        self._note(rows, limits)

    def _note(self, rows: np.ndarray, limits: np.ndarray) -> None:
        """Record the drafter's progress in some rows. Mutates: the rows' state"""
        self._rows.computed[rows] = limits
        if self._filled is not None:
            self._filled.fill(rows, limits)

    def _shorten(self, rows: np.ndarray, limits: np.ndarray) -> None:
        """If more tokens wait than fit in a step, compute them row by row, except the last of each
        row. Mutates: the cache, the rows' state"""
        computed, max_tokens = self._rows.computed, self._target_run.max_step_tokens
        if int((limits - computed[rows]).sum()) <= max_tokens:
            return
        for i in range(len(rows)):
            row, end = rows[i : i + 1], limits[i : i + 1] - 1
            while computed[row] < end:
                count = np.minimum(end - computed[row], max_tokens)
                self._passes.over(row, computed[row], count, None, None, 0)
                computed[row] += count

    def _states(
        self, inputs: StepInputs, hidden: torch.Tensor, due: np.ndarray, limits: np.ndarray
    ) -> torch.Tensor:
        """Return the model's states of the tokens to catch up on, concatenated by row, stored ones
        included. Shapes: hidden [T, E] -> [N, E]. Mutates: the rows' state"""
        pieces: list[torch.Tensor] = []
        for i in due.tolist():
            row, begun = int(inputs.rows[i]), int(inputs.starts[i])
            row_states = self._rows.kept(row)
            first = max(begun, int(self._rows.computed[row]))
            shift = int(inputs.query_start[i]) - begun
            pieces += [*row_states, hidden[first + shift : int(limits[i]) + shift]]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    def _wait(self, inputs: StepInputs, hidden: torch.Tensor, i: int, end: int) -> None:
        """Store the states of row i's tokens up to position `end`. Mutates: the rows' state"""
        row, begun = int(inputs.rows[i]), int(inputs.starts[i])
        shift = int(inputs.query_start[i]) - begun
        first = max(begun, int(self._rows.computed[row]))
        self._rows.keep(row, hidden[first + shift : end + shift].clone(), 0, end - first)
