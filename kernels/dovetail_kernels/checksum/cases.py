"""Cases of checksum: parts of a piece, whole ones, several."""

from __future__ import annotations

from collections.abc import Callable

import torch

from dovetail_kernels.checksum.reference import PIECE_BYTES
from dovetail_kernels.op import Arguments, Case


def cases() -> list[Case]:
    """Return few bytes, a whole piece and odd ends."""
    return [_case(size) for size in (1, 63, 64, 1000, PIECE_BYTES, 2 * PIECE_BYTES + 77)]


def perf_cases() -> list[Case]:
    """Return the cases that are timed."""
    return [_case(64 << 20)]


def _case(size: int) -> Case:
    return Case(
        name=f"N{size}",
        dtype=torch.uint8,
        build=_builder(size),
        moved_bytes=size,
        flops=size // 2,
        rtol=0,
        atol=0,
    )


def _builder(size: int) -> Callable[[torch.device], Arguments]:
    def build(device: torch.device) -> Arguments:
        generator = torch.Generator().manual_seed(size)
        data = torch.randint(256, (size,), generator=generator).to(torch.uint8)
        return {"data": data.to(device)}

    return build
