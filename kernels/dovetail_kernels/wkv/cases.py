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
class WkvShape(StateSizes):
    """A case's sizes. `state` is the dtype of the state, keys are about as large as `keys`;
    `apart`: rows and blocks have gaps."""

    channels: int = 48
    state: torch.dtype = torch.float32
    keys: float = 1.0
    apart: bool = True

    @property
    def label(self) -> str:
        """Return the name of the case."""
        ends = [*["apart"] * self.apart, *["own_blocks"] * bool(self.row_sizes)]
        kind = f"state_{self.state}".replace("torch.", "")
        sizes = f"R{len(self.rows)}_T{self.num_tokens}_C{self.channels}_K{self.keys:g}"
        return "_".join([sizes, *ends, kind])


def cases() -> list[Case]:
    """Return the cases that are checked."""
    base = WkvShape(rows=MIXED)
    shapes = [
        *(replace(base, channels=c) for c in (1, 17, 45, 128, 300)),
        replace(base, keys=60.0),
        replace(base, apart=False),
        replace(base, block_tokens=1, rows=((0, 5), (3, 1), (2, 4))),
        replace(base, rows=((0, 5), (3, 1), (2, 40), (15, 4)), row_sizes=(1, 16, 16, 1)),
        *(replace(base, state=kind) for kind in KINDS[1:]),
        *halves(base),
        replace(base, rows=((0, 700), (60, 300)), block_tokens=64),
        *_long(base),
    ]
    return [_case(shape) for shape in shapes]


def small_cases() -> list[Case]:
    """Return the cases that are checked if kernels are interpreted."""
    base = WkvShape(rows=FEW, channels=20)
    shapes = [
        base,
        replace(base, keys=60.0, apart=False),
        replace(base, state=torch.bfloat16),
        replace(base, rows=((4, 1), (0, 1), (15, 1)), channels=300),
        replace(base, rows=((0, 5), (3, 1), (2, 20), (15, 4)), row_sizes=(1, 16, 16, 1)),
        *halves(base),
        *_long(base),
    ]
    return [_case(shape) for shape in shapes]


def perf_cases() -> list[Case]:
    """Return the cases that are timed: decode of 8 rows, and a prefill, in blocks as large as an
    engine's."""
    return [
        _case(WkvShape(rows=rows, channels=2048, block_tokens=512, apart=False))
        for rows in TIMED_TOGETHER
    ]


def _long(base: WkvShape) -> list[WkvShape]:
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


def _case(shape: WkvShape) -> Case:
    tokens, states = shape.num_tokens, shape.num_moved_states
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


def _builder(shape: WkvShape) -> Callable[[torch.device], Arguments]:
    def build(device: torch.device) -> Arguments:
        step, num_blocks = shape.step(device)
        tokens, channels = int(step["query_start"][-1]), shape.channels

        def rows(seed: int) -> torch.Tensor:
            size = (tokens, channels + 3 * shape.apart)
            return normal(size, shape.dtype, device, seed=seed)[:, :channels]

        state_shape = (num_blocks, 3 + shape.apart, channels)
        state = normal(state_shape, torch.float32, device, seed=4)
        state[:, 1] = state[:, 1].abs() + 0.5
        state[:, 2] *= shape.keys
        state = state.to(shape.state)
        hide_unread(state, step)
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
