"""Cases of qk_rotary."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from dovetail_kernels.op import Arguments, Case
from dovetail_kernels.random import normal, tolerance

POSITIONS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class RotaryShape:
    """H query heads, K kv heads, D features, of which `turned` are rotated."""

    heads: int
    kv_heads: int
    size: int
    turned: int


USUAL = RotaryShape(heads=16, kv_heads=8, size=128, turned=128)
SHAPES = (
    RotaryShape(heads=4, kv_heads=2, size=64, turned=64),
    RotaryShape(heads=3, kv_heads=1, size=80, turned=32),
    RotaryShape(heads=2, kv_heads=2, size=96, turned=96),
    RotaryShape(heads=2, kv_heads=1, size=10, turned=6),
    RotaryShape(heads=1, kv_heads=1, size=37, turned=26),
    RotaryShape(heads=3, kv_heads=1, size=24, turned=0),
    RotaryShape(heads=5, kv_heads=0, size=24, turned=8),
)
PERF_TOKENS = (1, 8, 256)


def cases() -> list[Case]:
    """Return whole and partial turns, with and without norms, halves and interleaved."""
    return _cases(70)


def small_cases() -> list[Case]:
    """Return the same with few tokens, each interpreted separately."""
    return _cases(3)


def _cases(many: int) -> list[Case]:
    usual = [
        _case(tokens, USUAL, dtype, has_norm, False)
        for tokens in (1, many)
        for has_norm in (False, True)
        for dtype in (torch.float32, torch.bfloat16)
    ]
    odd = [
        _case(5, shape, torch.float32, has_norm, is_interleaved)
        for shape in SHAPES
        for has_norm in (False, True)
        for is_interleaved in (False, True)
    ]
    return [*usual, *odd, _case(5, SHAPES[1], torch.float32, True, False, offset=1.0)]


def perf_cases() -> list[Case]:
    """Return the cases that are timed."""
    return [
        _case(tokens, USUAL, torch.float32, has_norm, False)
        for has_norm in (False, True)
        for tokens in PERF_TOKENS
    ]


def _case(
    tokens: int,
    shape: RotaryShape,
    dtype: torch.dtype,
    has_norm: bool,
    is_interleaved: bool,
    offset: float = 0.0,
) -> Case:
    turned_heads = shape.heads + shape.kv_heads
    words = ("_norm" if has_norm else "", "_pairs" if is_interleaved else "")
    return Case(
        name=f"T{tokens}_H{shape.heads}_K{shape.kv_heads}_D{shape.size}_turned{shape.turned}"
        f"{''.join(words)}{'_offset' if offset else ''}",
        dtype=dtype,
        build=_builder(tokens, shape, dtype, has_norm, is_interleaved, offset),
        mutates=("qkv",),
        moved_bytes=tokens * (2 * turned_heads * shape.size * dtype.itemsize + 4 * shape.turned),
        flops=tokens * turned_heads * (3 * shape.turned + 4 * shape.size * has_norm),
        rtol=tolerance(dtype),
        atol=tolerance(dtype),
    )


def _builder(
    tokens: int,
    shape: RotaryShape,
    dtype: torch.dtype,
    has_norm: bool,
    is_interleaved: bool,
    offset: float,
) -> Callable[[torch.device], Arguments]:
    def build(device: torch.device) -> Arguments:
        width = (shape.heads + 2 * shape.kv_heads) * shape.size
        rates = 10000.0 ** -(torch.arange(0, shape.turned, 2) / shape.turned)
        angles = torch.outer(torch.arange(POSITIONS, dtype=torch.float32), rates)
        weights = [
            normal((shape.size,), dtype, device, seed=seed) if has_norm else None for seed in (2, 3)
        ]
        return {
            "qkv": normal((tokens, width), dtype, device, seed=1),
            "cos": angles.cos().to(device),
            "sin": angles.sin().to(device),
            "positions": (torch.arange(tokens, device=device) * 11 + 3) % POSITIONS,
            "num_heads": shape.heads,
            "num_kv_heads": shape.kv_heads,
            "q_weight": weights[0],
            "k_weight": weights[1],
            "offset": offset,
            "is_interleaved": is_interleaved,
        }

    return build
