"""Cases of token_mask: rows in any order, sizes that end within a word, masks dense and bare."""

from __future__ import annotations

from collections.abc import Callable

import torch

from dovetail_kernels.op import Arguments, Case
from dovetail_kernels.random import normal, permutation

KINDS = ("random", "few", "most")
PERF_SIZE = 128_000


def cases() -> list[Case]:
    """Return small and odd sizes of logits, some rows or all, in three dtypes."""
    sizes = [
        _case(kind, rows, count, size, torch.float32)
        for kind in KINDS
        for rows, count, size in ((1, 1, 64), (5, 3, 1000), (4, 4, 31), (3, 2, 2048))
    ]
    narrow = [_case("random", 4, 3, 100, dtype) for dtype in (torch.bfloat16, torch.float16)]
    return sizes + narrow


def perf_cases() -> list[Case]:
    """Return the cases that are timed."""
    return [_case(kind, rows, rows, PERF_SIZE, torch.float32) for kind in KINDS for rows in (1, 16)]


def _case(kind: str, rows: int, count: int, size: int, dtype: torch.dtype) -> Case:
    return Case(
        name=f"{kind}_S{rows}_A{count}_V{size}",
        dtype=dtype,
        build=_builder(kind, rows, count, size, dtype),
        mutates=("logits",),
        is_finite=False,
        moved_bytes=count * size * 2 * dtype.itemsize + count * size // 8,
        flops=count * size,
    )


def _builder(
    kind: str, rows: int, count: int, size: int, dtype: torch.dtype
) -> Callable[[torch.device], Arguments]:
    def build(device: torch.device) -> Arguments:
        draw = torch.Generator().manual_seed(2)
        words = -(-size // 32)
        masks = torch.randint(-(2**31), 2**31, (count, words), generator=draw, dtype=torch.int64)
        if kind != "random":
            is_bare = torch.rand(masks.shape, generator=draw) < 0.9
            masks = masks.masked_fill(is_bare, 0 if kind == "few" else -1)
        return {
            "logits": normal((rows, size), dtype, device, seed=1),
            "masks": masks.to(torch.int32).to(device),
            "indices": permutation(rows, device, seed=3)[:count],
        }

    return build
