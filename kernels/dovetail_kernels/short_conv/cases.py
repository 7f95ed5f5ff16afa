"""Cases of short_conv: rows that begin, continue and end blocks, widths, dtypes, strided rows.

Blocks that no row reads are infinite.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from dovetail_kernels.op import Arguments, Case
from dovetail_kernels.random import normal, tolerance
from dovetail_kernels.states import pieces, step_arguments

MIXED = ((0, 1), (0, 37), (5, 1), (15, 2), (16, 1), (31, 18), (40, 0), (3, 29), (2, 3), (47, 1))
"""Rows: tokens before the step, tokens in it. Blocks have 16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A case's sizes. `state` is the dtype of the state, None: that of x."""

    rows: tuple[tuple[int, int], ...]
    channels: int = 96
    width: int = 4
    block_tokens: int = 16
    row_sizes: tuple[int, ...] = ()
    dtype: torch.dtype = torch.float32
    state: torch.dtype | None = None
    activation: str = "silu"
    has_bias: bool = True
    apart: int = 0

    @property
    def label(self) -> str:
        """Return the name of the case."""
        tokens = sum(here for _, here in self.rows)
        ends = [self.activation, *["bias"] * self.has_bias, *["apart"] * bool(self.apart)]
        ends += ["own_blocks"] * bool(self.row_sizes)
        kind = "" if self.state is None else f"_{self.state}".replace("torch.", "state_")
        return f"R{len(self.rows)}_T{tokens}_C{self.channels}_W{self.width}_{'_'.join(ends)}{kind}"


def cases() -> list[Case]:
    """Return the cases that are checked."""
    base = Shape(rows=MIXED)
    shapes = [
        *(replace(base, width=w, channels=c) for w in range(2, 9) for c in (1, 45)),
        *(replace(base, channels=c, apart=c) for c in (17, 128, 300)),
        replace(base, activation="none", has_bias=False, width=3),
        replace(base, block_tokens=1, rows=((0, 5), (3, 1), (2, 4))),
        replace(base, rows=((0, 5), (3, 1), (2, 40), (15, 4)), row_sizes=(1, 16, 16, 1)),
        replace(base, block_tokens=2, width=8, rows=((0, 9), (3, 1), (12, 7))),
        *(replace(base, state=kind) for kind in (torch.bfloat16, torch.float16)),
        *_halves(base),
    ]
    return [_case(shape) for shape in shapes]


def small_cases() -> list[Case]:
    """Return the cases that are checked if kernels are interpreted."""
    base = Shape(rows=((0, 1), (5, 1), (15, 2), (16, 1), (31, 18), (40, 0), (2, 3)), channels=20)
    shapes = [
        base,
        replace(base, width=3, activation="none", has_bias=False, apart=20),
        replace(base, width=8, block_tokens=2),
        replace(base, state=torch.bfloat16),
        replace(base, rows=((4, 1), (0, 1), (15, 1)), channels=300),
        replace(base, rows=((0, 5), (3, 1), (2, 20), (15, 4)), row_sizes=(1, 16, 16, 1)),
        *_halves(base),
    ]
    return [_case(shape) for shape in shapes]


def perf_cases() -> list[Case]:
    """Return the cases that are timed: decode of 8 rows, and a prefill."""
    return [
        _case(Shape(rows=rows, channels=2048, width=width, state=kind))
        for rows in (((100, 1),) * 8, ((0, 2048),))
        for width in (3, 4)
        for kind in (None, torch.bfloat16)
    ]


def _halves(base: Shape) -> list[Shape]:
    """Return shapes of 16-bit activations, which the CPU's kernel leaves to the GPU's."""
    return [replace(base, dtype=kind) for kind in (torch.bfloat16, torch.float16)]


def _case(shape: Shape) -> Case:
    tokens, kept = sum(here for _, here in shape.rows), shape.state or shape.dtype
    written = sum(-(-(before + here) // shape.block_tokens) for before, here in shape.rows)
    written -= sum(before // shape.block_tokens for before, here in shape.rows)
    states = written + sum(1 for before, here in shape.rows if before and here)
    size = states * (shape.width - 1) * kept.itemsize + 2 * tokens * shape.dtype.itemsize
    return Case(
        name=shape.label,
        dtype=shape.dtype,
        build=_builder(shape),
        mutates=("state",),
        is_finite=False,
        moved_bytes=shape.channels * (size + shape.width * 4),
        flops=2 * shape.width * tokens * shape.channels,
        rtol=tolerance(shape.dtype),
        atol=tolerance(shape.dtype),
    )


def _builder(shape: Shape) -> Callable[[torch.device], Arguments]:
    def build(device: torch.device) -> Arguments:
        step, num_blocks = step_arguments(
            shape.rows, shape.block_tokens, device, sizes=shape.row_sizes
        )
        tokens, past = int(step["query_start"][-1]), shape.width - 1
        wide = normal((tokens, shape.channels + shape.apart), shape.dtype, device, seed=1)
        kept = (num_blocks, shape.channels + bool(shape.apart), past)
        state = normal(kept, shape.state or shape.dtype, device, seed=4)
        unread = set(range(num_blocks)) - {piece.source for piece in pieces(**step)}
        state[sorted(unread)] = torch.inf
        bias = normal((shape.channels,), torch.float32, device, seed=3)
        return {
            "x": wide[:, : shape.channels],
            "weight": normal((shape.channels, shape.width), torch.float32, device, seed=2),
            "bias": bias if shape.has_bias else None,
            "state": state[:, : shape.channels],
            **step,
            "activation": shape.activation,
        }

    return build
