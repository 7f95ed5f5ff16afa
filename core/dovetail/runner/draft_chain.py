"""DraftChain: all drafts of a step, from the states after known tokens on, as one native call.

Where a drafter makes native calls alone, what it does for one draft after the other, its logits and
the choice of the most likely token among them, is recorded once for each number of rows and drafts
and run again as one program: each pass reads the tokens where the choice before it wrote them. The
first repetition is compared with what the drafter says step by step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from dovetail.interfaces.attention import BatchLayout
from dovetail.interfaces.drafter import WorkerDrafter
from dovetail.runner.batch import StepInputs
from dovetail.runner.block_table import BlockTable
from dovetail.runner.recorded_inputs import RowInputs
from dovetail_kernels.cpu import library as native
from dovetail_kernels.cpu.program import NotRecordable, Pool, Program, record
from dovetail_kernels.sample.native import NativeSampler, Tables

MAX_ROWS = 16
"""Above this many rows the drafter's own work takes so long that recording saves little."""

log = logging.getLogger(__name__)

Advance = Callable[
    [torch.Tensor, torch.Tensor, Sequence[BatchLayout], torch.Tensor | None, int], torch.Tensor
]
"""(token_ids, positions, layouts, states, depth) -> states: a pass of the drafter."""


@dataclass(slots=True)
class _Recorded:
    """A program, and whether what it says was once found to be the drafter's own."""

    program: Program
    is_proven: bool = False


class DraftChain:
    """Programs by numbers of rows and drafts, and the fixed places of their inputs."""

    def __init__(
        self,
        advance: Advance,
        drafter: WorkerDrafter,
        tables: Sequence[BlockTable],
        max_drafts: int,
    ) -> None:
        self._advance = advance
        self._drafter = drafter
        self._continues = "hidden_states" in drafter.capabilities
        self._inputs = [RowInputs(tables, MAX_ROWS) for _ in range(max_drafts)]
        self._states: torch.Tensor | None = None
        self._programs: dict[tuple[int, int], _Recorded | None] = {}
        self._pool = Pool()
        self._reason: str | None = native.missing_reason()
        if self._reason is None:
            self._samplers = [NativeSampler(Tables(MAX_ROWS)) for _ in range(max_drafts)]
            self._rows = np.arange(MAX_ROWS)
            self._zeros = np.zeros(MAX_ROWS, dtype=np.int64)

    def run(
        self, rows: np.ndarray, starts: np.ndarray, wants: np.ndarray, states: torch.Tensor
    ) -> tuple[np.ndarray, bool] | None:
        """Return drafts of all rows, as many as the one that wants most, and whether they are
        proven; None where they are not recorded. What was not proven is to be drafted once more,
        and `prove` told of it.

        A row that wants fewer goes on at the place of its last draft, which is its own.
        Shapes: rows, starts, wants [R], states [R, E] -> [R, D]. Mutates: self, and the KV cache
        """
        size = len(rows), int(wants.max())
        if self._reason is not None or size[0] > MAX_ROWS:
            return None
        if size not in self._programs:
            self._programs[size] = None  # the next time it comes it is worth recording
            return None
        self._fill(rows, starts, wants, states)
        recorded = self._programs[size] or self._record(size)
        if recorded is None:
            return None
        recorded.program.run()
        drafts = [self._samplers[depth].tokens[: size[0]] for depth in range(size[1])]
        return np.stack(drafts, axis=1), recorded.is_proven

    def prove(self, found: np.ndarray, drafts: np.ndarray, wants: np.ndarray) -> None:
        """Compare drafts with those of the drafter itself. Shapes: [R, D] twice, [R]
        Mutates: self"""
        recorded = self._programs[found.shape]
        assert recorded is not None, "it has just run"
        counts = np.arange(found.shape[1]) < wants[:, None]
        if np.array_equal(found[counts], drafts[counts]):
            recorded.is_proven = True
        else:
            self._reason = "repeated drafts differed from the drafter's own"
            log.warning("drafts are not recorded: %s", self._reason)

    def _fill(
        self, rows: np.ndarray, starts: np.ndarray, wants: np.ndarray, states: torch.Tensor
    ) -> None:
        """Write what the passes read at its places. Mutates: self"""
        count, last = len(rows), starts + wants - 1
        if self._states is None:
            self._states = states.new_zeros(MAX_ROWS, states.shape[1])
        self._states[:count] = states
        ones, edges = np.ones_like(rows), np.arange(count + 1)
        for depth in range(1, int(wants.max())):
            places = np.minimum(starts + depth - 1, last)
            inputs = StepInputs(
                steps=(),
                rows=rows,
                starts=places,
                counts=ones,
                samples=ones,
                query_start=edges,
                token_rows=rows,
                token_ids=ones,
                positions=places,
            )
            self._inputs[depth].fill(inputs, None)

    def _record(self, size: tuple[int, int]) -> _Recorded | None:
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

    def _guess(self, size: tuple[int, int], kept: list[BatchLayout]) -> torch.Tensor:
        """Draft from what lies at the fixed places. `kept` gets the layouts."""
        assert self._states is not None, "the places are filled"
        count, num_drafts = size
        states = self._states[:count]
        for depth in range(num_drafts):
            if depth:
                inputs = self._inputs[depth]
                layouts = inputs.layouts(count)
                kept.extend(layouts)
                token_ids = torch.from_numpy(self._samplers[depth - 1].tokens)[:count]
                _, positions = inputs.tokens(count)
                given = states if self._continues else None
                states = self._advance(token_ids, positions, layouts, given, depth)
            logits = self._drafter.logits(states, depth)
            self._samplers[depth](logits, self._rows[:count], self._zeros[:count])
        return states
