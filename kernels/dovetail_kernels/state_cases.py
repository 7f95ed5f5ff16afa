"""What the cases of recurrent ops share: rows, sizes, and states with gaps between blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TypeVar

import torch

from dovetail_kernels.op import Arguments, Case
from dovetail_kernels.random import normal, tolerance
from dovetail_kernels.states import pieces, step_arguments

Rows = tuple[tuple[int, int], ...]
"""Per row (tokens before the step, tokens in it)."""
ROWS: dict[str, Rows] = {
    "decode": ((0, 1), (7, 1), (8, 1), (15, 1), (40, 1)),
    "prefill": ((0, 37), (0, 1), (0, 8), (0, 16)),
    "mixed": ((5, 1), (3, 40), (0, 0), (16, 5), (0, 9), (7, 1)),
}
MIXED: Rows = ((0, 1), (0, 37), (5, 1), (15, 2), (16, 1), (31, 18), (40, 0), (3, 29), (47, 1))
"""Rows over blocks of 16 tokens."""
FEW: Rows = ((0, 1), (5, 1), (15, 2), (16, 1), (31, 18), (40, 0), (2, 3))
"""Fewer of such rows, each interpreted separately."""
LONG: Rows = ((5, 1), (20, 70), (0, 64), (0, 0), (3, 31))
"""Rows of several chunks among short ones."""
TIMED: dict[str, Rows] = {
    "decode_1": ((300, 1),),
    "decode_8": ((300, 1),) * 8,
    "prefill_512": ((0, 512),),
    "prefill_2048": ((0, 2048),),
}
TIMED_TOGETHER: tuple[Rows, ...] = (((100, 1),) * 8, ((0, 2048),))
KINDS = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSizes:
    """What the sizes of every such case have. `row_sizes`: tokens of each row's own blocks, if
    they are not all `block_tokens`."""

    rows: Rows
    block_tokens: int = 16
    row_sizes: tuple[int, ...] = ()
    dtype: torch.dtype = torch.float32

    @property
    def num_tokens(self) -> int:
        """Return the tokens of the step."""
        return sum(here for _, here in self.rows)

    @property
    def num_moved_states(self) -> int:
        """Return how many states are read or written: one after each block that a row ends and
        after its last token, and one before it."""
        size = self.block_tokens
        written = sum(-(-(before + here) // size) - before // size for before, here in self.rows)
        return written + sum(1 for before, here in self.rows if before and here)

    def step(self, device: torch.device) -> tuple[Arguments, int]:
        """Return the step arguments, and the number of blocks N."""
        return step_arguments(self.rows, self.block_tokens, device, sizes=self.row_sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadSizes(StateSizes):
    """The sizes of a case with states of heads. `heads`: how many there are, and how many groups.
    `apart`: extra columns of the matrix that inputs are parts of. `kept`: the dtype of states."""

    heads: tuple[int, int] = (4, 2)
    block_tokens: int = 8
    apart: int = 3
    kept: torch.dtype = torch.float32

    @property
    def tolerance(self) -> float:
        """Return the difference that is allowed."""
        return max(tolerance(self.dtype), tolerance(self.kept))

    def moved_bytes(self, state_numbers: int, token_numbers: int) -> int:
        """Return the minimum of bytes for states and tokens of these many numbers."""
        states = sum((before > 0) + 1 for before, here in self.rows if here) * state_numbers
        tokens = self.num_tokens * token_numbers
        return states * self.kept.itemsize + tokens * self.dtype.itemsize

    def states(
        self, shape: Sequence[int], num_blocks: int, device: torch.device, seed: int
    ) -> torch.Tensor:
        """Return states of random numbers with gaps between blocks."""
        size = prod(shape)
        wide = normal((num_blocks, size + 16), self.kept, device, seed=seed)
        return wide[:, :size].unflatten(1, shape)


Sizes = TypeVar("Sizes", bound=StateSizes)
OfHeads = TypeVar("OfHeads", bound=HeadSizes)


def halves(base: Sizes) -> list[Sizes]:
    """Return sizes with 16-bit activations, which the CPU's kernel leaves to the GPU's."""
    return [replace(base, dtype=kind) for kind in KINDS[1:]]


def block_cases(case: Callable[[str, OfHeads], Case], mixed: OfHeads) -> list[Case]:
    """Return blocks of several sizes."""
    return [
        case("blocks_of_1", replace(mixed, block_tokens=1)),
        case("own_blocks", replace(mixed, row_sizes=(1, 8, 1, 1, 8, 8))),
        case("blocks_of_64", replace(mixed, rows=((0, 150), (60, 70)), block_tokens=64)),
    ]


def dtype_cases(case: Callable[[str, OfHeads], Case], mixed: OfHeads) -> list[Case]:
    """Return states and activations of 16 bits."""
    kinds = [
        case(
            f"state_{str(state_dtype).removeprefix('torch.')}",
            replace(mixed, kept=state_dtype, dtype=dtype),
        )
        for state_dtype in KINDS[1:]
        for dtype in (torch.float32, state_dtype)
    ]
    return kinds + [case("narrow", replace(mixed, dtype=dtype)) for dtype in KINDS[1:]]


def timed_cases(case: Callable[[str, OfHeads], Case], real: OfHeads) -> list[Case]:
    """Return decodes and prefills of a layer of real sizes."""
    return [
        case(f"{name}_{str(one).removeprefix('torch.')}", replace(real, rows=some, kept=one))
        for name, some in TIMED.items()
        for one in (torch.float32, torch.bfloat16)
    ]


def hide_unread(state: torch.Tensor, step: Arguments) -> None:
    """Make the blocks infinite that no row reads. Mutates: state"""
    unread = set(range(len(state))) - {piece.source for piece in pieces(**step)}
    state[sorted(unread)] = torch.inf
