"""Batch: the permanent rows of a runner on the host; gathers the inputs of each step.

A row stores its request's tokens, including drawn ones, so a plan never carries them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np

from dovetail.interfaces.data.media import VECTORS
from dovetail.interfaces.data.step import NO_SLOT, NewRow, RowStep, StepPlan
from dovetail.interfaces.logits import RowTokens
from dovetail.runner.rows.block_table import BlockTable
from dovetail.runner.rows.cross_rows import CrossRows, StepCross

AHEAD_TOKENS = 2
"""Room past the longest request for tokens that a step ahead draws and that are discarded."""
UNKNOWN = -1
"""Placeholder for a token that only the device knows so far."""


@dataclass(slots=True, kw_only=True)
class StepInputs:
    """One step's rows and tokens on the host. `drafted` are the indices of rows with drafts,
    `adapters` the tokens' adapter slots (None: no row uses one). `told_positions` are what the
    model gets; they differ from `positions` if parts of a prompt take more or fewer positions than
    tokens. `cross` is the encodings that rows attend to, in encoder-decoder models. `is_decoding`:
    every row computes its last known token and drafts, and a draw may follow each.

    Shapes: all but token_ids and positions [R]; query_start [R + 1]; token_ids, positions and
    token_rows [T], all int64 but lists; adapters [T] int32; shifts [T]
    """

    steps: Sequence[RowStep]
    rows: np.ndarray
    starts: np.ndarray
    counts: np.ndarray
    samples: np.ndarray
    query_start: np.ndarray
    token_rows: np.ndarray
    token_ids: np.ndarray
    positions: np.ndarray
    drafted: Sequence[int] = ()
    adapters: np.ndarray | None = None
    shifts: np.ndarray | None = None
    cross: StepCross | None = None
    is_decoding: bool = False

    def lens_in(self, table: BlockTable) -> np.ndarray:
        """Return how many tokens (or encodings) of a table's blocks each row sees. Shapes: [R]"""
        if not table.is_cross:
            return self.seq_lens
        assert self.cross is not None, "a table of encodings of a batch without any"
        return self.cross.lens

    def slots_in(self, table: BlockTable) -> np.ndarray:
        """Return the step's write slots in a table's blocks. Shapes: [T], or [W] for encodings"""
        if not table.is_cross:
            return table.slots(self.token_rows, self.positions)
        assert self.cross is not None, "a table of encodings of a batch without any"
        return table.slots(self.cross.rows, self.cross.positions)

    @property
    def told_positions(self) -> np.ndarray:
        """Return the positions that the model gets. Shapes: [T]"""
        if self.shifts is None:
            return self.positions
        positions: np.ndarray = self.positions + self.shifts
        return positions

    @property
    def seq_lens(self) -> np.ndarray:
        """Return the tokens in each row's cache after this step. Shapes: [R]"""
        ends: np.ndarray = self.starts + self.counts
        return ends


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Where to write tokens that a step draws and that the host learns later. Shapes: all [S]

    `epochs` are the rows' epochs when the step began. A row with another epoch now was freed or
    reassigned, and ignores the token.
    """

    rows: np.ndarray
    positions: np.ndarray
    epochs: np.ndarray


class Batch:
    """All rows. `lengths` counts each row's prompt and drawn tokens, including those only the
    device knows. `tables` has one table per KV group, and with `has_step_blocks` one more for data
    of a single step, whose blocks are reassigned each step. `cross_rows` maps a group to the
    maximum encodings of a row."""

    def __init__(
        self,
        max_rows: int,
        max_model_tokens: int,
        num_groups: int,
        block_tokens: int,
        *,
        has_step_blocks: bool = False,
        cross_rows: Mapping[int, int] | None = None,
    ) -> None:
        width = max_model_tokens + AHEAD_TOKENS
        self.tokens = np.zeros((max_rows, width), dtype=np.int32)
        self.lengths = np.zeros(max_rows, dtype=np.int64)
        self.num_prompt = np.zeros(max_rows, dtype=np.int64)
        self.adapters = np.full(max_rows, NO_SLOT, dtype=np.int32)
        self.shifts = np.zeros(max_rows, dtype=np.int64)
        self.num_rows = max_rows
        self._epochs = np.zeros(max_rows, dtype=np.int64)
        num_tables = num_groups + has_step_blocks
        table_rows = [cross_rows.get(group, 0) if cross_rows else 0 for group in range(num_tables)]
        self.tables = [
            BlockTable(
                max_rows, -(-(rows or width) // block_tokens), block_tokens, is_cross=rows > 0
            )
            for rows in table_rows
        ]
        self._cross = CrossRows(max_rows) if cross_rows else None
        self._kept = self.tables[:num_groups]
        self._step_table = self.tables[-1] if has_step_blocks else None

    def add_row(self, new: NewRow) -> None:
        """Fill a row with a request's tokens and blocks. Mutates: self"""
        count = len(new.token_ids)
        self.tokens[new.row, :count] = new.token_ids
        self.lengths[new.row] = count
        self.num_prompt[new.row] = new.num_prompt_tokens
        self.adapters[new.row] = new.adapter_slot
        self.shifts[new.row] = 0
        self._epochs[new.row] += 1
        if self._cross is not None:
            self._cross.add_row(new)
        for table, blocks in zip(self._kept, new.blocks, strict=True):
            table.fill_row(new.row, blocks)

    def sanitize_row(self, row: int, vocab_size: int) -> int | None:
        """Replace token ids outside the vocabulary with 0, since one would fail the whole step.

        Returns the first such id. Mutates: self
        """
        tokens = self.tokens[row, : self.lengths[row]]
        if not len(tokens) or (tokens.min() >= 0 and tokens.max() < vocab_size):
            return None
        is_foreign = (tokens < 0) | (tokens >= vocab_size)
        first = int(tokens[is_foreign][0])
        tokens[is_foreign] = 0
        return first

    def free_row(self, row: int) -> None:
        """Empty a row. Mutates: self"""
        self.lengths[row] = 0
        self._epochs[row] += 1
        for table in self.tables:
            table.clear_row(row)

    def append(self, rows: np.ndarray, token_ids: Sequence[int] | np.ndarray) -> None:
        """Add one drawn token to each row. Mutates: self"""
        self.tokens[rows, self.lengths[rows]] = token_ids
        self.lengths[rows] += 1

    def expect(self, rows: np.ndarray) -> Expected:
        """Make room for one token per row that the host learns later. Shapes: [S]. Mutates: self"""
        positions = self.lengths[rows]
        self.append(rows, np.full(len(rows), UNKNOWN))
        return Expected(rows=rows, positions=positions, epochs=self._epochs[rows])

    def awaiting(self, rows: np.ndarray) -> Expected:
        """Return the same as `expect`, without making room yet. Shapes: [S]"""
        return Expected(rows=rows, positions=self.lengths[rows], epochs=self._epochs[rows])

    def fill(self, expected: Expected, token_ids: Sequence[int]) -> None:
        """Write expected tokens, except for rows that have ended. Mutates: self"""
        is_live = self.is_alive(expected)
        places = expected.rows[is_live], expected.positions[is_live]
        self.tokens[places] = np.asarray(token_ids, dtype=np.int32)[is_live]

    def is_alive(self, expected: Expected) -> np.ndarray:
        """Return which rows still hold the same requests. Shapes: [S] bool"""
        alive: np.ndarray = self._epochs[expected.rows] == expected.epochs
        return alive

    def extend(self, row: int, token_ids: Sequence[int]) -> None:
        """Add tokens to one row. Mutates: self"""
        start = int(self.lengths[row])
        self.tokens[row, start : start + len(token_ids)] = token_ids
        self.lengths[row] += len(token_ids)

    def accept(self, rows: np.ndarray, num_true: Sequence[int], token_ids: Sequence[int]) -> None:
        """Accept the first `num_true` drafts that follow each row's tokens, then add one drawn
        token. Shapes: rows [S]. Mutates: self"""
        ends = self.lengths[rows] + num_true
        self.tokens[rows, ends] = token_ids
        self.lengths[rows] = ends + 1

    def gather(self, plan: StepPlan) -> StepInputs:
        """Append each row's new blocks, then return the step's inputs. Mutates: self"""
        steps = plan.rows
        self._append_blocks(steps)
        rows = np.array([s.row for s in steps], dtype=np.int64)
        starts = np.array([s.start for s in steps], dtype=np.int64)
        counts = np.array([s.num_tokens for s in steps], dtype=np.int64)
        samples = np.array([s.samples for s in steps], dtype=bool)
        known = self.lengths[rows]
        is_drafted = starts + counts > known
        drafted = self._lay_drafts(steps, is_drafted) if is_drafted.any() else ()
        query_start = np.zeros(len(steps) + 1, dtype=np.int64)
        np.cumsum(counts, out=query_start[1:])
        if query_start[-1] == len(steps):
            token_rows, positions = rows, starts
        elif len(steps) == 1:
            (step,) = steps
            token_rows = np.full(step.num_tokens, step.row)
            positions = np.arange(step.start, step.start + step.num_tokens)
        else:
            token_rows = np.repeat(rows, counts)
            shift = np.repeat(starts - query_start[:-1], counts)
            positions = np.arange(query_start[-1]) + shift
        return StepInputs(
            steps=steps,
            rows=rows,
            starts=starts,
            counts=counts,
            samples=samples,
            query_start=query_start,
            token_rows=token_rows,
            token_ids=self.tokens[token_rows, positions].astype(np.int64),
            positions=positions,
            drafted=drafted,
            adapters=self._adapters(rows, token_rows),
            shifts=self.shifts[token_rows] if self.shifts[rows].any() else None,
            cross=None if self._cross is None else self._cross.take(rows),
            is_decoding=bool((samples & (starts + 1 == known)).all()),
        )

    def _adapters(self, rows: np.ndarray, token_rows: np.ndarray) -> np.ndarray | None:
        """Return the adapter slots of a step's tokens, None if no row uses one."""
        if (self.adapters[rows] == NO_SLOT).all():
            return None
        found: np.ndarray = self.adapters[token_rows]
        return found

    def _lay_drafts(self, steps: Sequence[RowStep], is_drafted: np.ndarray) -> Sequence[int]:
        """Write drafts after their rows' known tokens, without changing the rows' lengths.

        Returns the indices of the rows. Mutates: self
        """
        drafted: list[int] = np.flatnonzero(is_drafted).tolist()
        known = self.lengths.take([steps[index].row for index in drafted]).tolist()
        for index, first in zip(drafted, known, strict=True):
            step = steps[index]
            end = first + len(step.drafts)
            is_right = (step.start, step.start + step.num_tokens) == (first - 1, end)
            assert is_right, "the plan computes tokens that a row does not have"
            self.tokens[step.row, first:end] = step.drafts
        return drafted

    def _append_blocks(self, steps: Sequence[RowStep]) -> None:
        for step in steps:
            for table, blocks in zip(self._kept, step.new_blocks, strict=True):
                if blocks:
                    table.append(step.row, blocks)
        if self._step_table is not None:
            self._lay_step(steps, self._step_table)

    def _lay_step(self, steps: Sequence[RowStep], table: BlockTable) -> None:
        """Assign consecutive step blocks to the step's rows. Mutates: table"""
        first = 1  # block 0 is the null block
        for step in steps:
            end = first + -(-(step.start + step.num_tokens) // table.block_tokens)
            table.fill_row(step.row, range(first, end))
            first = end

    def prompt_ids(self, row: int) -> Sequence[int]:
        """Return a read-only view of the row's prompt."""
        return LiveTokens(self, row, 0, int(self.num_prompt[row]))

    def output_ids(self, row: int) -> Sequence[int]:
        """Return a read-only view of the row's drawn tokens that grows with them."""
        return LiveTokens(self, row, int(self.num_prompt[row]), None)

    def row_tokens(self, new: NewRow) -> RowTokens:
        """Return an added row as logits processors see it."""
        return RowTokens(
            row=new.row,
            params=new.sampling,
            prompt_ids=() if _is_of_vectors(new) else self.prompt_ids(new.row),
            output_ids=self.output_ids(new.row),
            seed=new.seed,
            request_id=new.request_id,
        )

    def views(self, inputs: StepInputs) -> Sequence[StepRow]:
        """Return the step's rows as models see them, computed on first use."""
        return StepRows(self, inputs)


def _is_of_vectors(new: NewRow) -> bool:
    """Return whether a row's whole prompt is vectors, so that no token of it was seen."""
    return any(
        part.kind == VECTORS and part.num_rows == new.num_prompt_tokens for part in new.parts
    )


class LiveTokens(Sequence[int]):
    """Tokens `start` to `end` (None: the last known one) of a row, without a copy."""

    __slots__ = ("_batch", "_end", "_row", "_start")

    def __init__(self, batch: Batch, row: int, start: int, end: int | None) -> None:
        self._batch, self._row, self._start, self._end = batch, row, start, end

    def __len__(self) -> int:
        end = int(self._batch.lengths[self._row]) if self._end is None else self._end
        return max(0, end - self._start)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        known = self._batch.tokens[self._row, self._start : self._start + len(self)]
        if isinstance(index, slice):
            return [int(token) for token in known[index].tolist()]
        return int(known[index])

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> np.ndarray:
        known = self._batch.tokens[self._row, self._start : self._start + len(self)]
        return known.astype(known.dtype if dtype is None else dtype, copy=copy is not False)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """A row of the running step (`interfaces.model.RowView`)."""

    num_prompt_tokens: int
    token_ids: Sequence[int]
    start: int
    num_tokens: int


class StepRows(Sequence[StepRow]):
    """The rows of a step, in the order of the batch."""

    __slots__ = ("_batch", "_inputs")

    def __init__(self, batch: Batch, inputs: StepInputs) -> None:
        self._batch, self._inputs = batch, inputs

    def __len__(self) -> int:
        return len(self._inputs.steps)

    @overload
    def __getitem__(self, index: int) -> StepRow: ...
    @overload
    def __getitem__(self, index: slice) -> list[StepRow]: ...
    def __getitem__(self, index: int | slice) -> StepRow | list[StepRow]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        step = self._inputs.steps[index]
        # Drafts follow the row's known tokens.
        drafts_end = step.start + step.num_tokens if step.drafts else None
        return StepRow(
            num_prompt_tokens=int(self._batch.num_prompt[step.row]),
            token_ids=LiveTokens(self._batch, step.row, 0, drafts_end),
            start=step.start,
            num_tokens=step.num_tokens,
        )
