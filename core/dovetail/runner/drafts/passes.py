"""A drafter's passes over tokens that no plan names: how they are laid out and recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from dovetail.interfaces.attention import AttentionBackend, BatchLayout
from dovetail.interfaces.data.step import CachedLayer
from dovetail.interfaces.drafter import MaskedBlock, WorkerDrafter
from dovetail.layers.context import ForwardContext, LayerCache, use_context
from dovetail.runner.replay.recorded import MAX_DRAFTED_ROWS, recorded_rows
from dovetail.runner.rows.batch import Batch, StepInputs
from dovetail.runner.rows.tensors import DeviceTensors, HostTensors


class RecordedPass:
    """A RecordedForward of the drafter whose input states also have a fixed address."""

    def __init__(self, forward: Callable[..., torch.Tensor], batch: Batch) -> None:
        self._forward = forward
        self._given: torch.Tensor | None = None
        self._recorded = recorded_rows(self._run, batch.tables[:1], MAX_DRAFTED_ROWS, pads=True)

    def run(self, inputs: StepInputs, states: torch.Tensor | None) -> torch.Tensor | None:
        """Return the states after a pass, None if it is not recorded. Mutates: self"""
        if self._recorded.reason is not None:
            return None
        if states is not None:
            if self._given is None:
                self._given = states.new_zeros(MAX_DRAFTED_ROWS, states.shape[1])
            self._given[: len(states)] = states
        return self._recorded.run(inputs)

    def _run(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        layouts: list[BatchLayout],
        *others: object,
    ) -> torch.Tensor:
        given = None if self._given is None else self._given[: len(token_ids)]
        return self._forward(token_ids, positions, layouts, given)


def laid(rows: np.ndarray, starts: np.ndarray, counts: np.ndarray) -> StepInputs:
    """Return the inputs of a pass over tokens of rows, without the tokens. Shapes: all [R]"""
    query_start = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum(counts, out=query_start[1:])
    shift = np.repeat(starts - query_start[:-1], counts)
    return StepInputs(
        steps=(),
        rows=rows,
        starts=starts,
        counts=counts,
        samples=np.zeros(len(rows), dtype=bool),
        query_start=query_start,
        token_rows=np.repeat(rows, counts),
        token_ids=np.zeros(0, dtype=np.int64),
        positions=np.arange(query_start[-1]) + shift,
    )


def one_by_one(inputs: StepInputs) -> StepInputs:
    """Return the pass with every token as a row of its own, which sees the tokens before it."""
    count = len(inputs.token_ids)
    if count == len(inputs.rows):
        return inputs
    alone = laid(inputs.token_rows, inputs.positions, np.ones(count, dtype=np.int64))
    alone.token_ids = inputs.token_ids
    return alone


def as_seen(inputs: StepInputs, ends: np.ndarray | int) -> StepInputs:
    """Return the pass with every token as a row of its own, which sees the first `ends` positions
    of its row, whatever its own position. Shapes: ends [T]"""
    starts = np.broadcast_to(np.asarray(ends) - 1, len(inputs.token_ids))
    return replace(one_by_one(inputs), starts=starts)


def _causal(layout: BatchLayout, positions: np.ndarray) -> BatchLayout:
    """Return a layout of one token per row in which each sees the positions up to its own. Shapes:
    positions [T]"""
    lens = torch.from_numpy(positions + 1).to(layout.seq_lens)
    return replace(layout, seq_lens=lens, seq_lens_host=(positions + 1).tolist())


def lines_of(states: torch.Tensor, picked: np.ndarray) -> torch.Tensor:
    """Return the picked rows of states. Shapes: [N, E], [S] -> [S, E]"""
    if len(picked) == len(states):
        return states
    return states[torch.from_numpy(picked).to(states.device)]


class DraftPasses:
    """Runs a drafter over tokens of rows. `layers` are its caching layers. Its layers read `caches`
    by what `prepare` makes of the layouts of all groups; with `records` small passes are recorded
    and run as one call."""

    def __init__(
        self,
        drafter: WorkerDrafter,
        backend: AttentionBackend,
        layers: Sequence[CachedLayer],
        caches: dict[str, LayerCache],
        prepare: Callable[[Sequence[BatchLayout]], Mapping[str, Any]],
        batch: Batch,
        tensors: HostTensors | DeviceTensors,
        *,
        records: bool,
    ) -> None:
        self._drafter = drafter
        self._backend = backend
        self._prepare = prepare
        self._caches = caches
        self._batch = batch
        self._tensors = tensors
        self._continues = "hidden_states" in drafter.capabilities
        self._is_by_depth = "by_depth" in drafter.capabilities
        self._block = drafter.masked_block()
        self._records = records and bool(layers)
        self._recorded: dict[int, RecordedPass] = {}

    def over(
        self,
        rows: np.ndarray,
        starts: np.ndarray,
        counts: np.ndarray,
        token_ids: np.ndarray | None,
        states: torch.Tensor | None,
        depth: int,
    ) -> torch.Tensor:
        """Return the states after each row's tokens (`token_ids` None: known ones). Shapes: rows,
        starts, counts [R], token_ids [N], states [N, E] -> [N, E]. Mutates: the cache"""
        inputs = laid(rows, starts, counts)
        if token_ids is None:
            places = inputs.positions + int(self._continues)
            token_ids = self._batch.tokens[inputs.token_rows, places].astype(np.int64)
        inputs.token_ids = token_ids
        given = states if self._continues else None
        if self._block is not None:
            inputs = as_seen(inputs, 1)  # only written
        if self._records and len(token_ids) <= MAX_DRAFTED_ROWS:
            found = self._recorder(depth).run(one_by_one(inputs), given)
            if found is not None:
                return found
        placed = self._tensors.place(inputs, None)
        return self.forward(placed.token_ids, placed.positions, placed.layouts, given, depth)

    def over_blocks(
        self, rows: np.ndarray, starts: np.ndarray, counts: np.ndarray, block: MaskedBlock
    ) -> torch.Tensor:
        """Return the states of each row's masked block of `counts` positions from `starts` on.
        Shapes: all [R] -> [N, E]. Mutates: the cache"""
        inputs = laid(rows, starts, counts)
        inputs.token_ids = np.full(len(inputs.positions), block.mask_token_id, dtype=np.int64)
        inputs.token_ids[inputs.query_start[:-1]] = self._batch.tokens[rows, starts]
        seen = as_seen(inputs, np.repeat(starts + counts, counts))
        if self._records and not block.causal_layers and len(seen.rows) <= MAX_DRAFTED_ROWS:
            found = self._recorder(1).run(seen, None)
            if found is not None:
                return found
        placed = self._tensors.place(seen, None)
        prepared = dict(self._prepare(placed.layouts))
        if block.causal_layers:
            own = self._prepare([_causal(one, seen.positions) for one in placed.layouts])
            prepared |= {name: own[name] for name in block.causal_layers}
        return self._advance(placed.token_ids, placed.positions, prepared, None, 1)

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        layouts: Sequence[BatchLayout],
        states: torch.Tensor | None,
        depth: int,
    ) -> torch.Tensor:
        """Return the states after tokens with given layouts. Shapes: token_ids, positions [N],
        states [N, E] -> [N, E]. Mutates: the cache"""
        return self._advance(token_ids, positions, self._prepare(layouts), states, depth)

    def _advance(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        prepared: Mapping[str, Any],
        states: torch.Tensor | None,
        depth: int,
    ) -> torch.Tensor:
        context = ForwardContext(backend=self._backend, prepared=prepared, caches=self._caches)
        with use_context(context):
            return self._drafter.advance(token_ids, positions, states, depth)

    def _recorder(self, depth: int) -> RecordedPass:
        """Return the recorder of small passes of this depth. Mutates: self"""
        key = depth if self._is_by_depth else 0
        if key not in self._recorded:
            self._recorded[key] = RecordedPass(partial(self.forward, depth=key), self._batch)
        return self._recorded[key]
