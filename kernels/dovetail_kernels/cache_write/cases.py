"""Cases of cache_write: every cache type, heads and sizes that are not powers of two, all bits."""

from __future__ import annotations

from collections.abc import Callable

import torch

from dovetail_kernels.op import Arguments, Case
from dovetail_kernels.random import normal, permutation

Dtypes = tuple[torch.dtype, torch.dtype]
"""Of the keys, and of the cache."""

SAME: tuple[Dtypes, ...] = (
    (torch.float32, torch.float32),
    (torch.bfloat16, torch.bfloat16),
    (torch.float16, torch.float16),
)
NARROWER: tuple[Dtypes, ...] = (
    (torch.float32, torch.bfloat16),
    (torch.float32, torch.float16),
    (torch.float32, torch.float8_e4m3fn),
    (torch.bfloat16, torch.float8_e4m3fn),
    (torch.float32, torch.float8_e5m2),
    (torch.float32, torch.int8),
    (torch.bfloat16, torch.int8),
)
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
SCALES = {"k_scale": 0.0371, "v_scale": 1.3}
SCALE_BYTES = 4


def cases() -> list[Case]:
    """Return decode and prefill sizes under every pair of types, and odd heads and sizes."""
    sizes = [_case(tokens, *pair) for tokens in (1, 32, 200) for pair in SAME + NARROWER]
    return sizes + _odd_cases()


def small_cases() -> list[Case]:
    """Return every pair of types for a few tokens."""
    return [_case(3, *pair) for pair in SAME + NARROWER] + _odd_cases()


def perf_cases() -> list[Case]:
    """Return a decode of 256 rows and a prefill of 8192 tokens, of 8 heads of 128."""
    pairs = [SAME[1], (torch.bfloat16, torch.float8_e4m3fn), (torch.bfloat16, torch.int8)]
    return [_case(tokens, *pair, heads=8, size=128) for tokens in (256, 8192) for pair in pairs]


def _odd_cases() -> list[Case]:
    pairs = SAME[:1] + NARROWER[2:3] + NARROWER[5:6]
    return [_case(5, *pair, heads=3, size=80) for pair in pairs]


def _case(
    tokens: int, dtype: torch.dtype, kv_dtype: torch.dtype, *, heads: int = 4, size: int = 64
) -> Case:
    stored_bytes = size * kv_dtype.itemsize + SCALE_BYTES * (kv_dtype == torch.int8)
    return Case(
        name=f"T{tokens}_K{heads}_D{size}_{kv_dtype}".replace("torch.", ""),
        dtype=dtype,
        build=_builder(tokens, heads, size, dtype, kv_dtype),
        mutates=("cache", "scales") if kv_dtype == torch.int8 else ("cache",),
        rtol=0.0,
        atol=0.0,
        moved_bytes=2 * tokens * heads * (size * dtype.itemsize + stored_bytes),
    )


def _builder(
    tokens: int, heads: int, size: int, dtype: torch.dtype, kv_dtype: torch.dtype
) -> Callable[[torch.device], Arguments]:
    def build(device: torch.device) -> Arguments:
        block_tokens = 16
        num_blocks = max(20, tokens // block_tokens + 1)
        shape = (2, num_blocks, block_tokens, heads, size)
        return {
            "k": _spread(normal((tokens, heads, size), torch.float32, device, seed=1)).to(dtype),
            "v": normal((tokens, heads, size), dtype, device, seed=2),
            "cache": torch.zeros(shape, device=device).to(kv_dtype),
            "slots": permutation(num_blocks * block_tokens, device, seed=3)[:tokens],
            **(SCALES if kv_dtype in FLOAT8 else {}),
            **({"scales": _scales(shape, device)} if kv_dtype == torch.int8 else {}),
        }

    return build


def _spread(x: torch.Tensor) -> torch.Tensor:
    """Return x over many magnitudes, with a head of zeros. Shapes: [T, K, D]"""
    places = torch.arange(x.shape[-1], device=x.device)
    x = x * 2.0 ** (places % 24 - 16)
    x[0, 0] = 0.0
    return x


def _scales(shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    return torch.zeros(shape[:-1], device=device)
