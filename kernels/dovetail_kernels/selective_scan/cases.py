"""Cases of selective_scan: rows that begin, continue and end blocks, sizes of states, dtypes.

Blocks that no row reads are infinite.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from dovetail_kernels.op import Arguments, Case
from dovetail_kernels.random import normal, tolerance
from dovetail_kernels.state_cases import (
    FEW,
    KINDS,
    LONG,
    MIXED,
    TIMED_TOGETHER,
    StateSizes,
    halves,
    hide_unread,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanShape(StateSizes):
    """A case's sizes. `state` is the dtype of the state; `apart`: rows and blocks have gaps."""

    channels: int = 48
    state_size: int = 16
    state: torch.dtype = torch.float32
    has_gate: bool = True
    has_bias: bool = True
    apart: bool = True

    @property
    def label(self) -> str:
        """Return the name of the case."""
        ends = [*["gate"] * self.has_gate, *["bias"] * self.has_bias, *["apart"] * self.apart]
        ends += ["own_blocks"] * bool(self.row_sizes)
        kind = f"_{self.state}".replace("torch.", "state_")
        sizes = f"R{len(self.rows)}_T{self.num_tokens}_D{self.channels}_S{self.state_size}"
        return "_".join([sizes, *ends]) + kind


def cases() -> list[Case]:
    """Return the cases that are checked."""
    base = ScanShape(rows=MIXED)
    shapes = [
        *(replace(base, state_size=s, channels=c) for s in (1, 4, 16, 19, 32) for c in (1, 45)),
        *(replace(base, channels=c) for c in (17, 128, 300)),
        replace(base, has_gate=False, has_bias=False, apart=False),
        replace(base, block_tokens=1, rows=((0, 5), (3, 1), (2, 4))),
        replace(base, rows=((0, 5), (3, 1), (2, 40), (15, 4)), row_sizes=(1, 16, 16, 1)),
        *(replace(base, state=k, state_size=s) for k in KINDS[1:] for s in (16, 5)),
        *halves(base),
        replace(base, rows=((0, 700), (60, 300)), block_tokens=64),
        *_long(base),
    ]
    return [_case(shape) for shape in shapes]


def small_cases() -> list[Case]:
    """Return the cases that are checked if kernels are interpreted."""
    base = ScanShape(rows=FEW, channels=20)
    shapes = [
        base,
        replace(base, state_size=5, has_gate=False, has_bias=False, apart=False),
        replace(base, state=torch.bfloat16),
        replace(base, rows=((4, 1), (0, 1), (15, 1)), channels=100),
        replace(base, rows=((0, 5), (3, 1), (2, 20), (15, 4)), row_sizes=(1, 16, 16, 1)),
        *halves(base),
        *_long(base),
    ]
    return [_case(shape) for shape in shapes]


def perf_cases() -> list[Case]:
    """Return the cases that are timed: decode of 8 rows, and a prefill, in blocks as large as an
    engine's."""
    return [
        _case(ScanShape(rows=rows, channels=2048, state=kind, block_tokens=512, apart=False))
        for rows in TIMED_TOGETHER
        for kind in (torch.float32, torch.bfloat16)
    ]


def _long(base: ScanShape) -> list[ScanShape]:
    """Return rows of several chunks: some end with blocks, some are cut by the step, and blocks
    of a row's own may be too short for any."""
    long = replace(base, rows=LONG, channels=20, block_tokens=48)
    own = ((0, 64), (30, 66), (0, 2))
    return [
        long,
        replace(long, rows=own, row_sizes=(1, 20, 48), state_size=5, has_gate=False),
        replace(long, state=torch.bfloat16),
        replace(long, rows=((33, 95),), block_tokens=512, channels=40, dtype=torch.float16),
    ]


def _case(shape: ScanShape) -> Case:
    tokens, numbers = shape.num_tokens, shape.channels * shape.state_size
    streams = (3 + shape.has_gate) * shape.channels + 2 * shape.state_size
    loose = max(tolerance(shape.dtype), 4e-5, 0 if shape.state == torch.float32 else 2e-2)
    return Case(
        name=shape.label,
        dtype=shape.dtype,
        build=_builder(shape),
        mutates=("state",),
        is_finite=False,
        moved_bytes=tokens * streams * shape.dtype.itemsize
        + numbers * (4 + shape.num_moved_states * shape.state.itemsize),
        flops=25 * tokens * numbers,
        rtol=loose,
        atol=loose,
    )


def _builder(shape: ScanShape) -> Callable[[torch.device], Arguments]:
    def build(device: torch.device) -> Arguments:
        step, num_blocks = shape.step(device)
        tokens, channels, size = int(step["query_start"][-1]), shape.channels, shape.state_size

        def rows(width: int, seed: int) -> torch.Tensor:
            wide = normal((tokens, width + 3 * shape.apart), shape.dtype, device, seed=seed)
            return wide[:, :width]

        def weights(*sizes: int, seed: int) -> torch.Tensor:
            return normal(sizes, torch.float32, device, seed=seed)

        shape_of_state = (num_blocks, channels + shape.apart, size)
        state = normal(shape_of_state, shape.state, device, seed=4)
        hide_unread(state, step)
        return {
            "x": rows(channels, 1),
            "dt": rows(channels, 2),
            "a": -weights(channels, size, seed=3).exp(),
            "b": rows(size, 5),
            "c": rows(size, 6),
            "d": weights(channels, seed=7),
            "dt_bias": weights(channels, seed=8) if shape.has_bias else None,
            "z": rows(channels, 9) if shape.has_gate else None,
            "state": state[:, :channels],
            **step,
        }

    return build
