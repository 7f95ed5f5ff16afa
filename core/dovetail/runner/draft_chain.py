"""DraftChain: the catching up on known tokens and all drafts of a step, as one native call.

Where a drafter makes native calls alone, what it does of the tokens that it has not seen and for
one draft after the other, its logits and the choice of the most likely token among them, is
recorded once for each number of rows, tokens and drafts and run again as one program: each pass
reads the tokens where the choice before it wrote them. The first repetition is compared with what
the drafter says step by step.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from dovetail.interfaces.attention import BatchLayout
from dovetail.interfaces.drafter import WorkerDrafter
from dovetail.runner.batch import Batch
from dovetail.runner.block_table import BlockTable
from dovetail_kernels.cpu import library as native
from dovetail_kernels.cpu.program import NotRecordable, Pool, Program, record
from dovetail_kernels.sample.native import NativeSampler, Tables

MAX_ROWS = 32
"""Above this many rows the drafter's own work takes so long that recording saves little."""
FEW_ROWS = 2
"""Up to so many rows, drafts of one and of all even numbers are recorded; above, of one and
the most."""
MANY_ROWS_DRAFTS = 6
"""The longest drafts with more rows than that: all rows are drafted for as long as one goes on."""
CATCH_UP_TOKENS = 64
"""With so many more tokens than rows to catch up on, all but the last of each row go before."""
MAX_LINES = 160
"""The same of the tokens to catch up on."""
LEAST_CHANCE, LEAST_AMONG_MANY = 0.2, 0.5
"""Drafts end before one that comes true less often than this, by the drafter's own chances of it
and of those before it: verifying a position costs about a fifth of what a token is worth, and with
more than FEW_ROWS, where a plain step's cost is shared by many tokens, about half."""

log = logging.getLogger(__name__)

Advance = Callable[
    [torch.Tensor, torch.Tensor, Sequence[BatchLayout], torch.Tensor | None, int], torch.Tensor
]
"""(token_ids, positions, layouts, states, depth) -> states: a pass of the drafter."""
Size = tuple[int, int, int]
"""Rows, lines of the pass that catches up, drafts, each of them padded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The tokens to catch up on, a line each: the last one of every row, then those before them.
    `picked` are the lines' places where rows come one after the other, each with all its tokens.
    Shapes: all [N]"""

    rows: np.ndarray
    positions: np.ndarray
    picked: np.ndarray


def known_lines(rows: np.ndarray, starts: np.ndarray, limits: np.ndarray) -> Known:
    """Return the tokens of some rows from `starts` up to `limits`, of each at least one. Every line
    is a row of its own, which sees those before it, so their order is free. Shapes: all [R]"""
    if len(rows) == 1:
        return _known_of_one(rows, int(starts[0]), int(limits[0]))
    lines = list(zip(rows.tolist(), starts.tolist(), limits.tolist(), strict=True))
    own_rows, positions, picked = rows.tolist(), (limits - 1).tolist(), []
    before: list[int] = []
    end = 0
    for row, start, limit in lines:  # there are few: lists take less time than arrays
        count = limit - start
        end += count
        picked.append(end - 1)
        if count > 1:
            own_rows += [row] * (count - 1)
            positions += range(start, limit - 1)
            before += range(end - count, end - 1)
    return Known(
        rows=np.array(own_rows), positions=np.array(positions), picked=np.array(picked + before)
    )


def _known_of_one(rows: np.ndarray, start: int, limit: int) -> Known:
    """Return the tokens of a row: as they come, but for the last one, which is the first line.
    Shapes: rows [1]"""
    if limit - start == 1:
        return Known(rows=rows, positions=np.array([start]), picked=np.zeros(1, dtype=np.int64))
    positions = np.arange(start - 1, limit)
    positions[0] = limit - 1
    positions = positions[:-1]
    return Known(rows=np.repeat(rows, limit - start), positions=positions, picked=positions - start)


@dataclass(slots=True)
class _Recorded:
    """A program, and whether what it says was once found to be the drafter's own."""

    program: Program
    is_proven: bool = False


class _Places:
    """Where the passes of a step read: line 0 on what is known, then the drafts of each depth."""

    def __init__(self, table: BlockTable, max_drafts: int) -> None:
        self._table = table
        self.tokens = np.zeros(MAX_LINES, dtype=np.int64)
        self.positions = np.zeros(MAX_LINES, dtype=np.int64)
        self.lens = np.ones(MAX_LINES, dtype=np.int32)
        self.slots = np.zeros(MAX_LINES, dtype=np.int64)
        self.blocks = np.zeros((MAX_LINES, table.ids.shape[1]), dtype=np.int32)
        self.starts = np.arange(MAX_LINES + 1, dtype=np.int32)
        self._nth = np.arange(max_drafts)[:, None]
        self.draft_positions = np.zeros((max_drafts, MAX_ROWS), dtype=np.int64)
        self.draft_lens = np.ones((max_drafts, MAX_ROWS), dtype=np.int32)
        self.draft_slots = np.zeros((max_drafts, MAX_ROWS), dtype=np.int64)

    def fill(
        self,
        known: Known,
        tokens: np.ndarray,
        size: Size,
        wants: np.ndarray,
        skipped: np.ndarray | None,
    ) -> None:
        """Write a step's inputs; what pads it is tokens of the null block. A row that wants fewer
        drafts goes on at the place of its last one. `skipped`: how many blocks at its start each
        row of the batch does not read (None: it reads all). Shapes: tokens [N], wants [R]. Mutates:
        self"""
        rows, (num_rows, num_lines, depth) = len(wants), size
        firsts = known.positions[:rows] + 1
        ends = firsts + wants
        width = -(-int(ends.max()) // self._table.block_tokens)
        end = num_rows + len(known.rows) - rows
        if num_rows == rows:
            self._put(slice(0, end), known, slice(0, end), tokens, width)
        else:
            self._put(slice(0, rows), known, slice(0, rows), tokens, width)
            self._put(slice(num_rows, end), known, slice(rows, None), tokens, width)
        for padding in (slice(rows, num_rows), slice(end, num_lines)):
            if padding.stop > padding.start:
                self.tokens[padding] = self.positions[padding] = self.slots[padding] = 0
                self.blocks[padding, 0], self.lens[padding] = 0, 1
        if depth > 1:
            places = np.minimum(firsts + self._nth[: depth - 1], ends - 1)
            drafts = slice(1, depth), slice(0, rows)
            self.draft_positions[drafts] = places
            self.draft_lens[drafts] = places + 1
            if skipped is not None:
                self.draft_lens[drafts] -= skipped[known.rows[:rows]] * self._table.block_tokens
            self.draft_slots[drafts] = self._table.slots(known.rows[:rows], places)
            if num_rows > rows:
                unused = slice(1, depth), slice(rows, num_rows)
                self.draft_positions[unused] = self.draft_slots[unused] = 0
                self.draft_lens[unused] = 1
        if skipped is not None:
            lines = slice(0, rows), slice(num_rows, end)
            for own, of in zip(lines, (known.rows[:rows], known.rows[rows:]), strict=True):
                self._skip(own, of, skipped[of], width)

    def _skip(self, lines: slice, rows: np.ndarray, skipped: np.ndarray, width: int) -> None:
        """Let lines begin behind the blocks that their rows do not read. Shapes: rows, skipped [L].
        Mutates: self"""
        own = np.minimum(skipped[:, None] + np.arange(width), self._table.ids.shape[1] - 1)
        self.blocks[lines, :width] = self._table.ids[rows[:, None], own]
        self.lens[lines] -= skipped * self._table.block_tokens

    def _put(self, lines: slice, known: Known, own: slice, tokens: np.ndarray, width: int) -> None:
        """Write some of the known tokens, with the first blocks of their rows. Mutates: self"""
        if lines.stop == lines.start:
            return
        rows, positions = known.rows[own], known.positions[own]
        self.tokens[lines], self.positions[lines] = tokens[own], positions
        self.lens[lines] = positions + 1
        self.slots[lines] = self._table.slots(rows, positions)
        self.blocks[lines, :width] = self._table.ids[rows, :width]

    def layout(self, count: int, lens: np.ndarray, slots: np.ndarray) -> BatchLayout:
        """Return a layout of lines of one token. Shapes: lens, slots [count]"""
        starts = self.starts[: count + 1]
        return BatchLayout(
            query_start=torch.from_numpy(starts),
            seq_lens=torch.from_numpy(lens),
            block_table=torch.from_numpy(self.blocks)[:count],
            slots=torch.from_numpy(slots),
            query_start_host=starts.tolist(),
            seq_lens_host=lens.tolist(),
            block_tokens=self._table.block_tokens,
            max_query_tokens=1,
            max_seq_tokens=int(lens.max()),
        )


class DraftChain:
    """Programs by numbers of rows, lines and drafts, and the fixed places of their inputs."""

    def __init__(
        self, advance: Advance, drafter: WorkerDrafter, batch: Batch, max_drafts: int
    ) -> None:
        self._advance = advance
        self._drafter = drafter
        self._batch = batch
        self._continues = "hidden_states" in drafter.capabilities
        self._places = _Places(batch.tables[0], max_drafts)
        self._states: torch.Tensor | None = None
        self._max_drafts = max_drafts
        self._most_of_many = min(max_drafts, MANY_ROWS_DRAFTS)
        self._programs: dict[Size, _Recorded] = {}
        self._pool = Pool()
        self._reason: str | None = native.missing_reason()
        if self._reason is None:
            tables = Tables(MAX_ROWS)
            tables.num_top[:] = 0  # the chosen token's own logprob is told
            self._samplers = [NativeSampler(tables) for _ in range(max_drafts)]
            self._logprobs: list[np.ndarray] = [np.zeros(0)] * max_drafts
            self._rows = np.arange(MAX_ROWS)
            self._zeros = np.zeros(MAX_ROWS, dtype=np.int64)

    def most_drafts(self, num_rows: int) -> int:
        """Return how long the drafts of so many rows are worth being."""
        return self._max_drafts if num_rows <= FEW_ROWS else self._most_of_many

    def takes(self, num_rows: int) -> bool:
        """Return whether steps of so many rows may be recorded."""
        return self._reason is None and num_rows <= MAX_ROWS

    def run(
        self,
        rows: np.ndarray,
        starts: np.ndarray,
        limits: np.ndarray,
        wants: np.ndarray,
        states: torch.Tensor | None,
        skipped: np.ndarray,
    ) -> tuple[np.ndarray, Size, bool] | None:
        """Catch up on the rows' tokens from `starts` up to `limits`, and draft what follows.
        `states` are the model's, rows one after the other (None: the drafter needs none), `skipped`
        the blocks that each row of the batch does not read, once the size is proven. Returns
        drafts of all rows, as many as the one that wants most, the program's size, and whether it
        is proven; None where they are not recorded. What was not proven is to be drafted once more,
        and `prove` told of it.

        Shapes: rows, starts, limits, wants [R], states [N, E] -> [R, D]. Mutates: self, and the KV
        cache
        """
        known = known_lines(rows, starts, limits)
        size = self._size(len(rows), len(known.rows), int(wants.max()))
        if not self.takes(len(rows)) or size[1] > MAX_LINES:
            return None
        tokens = self._batch.tokens[known.rows, known.positions + int(self._continues)]
        recorded = self._programs.get(size)
        skips = recorded is not None and recorded.is_proven and skipped[rows].any()
        self._places.fill(known, tokens, size, wants, skipped if skips else None)
        if states is not None:
            self._take(states, known.picked, len(rows), size[0])
        recorded = recorded or self._record(size)
        if recorded is None:
            return None
        recorded.program.run()
        drawn = [one.tokens[: len(rows)] for one in self._samplers[: int(wants.max())]]
        return np.array(drawn).T, size, recorded.is_proven

    def likely(self, wants: Sequence[int]) -> list[int]:
        """Return how many of the last run's drafts are likely enough to be verified, of so many
        that each row wants, at least one."""
        least = math.log(LEAST_CHANCE if len(wants) <= FEW_ROWS else LEAST_AMONG_MANY)
        told = [one[: len(wants)].tolist() for one in self._logprobs[: max(wants)]]
        counts = []
        for row, most in enumerate(wants):
            chance, count = 0.0, 0
            while count < most and (chance := chance + told[count][row]) >= least:
                count += 1
            counts.append(count or 1)
        return counts

    def _size(self, rows: int, tokens: int, drafts: int) -> Size:
        """Return the size that a step is padded to, so that few have to be recorded: where several
        rows go on, it is every row for the longest draft."""
        most, extra = self._max_drafts, tokens - rows
        if rows <= FEW_ROWS:
            return (
                rows,
                rows + _next_power(extra),
                min(most, drafts if drafts < 2 else drafts + drafts % 2),
            )
        padded = -(-rows // 2) * 2 if rows <= 8 else -(-rows // 4) * 4
        half = padded // 2  # of the rows, about so many were accepted to the end
        more = -(-extra // half) * half
        if extra > padded:
            more = padded * _next_power(-(-extra // padded))
        return padded, padded + more, 1 if drafts == 1 else self._most_of_many

    def _take(self, states: torch.Tensor, picked: np.ndarray, rows: int, num_rows: int) -> None:
        """Write the model's states of the known tokens at their places. Mutates: self"""
        if self._states is None:
            self._states = states.new_zeros(MAX_LINES, states.shape[1])
        end = num_rows + len(picked) - rows
        if rows == 1:
            self._states[0], self._states[1:end] = states[-1], states[:-1]
            return
        if len(picked) > rows:
            states = states[torch.from_numpy(picked)]
        self._states[:rows], self._states[num_rows:end] = states[:rows], states[rows:]

    def prove(self, size: Size, found: np.ndarray, drafts: np.ndarray, wants: np.ndarray) -> None:
        """Compare drafts with those of the drafter itself. Shapes: [R, D] twice, [R]
        Mutates: self"""
        recorded = self._programs[size]
        counts = np.arange(found.shape[1]) < wants[:, None]
        if np.array_equal(found[counts], drafts[counts]):
            recorded.is_proven = True
        else:
            self._reason = "repeated drafts differed from the drafter's own"
            log.warning("drafts are not recorded: %s", self._reason)

    def _record(self, size: Size) -> _Recorded | None:
        """Return the program of a size, or None for good when the drafter has none."""
        kept: list[BatchLayout] = []
        try:
            program = record(lambda: self._guess(size, kept), self._pool, kept=kept)
        except NotRecordable as error:
            self._reason = str(error)
            log.info("drafts are not recorded: %s", error)
            return None
        self._programs[size] = found = _Recorded(program)
        return found

    def _guess(self, size: Size, kept: list[BatchLayout]) -> torch.Tensor:
        """Draft from what lies at the fixed places. `kept` gets the layouts."""
        count, num_lines, num_drafts = size
        places, given = self._places, None if self._states is None else self._states[:num_lines]
        states = self._pass(
            num_lines, places.tokens, places.positions, places.lens, places.slots, given, 0, kept
        )[:count]
        for depth in range(num_drafts):
            if depth:
                drawn = self._samplers[depth - 1].tokens
                positions, lens = places.draft_positions[depth], places.draft_lens[depth]
                slots, given = places.draft_slots[depth], states if self._continues else None
                states = self._pass(count, drawn, positions, lens, slots, given, depth, kept)
            logits = self._drafter.logits(states, depth)
            lines = self._rows[:count], self._zeros[:count]
            told = self._samplers[depth](logits, *lines, logprobs_top=0)
            assert told is not None, "logprobs were asked for"
            self._logprobs[depth] = told.logprob
        return states

    def _pass(
        self,
        count: int,
        tokens: np.ndarray,
        positions: np.ndarray,
        lens: np.ndarray,
        slots: np.ndarray,
        states: torch.Tensor | None,
        depth: int,
        kept: list[BatchLayout],
    ) -> torch.Tensor:
        """Run one pass over the first `count` of what lies at some places."""
        layout = self._places.layout(count, lens[:count], slots[:count])
        kept.append(layout)
        token_ids, told = torch.from_numpy(tokens)[:count], torch.from_numpy(positions)[:count]
        return self._advance(token_ids, told, [layout], states, depth)


def _next_power(count: int) -> int:
    """Return the next power of two, 0 for 0: so few sizes have to be recorded."""
    return 1 << (count - 1).bit_length() if count else 0
