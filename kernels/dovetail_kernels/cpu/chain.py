"""Chain: one program after the other, each sampling a token for some rows and reading the previous
one's tokens; a row continues while its tokens are likely, and as long as it wants more.

The programs of all depths except the first read their lines from one place, with continuing rows
packed together, so that a row that ends costs nothing further.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np
import torch

from dovetail_kernels.cpu import library as native
from dovetail_kernels.cpu.program import Program, ProgramStep

MAX_ROWS = 64
"""How many rows a chain may have."""

_pointer, _int64, _double = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double


class _Link(ctypes.Structure):
    """See chain.cpp."""

    _fields_ = [
        ("steps", ctypes.POINTER(ProgramStep)),
        ("count", _int64),
        ("rows", _int64),
        ("states", _pointer),
    ]


class _Lines(ctypes.Structure):
    """See chain.cpp."""

    _fields_ = [
        ("tokens", _pointer),
        ("positions", _pointer),
        ("slots", _pointer),
        ("lens", _pointer),
        ("blocks", _pointer),
        ("states", _pointer),
        ("block_stride", _int64),
        ("state_bytes", _int64),
    ]


class _ChainArgs(ctypes.Structure):
    """See chain.cpp."""

    _fields_ = [
        ("first", ctypes.POINTER(_Link)),
        ("later", ctypes.POINTER(_Link)),
        ("tokens", _pointer),
        ("logprobs", _pointer),
        ("lines", _Lines),
        ("wants", _pointer),
        ("positions", _pointer),
        ("skipped", _pointer),
        ("slots", _pointer),
        ("blocks", _pointer),
        ("drafts", _pointer),
        ("made", _pointer),
        ("likely", _pointer),
        ("failed", _pointer),
        ("least", _double),
        ("rows", _int64),
        ("depths", _int64),
        ("width", _int64),
        ("most_rows", _int64),
        ("most", _int64),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """The inputs of programs. For each line: a token, its position and slot, how many tokens it
    sees, their blocks, and the model's state for the previous token. Shapes: int64 [L] thrice,
    int32 [L], int32 [L, W], [L, E] or None"""

    tokens: np.ndarray
    positions: np.ndarray
    slots: np.ndarray
    lens: np.ndarray
    blocks: np.ndarray
    states: torch.Tensor | None

    @classmethod
    def empty(cls, count: int, width: int, states: torch.Tensor | None) -> Lines:
        """Return lines of the null block."""
        return cls(
            tokens=np.zeros(count, dtype=np.int64),
            positions=np.zeros(count, dtype=np.int64),
            slots=np.zeros(count, dtype=np.int64),
            lens=np.ones(count, dtype=np.int32),
            blocks=np.zeros((count, width), dtype=np.int32),
            states=states,
        )

    def clear(self, lines: slice) -> None:
        """Make some lines such of the null block. Mutates: self"""
        self.tokens[lines] = self.positions[lines] = self.slots[lines] = 0
        self.blocks[lines, 0], self.lens[lines] = 0, 1


class Chain:
    """Programs, and fixed buffers for the rows' requests and results.

    Every program samples a token per line: `tokens` int64 [L] and its log probability, `logprobs`
    float64 [L]. `blocks` int32 [L, W] are the rows' blocks. `lines`: the inputs of all programs
    except the first; `later`: these programs by depth (the last ones for all further depths) and by
    how many rows continue, each with its number of lines.

    Inputs: `wants`, the number of tokens; `positions`, of the first of them; `skipped`, how many
    earlier tokens are not seen, by row; and `slots` by depth and row. Outputs: `drafts`, how many
    of each row were `made` and how many are `likely`. Shapes: int64 [R] thrice, [D, R]; [R, D], [R]
    twice
    """

    def __init__(
        self,
        tokens: np.ndarray,
        logprobs: np.ndarray,
        blocks: np.ndarray,
        lines: Lines,
        max_tokens: int,
    ) -> None:
        rows = len(lines.tokens)
        assert rows <= MAX_ROWS, "a chain of more rows than it can have"
        self.lines = lines
        self.later: list[dict[int, tuple[Program, int]]] = []
        self._tokens, self._logprobs, self._blocks = tokens, logprobs, blocks
        self.wants = np.zeros(rows, dtype=np.int64)
        self.positions = np.zeros(rows, dtype=np.int64)
        self.skipped = np.zeros(rows, dtype=np.int64)
        self.slots = np.zeros((max_tokens, rows), dtype=np.int64)
        self.drafts = np.zeros((rows, max_tokens), dtype=np.int64)
        self.made = np.zeros(rows, dtype=np.int64)
        self.likely = np.zeros(rows, dtype=np.int64)
        self._links: dict[int, ctypes.Array[_Link]] = {}
        self._failed = _pointer()
        self._args = self._described()
        library = native.library()
        assert library is not None, "a chain was made without a library"
        self._run_all = library.chain_runner()

    def run(self, first: Program, rows: int, width: int, min_chance: float) -> None:
        """Let the first `rows` rows sample the tokens that they want; `first` computes their first
        lines. Rows see the first `width` blocks and continue while the log probability of all their
        tokens together is at least `min_chance`. Mutates: self, and the programs' outputs

        Raises: MemoryError, or the error of a failed call
        """
        if native.call_span() is not None:
            self._run_watched(first, rows, width, min_chance)
            return
        links = self._links.get(rows)
        if links is None:
            links = self._links[rows] = self._linked(rows)
        args, begun = self._args, _link(first, rows)
        args.first, args.later = ctypes.pointer(begun), links
        args.rows, args.width, args.least, args.depths = rows, width, min_chance, len(self.later)
        number = self._run_all(ctypes.byref(args))
        if number:
            raise self._failed_program(links, first).fault(number)

    def _run_watched(self, first: Program, rows: int, width: int, min_chance: float) -> None:
        """Do the same with one call after the other. Mutates: self"""
        live, chances = list(range(rows)), np.zeros(rows)
        program, depth = first, 0
        while live:
            states = program.run()
            going: list[int] = []
            for line, row in enumerate(live):
                self.drafts[row, depth] = self._tokens[line]
                self.made[row] = depth + 1
                chances[row] += self._logprobs[line]
                is_likely = bool(chances[row] >= min_chance)
                self.likely[row] = depth + is_likely
                if is_likely and depth + 1 < self.wants[row]:
                    self._go_on(row, line, len(going), depth, width, states)
                    going.append(row)
            live = going
            if live:
                program, count = self.later[min(depth, len(self.later) - 1)][len(live)]
                self.lines.clear(slice(len(live), count))
            depth += 1

    def _go_on(
        self, row: int, of: int, line: int, depth: int, width: int, states: torch.Tensor
    ) -> None:
        """Let a row continue as a line, with the token sampled by line `of`. Mutates: the lines"""
        to, position = self.lines, self.positions[row] + depth
        to.tokens[line], to.positions[line] = self._tokens[of], position
        to.lens[line] = position + 1 - self.skipped[row]
        to.slots[line] = self.slots[depth, row]
        to.blocks[line, :width] = self._blocks[row, :width]
        if to.states is not None:
            to.states[line] = states[of]

    def _linked(self, rows: int) -> ctypes.Array[_Link]:
        """Return the later programs as native code finds them, by depth and rows."""
        links = (_Link * (len(self.later) * (rows + 1)))()
        for depth, by_rows in enumerate(self.later):
            for count in range(1, rows + 1):
                links[depth * (rows + 1) + count] = _link(*by_rows[count])
        return links

    def _failed_program(self, links: ctypes.Array[_Link], first: Program) -> Program:
        """Return the program whose call failed."""
        place = (self._failed.value or 0) - ctypes.addressof(links)
        nth = place // ctypes.sizeof(_Link)
        if not 0 <= nth < len(links):
            return first
        depth, count = divmod(nth, len(links) // len(self.later))
        return self.later[depth][count][0]

    def _described(self) -> _ChainArgs:
        """Return everything with a fixed address in the native struct."""
        to, states = self.lines, self.lines.states
        lines = _Lines(
            block_stride=to.blocks.shape[1],
            states=0 if states is None else states.data_ptr(),
            state_bytes=0 if states is None else states.shape[1] * states.itemsize,
        )
        for name in ("tokens", "positions", "slots", "lens", "blocks"):
            setattr(lines, name, getattr(to, name).ctypes.data)
        args = _ChainArgs(
            tokens=self._tokens.ctypes.data,
            logprobs=self._logprobs.ctypes.data,
            blocks=self._blocks.ctypes.data,
            lines=lines,
            failed=ctypes.addressof(self._failed),
            most_rows=len(to.tokens),
            most=self.drafts.shape[1],
        )
        for name in ("wants", "positions", "skipped", "slots", "drafts", "made", "likely"):
            setattr(args, name, getattr(self, name).ctypes.data)
        return args


def _link(program: Program, rows: int) -> _Link:
    """Return a program with `rows` lines in the native struct."""
    steps = program.steps
    return _Link(steps, len(steps), rows, program.output.data_ptr())
