"""DraftChain: runs a drafter's catch-up on known tokens and all drafts of a step as one native
call.

If a drafter makes only native calls, two kinds of programs are recorded: its pass over new known
tokens, by number of rows and tokens, and its pass over the previous draft, by number of rows. Each
includes the logits and the choice of the most likely token. They run one after the other
(`dovetail_kernels.cpu.chain`), on the rows whose drafts are likely so far. A program's first result
is compared with the drafter's own, computed step by step.
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
from dovetail.runner.rows.batch import Batch
from dovetail_kernels.cpu import library as native
from dovetail_kernels.cpu.chain import Chain, Lines
from dovetail_kernels.cpu.program import NotRecordable, Pool, Program, record
from dovetail_kernels.sample.native import NativeSampler, Tables

MAX_ROWS = 32
"""With more rows, the drafter's own work takes so long that recording saves little."""
FEW_ROWS = 2
"""With more rows than this, many tokens share the cost of a plain step."""
CATCH_UP_TOKENS = 64
"""With this many more tokens than rows to catch up on, all but each row's last go first."""
MAX_LINES = 160
"""The maximum number of tokens to catch up on."""
LEAST_CHANCE, LEAST_AMONG_MANY = 0.2, 0.5
"""Drafts end before one whose chance is below this: the product of the drafter's probabilities up
to it. Verifying a position costs about a fifth of a token's worth, and with more than FEW_ROWS
about half."""
LEFT_OUT = 8
"""With more than FEW_ROWS, a row's drafts are left out if not even the first is likely. Exceptions:
the first time, one time in this many, and after an accepted one, since a drafter may be right more
often than it thinks."""

log = logging.getLogger(__name__)

Advance = Callable[
    [torch.Tensor, torch.Tensor, Sequence[BatchLayout], torch.Tensor | None, int], torch.Tensor
]
"""(token_ids, positions, layouts, states, depth) -> states: a pass of the drafter."""
Size = tuple[int, int, int]
"""Depth, rows, and lines; except at depth 0, lines equal rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The tokens to catch up on, one line each: first every row's last one, then those before.
    `picked` are the lines' indices in the concatenation of all rows' tokens.
    Shapes: all [N]"""

    rows: np.ndarray
    positions: np.ndarray
    picked: np.ndarray


def known_lines(rows: np.ndarray, starts: np.ndarray, limits: np.ndarray) -> Known:
    """Return the tokens of some rows from `starts` up to `limits`, at least one per row. Every line
    is a row of its own, which sees the tokens before it, so the order is free. Shapes: all [R]"""
    if len(rows) == 1:
        return _known_of_one(rows, int(starts[0]), int(limits[0]))
    lines = list(zip(rows.tolist(), starts.tolist(), limits.tolist(), strict=True))
    own_rows, positions, picked = rows.tolist(), (limits - 1).tolist(), []
    before: list[int] = []
    end = 0
    for row, start, limit in lines:  # few items: lists are faster than arrays
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
    """Return the tokens of one row: the last one first, then the others in order. Shapes: rows
    [1]"""
    if limit - start == 1:
        return Known(rows=rows, positions=np.array([start]), picked=np.zeros(1, dtype=np.int64))
    positions = np.arange(start - 1, limit)
    positions[0] = limit - 1
    positions = positions[:-1]
    return Known(rows=np.repeat(rows, limit - start), positions=positions, picked=positions - start)


@dataclass(slots=True)
class _Recorded:
    """A program, and whether its result was once equal to the drafter's own."""

    program: Program
    is_proven: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafted:
    """The drafts of a step by row: the first `made` are computed, the first `likely` are worth
    verifying. `parts` are the programs that ran; `are_proven`: all are proven.
    Shapes: drafts [R, D], made, likely [R]"""

    drafts: np.ndarray
    made: np.ndarray
    likely: np.ndarray
    parts: tuple[Size, ...]
    are_proven: bool


class DraftChain:
    """Programs by depth, rows and lines, and the fixed buffers of their inputs."""

    def __init__(
        self, advance: Advance, drafter: WorkerDrafter, batch: Batch, max_drafts: int
    ) -> None:
        self._advance = advance
        self._drafter = drafter
        self._batch = batch
        self._table = batch.tables[0]
        self._continues = "hidden_states" in drafter.capabilities
        self._is_by_depth = "by_depth" in drafter.capabilities
        self._max_drafts = max_drafts
        self._programs: dict[Size, _Recorded] = {}
        self._pool = Pool()
        self._known = Lines.empty(MAX_LINES, self._table.ids.shape[1], None)
        self._states: torch.Tensor | None = None
        self._left_out = np.full(batch.num_rows, LEFT_OUT)
        self._tried_at = np.full(batch.num_rows, -1)
        self._chain: Chain | None = None
        self._reason: str | None = native.missing_reason()
        if self._reason is None:
            tables = Tables(MAX_ROWS)
            tables.num_top[:] = 0  # only the chosen token's logprob is returned
            self._sampler = NativeSampler(tables)
            self._rows = np.arange(MAX_ROWS)
            self._zeros = np.zeros(MAX_ROWS, dtype=np.int64)

    def begin(self, row: int) -> None:
        """Note that a row has a new request. Mutates: self"""
        self._left_out[row], self._tried_at[row] = LEFT_OUT, -1

    def takes(self, num_rows: int) -> bool:
        """Return whether steps with this many rows may be recorded."""
        return self._reason is None and num_rows <= MAX_ROWS

    def run(
        self,
        rows: np.ndarray,
        starts: np.ndarray,
        limits: np.ndarray,
        wants: np.ndarray,
        states: torch.Tensor | None,
        skipped: np.ndarray,
    ) -> Drafted | None:
        """Catch up on the rows' tokens from `starts` up to `limits`, and draft what follows.
        `states` are the model's, concatenated by row (None: the drafter needs none). `skipped` are
        the leading blocks that each row of the batch does not read, used once the program is
        proven. Returns None if this is not recorded. Unproven drafts must be drafted again by the
        drafter and passed to `prove`.

        Shapes: rows, starts, limits, wants [R], states [N, E]. Mutates: self, and the KV cache
        """
        known = known_lines(rows, starts, limits)
        count = len(rows)
        size = _first_size(count, len(known.rows))
        if not self.takes(count) or size[2] > MAX_LINES:
            return None
        first = self._programs.get(size)
        skips = first is not None and first.is_proven and bool(skipped[rows].any())
        unread = skipped if skips else None
        ends = known.positions[:count] + 1 + wants
        width = -(-int(ends.max()) // self._table.block_tokens)
        self._fill(known, count, size, width, unread)
        if states is not None:
            self._take(states, known.picked, count, size[1])
        first = first or self._record(size)
        if first is None:
            return None
        chain = self._ready(count, first.program.output)
        if chain is None:
            return None
        self._ask(chain, rows, ends, wants, unread)
        is_few = count <= FEW_ROWS
        min_logprob = math.log(LEAST_CHANCE if is_few else LEAST_AMONG_MANY)
        chain.run(first.program, count, width, min_logprob)
        num_drafts, likely = chain.made[:count], chain.likely[:count]
        parts = (size, *self._parts(num_drafts))
        return Drafted(
            drafts=chain.drafts[:count],
            made=num_drafts,
            likely=np.maximum(likely, 1) if is_few else self._with_trials(rows, limits, likely),
            parts=parts,
            are_proven=all(self._programs[part].is_proven for part in parts),
        )

    def _with_trials(self, rows: np.ndarray, limits: np.ndarray, likely: np.ndarray) -> np.ndarray:
        """Return how many drafts of each row to verify; some rows without a likely draft get one
        (see LEFT_OUT). Shapes: [R] thrice. Mutates: self"""
        tried_at, are_none = self._tried_at[rows], likely == 0
        came_true = (tried_at >= 0) & (limits > tried_at + 1)
        left_out = np.where(came_true, LEFT_OUT, self._left_out[rows] + are_none)
        are_tried = are_none & (left_out >= LEFT_OUT)
        self._left_out[rows] = np.where(are_tried, 0, left_out)
        self._tried_at[rows] = np.where(are_tried, limits, -1)
        return likely + are_tried

    def prove(self, found: Drafted, drafts: np.ndarray) -> None:
        """Compare drafts with the drafter's own. Shapes: [R, D]. Mutates: self"""
        own = found.drafts[:, : drafts.shape[1]]
        are_made = np.arange(own.shape[1]) < found.made[:, None]
        if not np.array_equal(own[are_made], drafts[are_made]):
            self._reason = "repeated drafts differed from the drafter's own"
            log.warning("drafts are not recorded: %s", self._reason)
            return
        for part in found.parts:
            self._programs[part].is_proven = True

    def _parts(self, num_drafts: np.ndarray) -> list[Size]:
        """Return the sizes of the later programs that took part. Shapes: [R]"""
        going = (int((num_drafts > depth).sum()) for depth in range(1, int(num_drafts.max())))
        return [self._later_size(depth, count) for depth, count in enumerate(going, 1)]

    def _later_size(self, depth: int, rows: int) -> Size:
        padded = rows if rows <= 8 else -(-rows // 4) * 4
        return depth if self._is_by_depth else 1, padded, padded

    def _ready(self, rows: int, states: torch.Tensor) -> Chain | None:
        """Return the chain with drafting programs for up to `rows` rows; None if they are not
        recorded. `states`: the output of a pass. Mutates: self"""
        if self._chain is None:
            row_states = states.new_zeros(MAX_ROWS, states.shape[1]) if self._continues else None
            lines = Lines.empty(MAX_ROWS, self._table.ids.shape[1], row_states)
            drawn = self._sampler.tokens, self._sampler.logprobs.logprob
            self._chain = Chain(*drawn, self._known.blocks, lines, self._max_drafts)
        return self._chain if self._has_later(self._chain, rows) else None

    def _has_later(self, chain: Chain, rows: int) -> bool:
        """Return whether drafting for up to `rows` rows is recorded; records it. Mutates: self"""
        depths = self._max_drafts - 1 if self._is_by_depth else min(self._max_drafts - 1, 1)
        while len(chain.later) < depths:
            chain.later.append({})
        for depth, by_rows in enumerate(chain.later, 1):
            for count in range(len(by_rows) + 1, rows + 1):
                size = self._later_size(depth, count)
                if size not in self._programs:
                    chain.lines.clear(slice(0, MAX_ROWS))
                recorded = self._programs.get(size) or self._record(size)
                if recorded is None:
                    return False
                by_rows[count] = recorded.program, size[1]
        return True

    def _record(self, size: Size) -> _Recorded | None:
        """Return the program of a size; None, permanently, if the drafter has none."""
        layouts: list[BatchLayout] = []
        try:
            program = record(lambda: self._guess(size, layouts), self._pool, owner=layouts)
        except NotRecordable as error:
            self._reason = str(error)
            log.info("drafts are not recorded: %s", error)
            return None
        self._programs[size] = found = _Recorded(program)
        return found

    def _guess(self, size: Size, layouts: list[BatchLayout]) -> torch.Tensor:
        """Draft a token of each row from the fixed buffers; return the states. `layouts` receives
        the layout."""
        depth, count, num_lines = size
        places, given = self._known, self._states
        if depth:
            assert self._chain is not None, "drafts come behind known tokens"
            places, given = self._chain.lines, self._chain.lines.states
        layout = _layout(places, num_lines, self._table.block_tokens)
        layouts.append(layout)
        tokens, positions = (
            torch.from_numpy(each)[:num_lines] for each in (places.tokens, places.positions)
        )
        given = None if given is None else given[:num_lines]
        states = self._advance(tokens, positions, [layout], given, depth)
        logits = self._drafter.logits(states[:count], depth)
        self._sampler(logits, self._rows[:count], self._zeros[:count], logprobs_top=0)
        if self._continues and not states.is_contiguous():
            raise NotRecordable("its states have gaps")
        return states

    def _fill(
        self, known: Known, count: int, size: Size, width: int, skipped: np.ndarray | None
    ) -> None:
        """Write the known tokens of `count` rows, padded with tokens of the null block. Rows read
        `width` blocks. `skipped`: the leading blocks that each row of the batch does not read
        (None: it reads all). Mutates: self"""
        _, num_rows, num_lines = size
        tokens = self._batch.tokens[known.rows, known.positions + int(self._continues)]
        end = num_rows + len(known.rows) - count
        for lines, of in (
            (slice(0, count), slice(0, count)),
            (slice(num_rows, end), slice(count, None)),
        ):
            self._put(lines, known.rows[of], known.positions[of], tokens[of], width, skipped)
        for padding in (slice(count, num_rows), slice(end, num_lines)):
            if padding.stop > padding.start:
                self._known.clear(padding)

    def _ask(
        self,
        chain: Chain,
        rows: np.ndarray,
        ends: np.ndarray,
        wants: np.ndarray,
        skipped: np.ndarray | None,
    ) -> None:
        """Write the number and slots of the drafts that rows want; they end before position `ends`.
        Shapes: rows, ends, wants [R]. Mutates: chain"""
        count, max_drafts, table, firsts = len(rows), int(wants.max()), self._table, ends - wants
        chain.wants[:count], chain.positions[:count] = wants, firsts
        chain.skipped[:count] = 0 if skipped is None else skipped[rows] * table.block_tokens
        if max_drafts > 1:
            places = np.minimum(firsts + np.arange(max_drafts - 1)[:, None], ends - 1)
            chain.slots[: max_drafts - 1, :count] = table.slots(rows, places)

    def _put(
        self,
        lines: slice,
        rows: np.ndarray,
        positions: np.ndarray,
        tokens: np.ndarray,
        width: int,
        skipped: np.ndarray | None,
    ) -> None:
        """Write some known tokens, with the blocks that their rows read, after the skipped ones.
        Shapes: [L] thrice. Mutates: self"""
        if lines.stop == lines.start:
            return
        to, table = self._known, self._table
        to.tokens[lines], to.positions[lines] = tokens, positions
        to.lens[lines] = positions + 1
        to.slots[lines] = table.slots(rows, positions)
        if skipped is None:
            to.blocks[lines, :width] = table.ids[rows, :width]
        else:
            behind = skipped[rows]
            own = np.minimum(behind[:, None] + np.arange(width), table.ids.shape[1] - 1)
            to.blocks[lines, :width] = table.ids[rows[:, None], own]
            to.lens[lines] -= behind * table.block_tokens

    def _take(self, states: torch.Tensor, picked: np.ndarray, rows: int, num_rows: int) -> None:
        """Copy the model's states of the known tokens to their buffer. Mutates: self"""
        if self._states is None:
            self._states = states.new_zeros(MAX_LINES, states.shape[1])
        end = num_rows + len(picked) - rows
        if rows == 1:
            self._states[0], self._states[1:end] = states[-1], states[:-1]
            return
        if len(picked) > rows:
            states = states[torch.from_numpy(picked)]
        self._states[:rows], self._states[num_rows:end] = states[:rows], states[rows:]


def _layout(places: Lines, count: int, block_tokens: int) -> BatchLayout:
    """Return a layout of the first lines, each of one token."""
    lens = places.lens[:count]
    starts = np.arange(count + 1, dtype=np.int32)
    return BatchLayout(
        query_start=torch.from_numpy(starts),
        seq_lens=torch.from_numpy(lens),
        block_table=torch.from_numpy(places.blocks)[:count],
        slots=torch.from_numpy(places.slots)[:count],
        query_start_host=starts.tolist(),
        seq_lens_host=lens.tolist(),
        block_tokens=block_tokens,
        max_query_tokens=1,
        max_seq_tokens=int(lens.max()),
    )


def _first_size(rows: int, tokens: int) -> Size:
    """Return the padded size of a catch-up, so that few sizes have to be recorded."""
    extra = tokens - rows
    if rows <= FEW_ROWS:
        return 0, rows, rows + _next_power(extra)
    padded = 4 if rows <= 4 else -(-rows // 8) * 8
    more = padded * _next_power(-(-extra // padded))
    return 0, padded, padded + more


def _next_power(count: int) -> int:
    """Return the next power of two, 0 for 0, so that few sizes have to be recorded."""
    return 1 << (count - 1).bit_length() if count else 0
