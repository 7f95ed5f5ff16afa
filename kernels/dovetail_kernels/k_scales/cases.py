"""Cases of k_scales: the sizes of both types of block, few and many of them."""

from __future__ import annotations

from collections.abc import Callable

import torch

from dovetail_kernels.op import Arguments, Case

BLOCK_BYTES = {"q4_k": 144, "q5_k": 176}
READ_AND_WRITTEN = 36


def cases() -> list[Case]:
    """Return few and many blocks of both types."""
    return [_case(name, count) for name in BLOCK_BYTES for count in (1, 3000)]


def perf_cases() -> list[Case]:
    """Return the cases that are timed."""
    return [_case(name, 100_000) for name in BLOCK_BYTES]


def _case(name: str, count: int) -> Case:
    return Case(
        name=f"{name}_n{count}",
        dtype=torch.uint8,
        build=_builder(name, count),
        moved_bytes=count * READ_AND_WRITTEN,
        rtol=0,
        atol=0,
    )


def _builder(name: str, count: int) -> Callable[[torch.device], Arguments]:
    def build(device: torch.device) -> Arguments:
        generator = torch.Generator().manual_seed(count)
        blocks = torch.randint(256, (count, BLOCK_BYTES[name]), generator=generator)
        blocks = blocks.to(torch.uint8)
        blocks[:, 1:4:2] &= 0x7B  # finite steps
        return {"blocks": blocks.to(device)}

    return build
