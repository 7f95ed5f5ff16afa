"""Cases of short_conv: rows that begin, continue and end blocks, widths, dtypes, strided rows.

Blocks that no row reads are infinite.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from dovetail_kernels.op import Arguments, Case
from dovetail_kernels.random import normal, tolerance
from dovetail_kernels.state_cases import FEW, MIXED, TIMED_TOGETHER, StateSizes, halves, hide_unread

ROWS = (*MIXED[:-1], (2, 3), MIXED[-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvShape(StateSizes):
    """A case's sizes. `state` is the dtype of the state, None: that of x."""

    channels: int = 96
    width: int = 4
    state: torch.dtype | None = None
    activation: str = "silu"
    has_bias: bool = True
    apart: int = 0

    @property
    def label(self) -> str:
        """Return the name of the case."""
        ends = [self.activation, *["bias"] * self.has_bias, *["apart"] * bool(self.apart)]
        ends += ["own_blocks"] * bool(self.row_sizes)
        kind = "" if self.state is None else f"_{self.state}".replace("torch.", "state_")
        sizes = f"R{len(self.rows)}_T{self.num_tokens}_C{self.channels}_W{self.width}"
        return "_".join([sizes, *ends]) + kind


def cases() -> list[Case]:
    """Return the cases that are checked."""
    base = ConvShape(rows=ROWS)
    shapes = [
        *(replace(base, width=w, channels=c) for w in range(2, 9) for c in (1, 45)),
        *(replace(base, channels=c, apart=c) for c in (17, 128, 300)),
        replace(base, activation="none", has_bias=False, width=3),
        replace(base, block_tokens=1, rows=((0, 5), (3, 1), (2, 4))),
        replace(base, rows=((0, 5), (3, 1), (2, 40), (15, 4)), row_sizes=(1, 16, 16, 1)),
        replace(base, block_tokens=2, width=8, rows=((0, 9), (3, 1), (12, 7))),
        *(replace(base, state=kind) for kind in (torch.bfloat16, torch.float16)),
        *halves(base),
    ]
    return [_case(shape) for shape in shapes]


def small_cases() -> list[Case]:
    """Return the cases that are checked if kernels are interpreted."""
    base = ConvShape(rows=FEW, channels=20)
    shapes = [
        base,
        replace(base, width=3, activation="none", has_bias=False, apart=20),
        replace(base, width=8, block_tokens=2),
        replace(base, state=torch.bfloat16),
        replace(base, rows=((4, 1), (0, 1), (15, 1)), channels=300),
        replace(base, rows=((0, 5), (3, 1), (2, 20), (15, 4)), row_sizes=(1, 16, 16, 1)),
        *halves(base),
    ]
    return [_case(shape) for shape in shapes]


def perf_cases() -> list[Case]:
    """Return the cases that are timed: decode of 8 rows, and a prefill."""
    return [
        _case(ConvShape(rows=rows, channels=2048, width=width, state=kind))
        for rows in TIMED_TOGETHER
        for width in (3, 4)
        for kind in (None, torch.bfloat16)
    ]


def _case(shape: ConvShape) -> Case:
    tokens, state_dtype = shape.num_tokens, shape.state or shape.dtype
    states = shape.num_moved_states * (shape.width - 1)
    size = states * state_dtype.itemsize + 2 * tokens * shape.dtype.itemsize
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


def _builder(shape: ConvShape) -> Callable[[torch.device], Arguments]:
    def build(device: torch.device) -> Arguments:
        step, num_blocks = shape.step(device)
        tokens, past = int(step["query_start"][-1]), shape.width - 1
        wide = normal((tokens, shape.channels + shape.apart), shape.dtype, device, seed=1)
        state_shape = (num_blocks, shape.channels + bool(shape.apart), past)
        state = normal(state_shape, shape.state or shape.dtype, device, seed=4)
        hide_unread(state, step)
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
