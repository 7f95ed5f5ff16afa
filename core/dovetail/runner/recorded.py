"""RecordedForward: the forward pass of small steps, recorded once and run again as one native call.

In a step where every row computes one token, the calls are the same each time and only numbers
change. So their inputs lie at fixed places, the model's native calls are recorded for each number
of rows when it comes for the second time, and from then on Python's share of a step is gone. The
first repetition is compared with the model itself. A model that runs anything but native calls is
left as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

import numpy as np
import torch

from dovetail.interfaces.attention import BatchLayout
from dovetail.interfaces.spec import RunSpec
from dovetail.runner.batch import StepInputs
from dovetail.runner.block_table import BlockTable
from dovetail.runner.verify import one_by_one
from dovetail_kernels.cpu import library as native
from dovetail_kernels.cpu.program import NotRecordable, Pool, Program, record

MAX_ROWS = 64
"""Above this many rows the products take so long that recording saves nothing worth its memory."""

log = logging.getLogger(__name__)

Forward = Callable[[torch.Tensor, torch.Tensor, list[BatchLayout]], torch.Tensor]
"""(token_ids, positions, one layout a KV group) -> hidden states."""


def is_recorded(run: RunSpec, device_type: str) -> bool:
    """Return whether the run allows that small steps are recorded. Steps that are pooled hold whole
    prompts."""
    is_other = bool(run.is_eager or run.ops or run.pooling)
    return not is_other and run.rank.context_size == 1 and device_type == "cpu"


class RecordedForward:
    """Programs by number of rows, and the fixed places of their inputs. `sizes`: no other numbers
    of rows are recorded (None: all up to 64). What a pass leaves in `inner` a repeated one does."""

    def __init__(
        self,
        forward: Forward,
        tables: list[BlockTable],
        max_rows: int,
        sizes: Collection[int] | None = None,
        inner: dict[int, torch.Tensor | None] | None = None,
    ) -> None:
        rows = min(max_rows, MAX_ROWS if sizes is None else max(sizes, default=1))
        self._sizes = range(1, rows + 1) if sizes is None else frozenset(sizes)
        self._forward = forward
        self._tables = tables
        self._max_rows = rows
        self._token_ids = np.zeros(rows, dtype=np.int64)
        self._positions = np.zeros(rows, dtype=np.int64)
        self._seq_lens = np.zeros(rows, dtype=np.int32)
        self._starts = np.arange(rows + 1, dtype=np.int32)
        self._blocks = [np.zeros((rows, t.ids.shape[1]), dtype=np.int32) for t in tables]
        self._slots = [np.zeros(rows, dtype=np.int64) for _ in tables]
        self._programs: dict[int, Program | None] = {}
        self._inner = {} if inner is None else inner
        self._left: dict[int, dict[int, torch.Tensor | None]] = {}
        self._proven: set[int] = set()
        self._pool = Pool()
        self._reason: str | None = native.missing_reason()

    @property
    def reason(self) -> str | None:
        """Return why nothing is recorded; None while it is."""
        return self._reason

    def run(self, inputs: StepInputs) -> torch.Tensor | None:
        """Return the hidden states of a step that can be run so, None of any other. Shapes: [T, E]

        Drafts are rows of their own in it. The states are valid until the next step.
        Mutates: self, and the KV cache
        """
        inputs = one_by_one(inputs) if inputs.drafted else inputs
        count = len(inputs.rows)
        if self._reason is not None or count != len(inputs.token_ids):
            return None
        if count > self._max_rows or count not in self._sizes:
            return None
        if count not in self._programs:
            self._programs[count] = None  # the next time it comes it is worth recording
            return None
        self._fill(inputs, count)
        program = self._programs[count] or self._record(count)
        if program is None:
            return None
        if count not in self._proven:
            return self._prove(program, count)
        self._inner.update(self._left[count])
        return program.run()

    def _prove(self, program: Program, count: int) -> torch.Tensor | None:
        """Return the model's output for the program's first new inputs; check that the program's is
        the same. The model's own run is the last: what it writes into the KV cache stays."""
        output = program.run().clone()
        token_ids, positions = self._inputs(count)
        wanted = self._forward(token_ids, positions, self._layouts(count))
        if torch.equal(output.nan_to_num(), wanted.nan_to_num()):
            self._proven.add(count)
        else:
            self._reason = "a repeated step differed from the model's own"
            log.warning("steps are not recorded: %s", self._reason)
        return wanted

    def _fill(self, inputs: StepInputs, count: int) -> None:
        """Write a step's inputs where the programs read them. Mutates: self"""
        seq_lens = inputs.seq_lens
        self._token_ids[:count] = inputs.token_ids
        self._positions[:count] = inputs.positions
        self._seq_lens[:count] = seq_lens
        longest = int(seq_lens.max())
        for table, blocks, slots in zip(self._tables, self._blocks, self._slots, strict=True):
            gathered = table.gather(inputs.rows, longest)
            blocks[:count, : gathered.shape[1]] = gathered
            slots[:count] = table.slots(inputs.rows, inputs.positions)

    def _record(self, count: int) -> Program | None:
        """Return the program of `count` rows, or None for good when the model has none."""
        token_ids, positions = self._inputs(count)
        layouts = self._layouts(count)
        try:
            program = record(
                lambda: self._forward(token_ids, positions, layouts), self._pool, kept=layouts
            )
        except NotRecordable as error:
            self._reason = str(error)
            log.info("steps are not recorded: %s", error)
            return None
        log.debug("recorded %d calls for %d rows", len(program), count)
        self._programs[count] = program
        self._left[count] = dict(self._inner)
        return program

    def _inputs(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the fixed places of token ids and positions."""
        token_ids = torch.from_numpy(self._token_ids)[:count]
        return token_ids, torch.from_numpy(self._positions)[:count]

    def _layouts(self, count: int) -> list[BatchLayout]:
        """Return layouts over the fixed places. Sizes known on the host are the largest
        possible."""
        return [
            BatchLayout(
                query_start=torch.from_numpy(self._starts)[: count + 1],
                seq_lens=torch.from_numpy(self._seq_lens)[:count],
                block_table=torch.from_numpy(blocks)[:count],
                slots=torch.from_numpy(slots)[:count],
                query_start_host=list(range(count + 1)),
                seq_lens_host=self._seq_lens[:count].tolist(),
                block_tokens=table.block_tokens,
                max_query_tokens=1,
                max_seq_tokens=int(self._seq_lens[:count].max()),
            )
            for table, blocks, slots in zip(self._tables, self._blocks, self._slots, strict=True)
        ]
