"""StepTensors: a step's inputs as tensors on the model's device, and the block tables there.

HostTensors wraps the host's arrays without copying. DeviceTensors uploads them in one copy and
gathers on the device block tables and tokens that the host does not know yet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from dovetail.interfaces.attention import BatchLayout
from dovetail.runner.device import DeviceCalls
from dovetail.runner.drafts import verify
from dovetail.runner.rows.batch import UNKNOWN, Batch, StepInputs
from dovetail.runner.rows.block_table import BlockTable
from dovetail.runner.rows.staging import Staging

WIDTH_BLOCKS = 16
"""Tables are gathered in multiples of this many blocks: Triton compiles once per stride."""


@dataclass(slots=True, kw_only=True)
class StepTensors:
    """`drawn_after` selects the tokens to sample after (None: all); `drawn_rows` are their rows.

    Shapes: token_ids, positions [T]; drawn_after, drawn_rows [S] int64
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    layouts: Sequence[BatchLayout]
    drawn_after: torch.Tensor | None
    drawn_rows: torch.Tensor | None = None


class HostTensors:
    """Builds step tensors on the CPU without copying."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch

    def place(self, inputs: StepInputs, drawn_after: np.ndarray | None) -> StepTensors:
        """Return the step's tensors. Shapes: drawn_after [S]"""
        laid = verify.one_by_one(inputs) if inputs.drafted else inputs
        tables = self._batch.tables
        lens = [laid.lens_in(table) for table in tables]
        blocks = [
            torch.from_numpy(table.gather(laid.rows, int(own.max())))
            for table, own in zip(tables, lens, strict=True)
        ]
        slots = [torch.from_numpy(inputs.slots_in(table)) for table in tables]
        query_start = torch.from_numpy(laid.query_start.astype(np.int32))
        seq_lens = torch.from_numpy(laid.seq_lens.astype(np.int32))
        own_lens = [
            torch.from_numpy(own.astype(np.int32)) if table.is_cross else seq_lens
            for table, own in zip(tables, lens, strict=True)
        ]
        return StepTensors(
            token_ids=torch.from_numpy(inputs.token_ids),
            positions=torch.from_numpy(inputs.told_positions),
            layouts=_layouts(laid, tables, query_start, own_lens, blocks, slots),
            drawn_after=None if drawn_after is None else torch.from_numpy(drawn_after),
        )


class DeviceTables:
    """The rows' block tables on the device, updated incrementally.

    One extra row at the end is all null blocks: padding of a step uses it.
    """

    def __init__(
        self, tables: Sequence[BlockTable], device: torch.device, staging: Staging
    ) -> None:
        self._tables = tables
        self._staging = staging
        self.ids = []
        for table in tables:
            rows, blocks = table.ids.shape
            self.ids.append(torch.zeros(rows + 1, _wide(blocks), dtype=torch.int32, device=device))
            table.notes_changes = True

    def refresh(self) -> None:
        """Apply the changes to the device's tables. Mutates: the tables' notes"""
        changed = [table.take_changes() for table in self._tables]
        if not any(len(rows) for rows, _, _ in changed):
            return
        arrays: list[np.ndarray] = []
        for (rows, places, blocks), ids in zip(changed, self.ids, strict=True):
            arrays += [rows * ids.shape[1] + places, blocks]
        uploaded = self._staging.upload(arrays)
        for ids, where, values in zip(self.ids, uploaded[::2], uploaded[1::2], strict=True):
            ids.view(-1).index_copy_(0, where, values)

    def gather(self, group: int, rows: torch.Tensor, longest: int) -> torch.Tensor:
        """Return the tables of some rows, wide enough for `longest` tokens. Shapes: [R, B] int32"""
        width = _wide(-(-longest // self._tables[group].block_tokens))
        return self.ids[group][:, :width].index_select(0, rows)


class DeviceTensors:
    """Builds step tensors on a device. `last_tokens` holds each row's last drawn token there.

    Shapes: last_tokens [max rows + 1] int64
    """

    def __init__(self, batch: Batch, device: torch.device, calls: DeviceCalls) -> None:
        self._batch = batch
        self._staging = Staging(device, calls)
        self.tables = DeviceTables(batch.tables, device, Staging(device, calls))
        self.last_tokens = torch.zeros(batch.num_rows + 1, dtype=torch.int64, device=device)

    def place(self, inputs: StepInputs, drawn_after: np.ndarray | None) -> StepTensors:
        """Return the step's tensors, valid until the next step's are placed. Shapes: [S]"""
        self.tables.refresh()
        laid = verify.one_by_one(inputs) if inputs.drafted else inputs
        tables = self._batch.tables
        cross = [laid.lens_in(t).astype(np.int32) for t in tables if t.is_cross]
        arrays = [
            inputs.token_ids,
            inputs.told_positions,
            laid.rows,
            laid.query_start.astype(np.int32),
            laid.seq_lens.astype(np.int32),
            inputs.rows[inputs.samples],
            *(inputs.slots_in(table) for table in tables),
            *cross,
        ]
        is_ahead = bool((inputs.token_ids == UNKNOWN).any())
        arrays += [] if drawn_after is None else [drawn_after]
        arrays += [inputs.token_rows] if is_ahead else []
        token_ids, positions, rows, query_start, seq_lens, drawn_rows, *rest = self._staging.upload(
            arrays
        )
        if is_ahead:
            token_ids = known_tokens(token_ids, rest[-1], self.last_tokens)
        slots, rest = rest[: len(tables)], rest[len(tables) :]
        lens, rest = iter(rest[: len(cross)]), rest[len(cross) :]
        own_lens = [next(lens) if table.is_cross else seq_lens for table in tables]
        blocks = [
            self.tables.gather(g, rows, int(laid.lens_in(table).max()))
            for g, table in enumerate(tables)
        ]
        return StepTensors(
            token_ids=token_ids,
            positions=positions,
            layouts=_layouts(laid, tables, query_start, own_lens, blocks, slots),
            drawn_after=None if drawn_after is None else rest[0],
            drawn_rows=drawn_rows,
        )


def known_tokens(
    token_ids: torch.Tensor, token_rows: torch.Tensor, last_tokens: torch.Tensor
) -> torch.Tensor:
    """Return token ids with unknown ones filled from `last_tokens`. Shapes: [T], [T] -> [T]"""
    return torch.where(token_ids < 0, last_tokens.index_select(0, token_rows), token_ids)


def _wide(num_blocks: int) -> int:
    return -(-num_blocks // WIDTH_BLOCKS) * WIDTH_BLOCKS


def _layouts(
    laid: StepInputs,
    tables: Sequence[BlockTable],
    query_start: torch.Tensor,
    lens: Sequence[torch.Tensor],
    blocks: Sequence[torch.Tensor],
    slots: Sequence[torch.Tensor],
) -> list[BatchLayout]:
    """Return the layout of each KV group."""
    query_start_host, max_query_tokens = laid.query_start.tolist(), int(laid.counts.max())
    on_host = [laid.lens_in(table).tolist() for table in tables]
    return [
        BatchLayout(
            query_start=query_start,
            seq_lens=lens[group],
            block_table=blocks[group],
            slots=slots[group],
            query_start_host=query_start_host,
            seq_lens_host=on_host[group],
            block_tokens=table.block_tokens,
            max_query_tokens=max_query_tokens,
            max_seq_tokens=max(on_host[group]),
        )
        for group, table in enumerate(tables)
    ]


Forward = Callable[[torch.Tensor, torch.Tensor, list[BatchLayout]], torch.Tensor]
"""(token ids, positions, one layout per KV group) -> hidden states of every token."""
