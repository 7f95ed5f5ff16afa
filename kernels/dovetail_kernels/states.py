"""State storage for the rows of a step: shared by the definitions of recurrent ops, their native
calls and their cases.

Row r computes its last n = query_start[r + 1] - query_start[r] tokens, positions start ..
seq_lens[r] - 1. The state after position p is in state[block_table[r, p // P]] when p is the last
computed token of that block. So a row begins with zeros when start is 0, else with the state in the
block of position start - 1, and stores one after each block that it ends and after its last token.
Blocks of full prefixes may be shared by rows; such blocks are only read. If rows have
`row_block_tokens`, P is each row's own: with 1 a row stores the state after every token.

Shapes: query_start [R + 1], seq_lens [R], block_table [R, B], row_block_tokens [R], all int32;
state [N, ...], contiguous within a block, blocks any stride apart
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dovetail_kernels.op import Arguments
from dovetail_kernels.random import permutation

_pointer, _int64 = ctypes.c_void_p, ctypes.c_int64
FORMATS = (torch.float32, torch.bfloat16, torch.float16)
CODES = {dtype: code for code, dtype in enumerate(FORMATS)}
"""A state's dtype as a kernel argument: StateFormat in cpu/states.h."""


class StateRowsArgs(ctypes.Structure):
    """StateRows in cpu/states.h, which native kernels have in their own arguments."""

    _fields_ = [
        ("query_start", _pointer),
        ("seq_lens", _pointer),
        ("block_table", _pointer),
        ("table_stride", _int64),
        ("rows", _int64),
        ("block_tokens", _int64),
        ("row_block_tokens", _pointer),
    ]


class StateRows:
    """The rows of one step over one block table, ready for native calls of its layers.

    A kernel reads the tensors in place when it runs: recorded calls (cpu/program.py) see them
    change in place. Rows of the block table may be strided.
    """

    def __init__(
        self,
        *,
        query_start: torch.Tensor,
        seq_lens: torch.Tensor,
        block_table: torch.Tensor,
        block_tokens: int,
        row_block_tokens: torch.Tensor | None = None,
    ) -> None:
        own = () if row_block_tokens is None else (row_block_tokens,)
        tensors = (query_start, seq_lens, block_table, *own)
        assert all(t.dtype == torch.int32 for t in tensors), "rows of states are int32"
        assert all(t.stride(-1) == 1 for t in tensors), "rows of states have gaps"
        self._kept = tensors  # the struct holds addresses
        self.args = StateRowsArgs(
            query_start=query_start.data_ptr(),
            seq_lens=seq_lens.data_ptr(),
            block_table=block_table.data_ptr(),
            table_stride=block_table.stride(0),
            rows=len(seq_lens),
            block_tokens=block_tokens,
            row_block_tokens=None if row_block_tokens is None else row_block_tokens.data_ptr(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StatePiece:
    """Tokens of a row in one block: `first` .. `last` - 1 of the step.

    The state before them is in block `source` (None: zeros), the one after them goes to `target`.
    """

    first: int
    last: int
    source: int | None
    target: int


def pieces(
    query_start: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    block_tokens: int,
    row_block_tokens: torch.Tensor | None = None,
) -> list[StatePiece]:
    """Return the pieces of all rows, in order within a row: a definition processes them one after
    the other, so that each finds the state after the previous one."""
    starts, table = query_start.tolist(), block_table.tolist()
    sizes = [block_tokens] * len(table) if row_block_tokens is None else row_block_tokens.tolist()
    found = []
    for row, length in enumerate(seq_lens.tolist()):
        first, last, size = starts[row], starts[row + 1], sizes[row]
        position = length - (last - first)
        while first < last:
            some = min(size - position % size, last - first)
            found.append(
                StatePiece(
                    first=first,
                    last=first + some,
                    source=table[row][(position - 1) // size] if position else None,
                    target=table[row][position // size],
                )
            )
            first, position = first + some, position + some
    return found


def step_arguments(
    rows: Sequence[tuple[int, int]],
    block_tokens: int,
    device: torch.device,
    *,
    seed: int = 0,
    sizes: Sequence[int] = (),
) -> tuple[Arguments, int]:
    """Return the step arguments of rows (tokens before the step, tokens in it), with blocks in
    random order, and the number of blocks N. Two blocks are unused. `sizes`: the tokens of each
    row's own blocks, if they are not all `block_tokens`."""
    block_sizes = sizes or [block_tokens] * len(rows)
    needed = [
        -(-(before + here) // size) for (before, here), size in zip(rows, block_sizes, strict=True)
    ]
    num_blocks = sum(needed) + 2
    free = permutation(num_blocks, torch.device("cpu"), seed=seed).tolist()
    table = torch.full((len(rows), max([*needed, 1])), num_blocks - 1, dtype=torch.int32)
    for row, count in enumerate(needed):
        table[row, :count] = torch.tensor([free.pop() for _ in range(count)], dtype=torch.int32)
    starts = [0]
    for _, here in rows:
        starts.append(starts[-1] + here)
    lengths = [before + here for before, here in rows]
    arguments: Arguments = {
        "query_start": torch.tensor(starts, dtype=torch.int32, device=device),
        "seq_lens": torch.tensor(lengths, dtype=torch.int32, device=device),
        "block_table": table.to(device),
        "block_tokens": block_tokens,
    }
    if sizes:
        own = torch.tensor(sizes, dtype=torch.int32, device=device)
        arguments["row_block_tokens"] = own
    return arguments, num_blocks
