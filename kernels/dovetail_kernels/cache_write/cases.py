"""Cases of cache_write."""

from __future__ import annotations

from collections.abc import Callable

import torch

from dovetail_kernels.op import Arguments, Case
from dovetail_kernels.random import normal, permutation


def cases() -> list[Case]:
    """Return decode and prefill sizes; a bfloat16 cache under float32 keys too."""
    return [
        _case(tokens, dtype, kv_dtype)
        for tokens in (1, 32, 200)
        for dtype, kv_dtype in (
            (torch.float32, torch.float32),
            (torch.bfloat16, torch.bfloat16),
            (torch.float32, torch.bfloat16),
        )
    ]


def _case(tokens: int, dtype: torch.dtype, kv_dtype: torch.dtype) -> Case:
    heads, size = 4, 64
    return Case(
        name=f"T{tokens}_{kv_dtype}".replace("torch.", ""),
        dtype=dtype,
        build=_builder(tokens, heads, size, dtype, kv_dtype),
        mutates=("cache",),
        rtol=0.0,
        atol=0.0,
        moved_bytes=2 * tokens * heads * size * (dtype.itemsize + kv_dtype.itemsize),
    )


def _builder(
    tokens: int, heads: int, size: int, dtype: torch.dtype, kv_dtype: torch.dtype
) -> Callable[[torch.device], Arguments]:
    def build(device: torch.device) -> Arguments:
        num_blocks, block_tokens = 20, 16
        return {
            "k": normal((tokens, heads, size), dtype, device, seed=1),
            "v": normal((tokens, heads, size), dtype, device, seed=2),
            "cache": torch.zeros(
                2, num_blocks, block_tokens, heads, size, dtype=kv_dtype, device=device
            ),
            "slots": permutation(num_blocks * block_tokens, device, seed=3)[:tokens],
        }

    return build
