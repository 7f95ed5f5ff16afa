"""Cases of wkv: rows that begin, continue and end blocks, channels that fill no register, dtypes,
keys whose exponentials overflow float32.

Blocks that no row reads are infinite.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from dovetail_kernels.op import Arguments, Case
from dovetail_kernels.random import normal, tolerance
from dovetail_kernels.states import pieces, step_arguments

MIXED = ((0, 1), (0, 37), (5, 1), (15, 2), (16, 1), (31, 18), (40, 0), (3, 29), (47, 1))
"""Rows: tokens before the step, tokens in it. Blocks have 16."""
LONG = ((5, 1), (20, 70), (0, 64), (0, 0), (3, 31))
"""Rows of several chunks among short ones."""
_KINDS = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A case's sizes. `state` is the dtype of the state, keys are about as large as `keys`;
    `apart`: rows and blocks have gaps."""

    rows: tuple[tuple[int, int], ...]
    channels: int = 48
    block_tokens: int = 16
    row_sizes: tuple[int, ...] = ()
    dtype: torch.dtype = torch.float32
    state: torch.dtype = torch.float32
    keys: float = 1.0
    apart: bool = True

    @property
    def label(self) -> str:
        """Return the name of the case."""
        tokens = sum(here for _, here in self.rows)
        ends = [*["apart"] * self.apart, *["own_blocks"] * bool(self.row_sizes)]
        kind = f"state_{self.state}".replace("torch.", "")
        sizes = f"R{len(self.rows)}_T{tokens}_C{self.channels}_K{self.keys:g}"
        return "_".join([sizes, *ends, kind])


def cases() -> list[Case]:
    """Return the cases that are checked."""
    base = Shape(rows=MIXED)
    shapes = [
        *(replace(base, channels=c) for c in (1, 17, 45, 128, 300)),
        replace(base, keys=60.0),
        replace(base, apart=False),
        replace(base, block_tokens=1, rows=((0, 5), (3, 1), (2, 4))),
        replace(base, rows=((0, 5), (3, 1), (2, 40), (15, 4)), row_sizes=(1, 16, 16, 1)),
        *(replace(base, state=kind) for kind in _KINDS[1:]),
        *_halves(base),
        replace(base, rows=((0, 700), (60, 300)), block_tokens=64),
        *_long(base),
    ]
    return [_case(shape) for shape in shapes]


def small_cases() -> list[Case]:
    """Return the cases that are checked if kernels are interpreted."""
    base = Shape(rows=((0, 1), (5, 1), (15, 2), (16, 1), (31, 18), (40, 0), (2, 3)), channels=20)
    shapes = [
        base,
        replace(base, keys=60.0, apart=False),
        replace(base, state=torch.bfloat16),
        replace(base, rows=((4, 1), (0, 1), (15, 1)), channels=300),
        replace(base, rows=((0, 5), (3, 1), (2, 20), (15, 4)), row_sizes=(1, 16, 16, 1)),
        *_halves(base),
        *_long(base),
    ]
    return [_case(shape) for shape in shapes]


def perf_cases() -> list[Case]:
    """Return the cases that are timed: decode of 8 rows, and a prefill, in blocks as large as an
    engine's."""
    return [
        _case(Shape(rows=rows, channels=2048, block_tokens=512, apart=False))
        for rows in (((100, 1),) * 8, ((0, 2048),))
    ]


def _halves(base: Shape) -> list[Shape]:
    """Return shapes of 16-bit activations, which the CPU's kernel leaves to the GPU's."""
    return [replace(base, dtype=kind) for kind in _KINDS[1:]]


def _long(base: Shape) -> list[Shape]:
    """Return rows of several chunks: some end with blocks, some are cut by the step, and blocks
    of a row's own may be too short for any."""
    long = replace(base, rows=LONG, channels=20, block_tokens=48)
    own = ((0, 64), (30, 66), (0, 2))
    return [
        long,
        replace(long, rows=own, row_sizes=(1, 20, 48), keys=60.0),
        replace(long, state=torch.bfloat16),
        replace(long, rows=((33, 95),), block_tokens=512, channels=40, dtype=torch.float16),
    ]


def _case(shape: Shape) -> Case:
    tokens = sum(here for _, here in shape.rows)
    written = sum(-(-(before + here) // shape.block_tokens) for before, here in shape.rows)
    written -= sum(before // shape.block_tokens for before, here in shape.rows)
    states = written + sum(1 for before, here in shape.rows if before and here)
    loose = max(tolerance(shape.dtype), 4e-5, 0 if shape.state == torch.float32 else 2e-2)
    return Case(
        name=shape.label,
        dtype=shape.dtype,
        build=_builder(shape),
        mutates=("state",),
        is_finite=False,
        moved_bytes=shape.channels
        * (4 * tokens * shape.dtype.itemsize + 3 * states * shape.state.itemsize + 8),
        flops=70 * tokens * shape.channels,
        rtol=loose,
        atol=loose,
    )


def _builder(shape: Shape) -> Callable[[torch.device], Arguments]:
    def build(device: torch.device) -> Arguments:
        step, num_blocks = step_arguments(
            shape.rows, shape.block_tokens, device, sizes=shape.row_sizes
        )
        tokens, channels = int(step["query_start"][-1]), shape.channels

        def rows(seed: int) -> torch.Tensor:
            size = (tokens, channels + 3 * shape.apart)
            return normal(size, shape.dtype, device, seed=seed)[:, :channels]

        kept = (num_blocks, 3 + shape.apart, channels)
        state = normal(kept, torch.float32, device, seed=4)
        state[:, 1] = state[:, 1].abs() + 0.5
        state[:, 2] *= shape.keys
        state = state.to(shape.state)
        unread = set(range(num_blocks)) - {piece.source for piece in pieces(**step)}
        state[sorted(unread)] = torch.inf
        return {
            "k": rows(1) * shape.keys,
            "v": rows(2),
            "r": rows(3),
            "decay": -normal((channels,), torch.float32, device, seed=5).exp(),
            "first": normal((channels,), torch.float32, device, seed=6),
            "state": state[:, :3],
            **step,
        }

    return build
