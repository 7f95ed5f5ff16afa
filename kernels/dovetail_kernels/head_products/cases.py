"""Cases of head_products."""

from __future__ import annotations

from collections.abc import Callable

import torch

from dovetail_kernels.op import Arguments, Case
from dovetail_kernels.random import normal, tolerance

SHAPES = ((4, 12, 16, 8), (3, 16, 10, 0), (2, 33, 70, 3), (1, 1, 64, 1), (16, 128, 512, 64))
"""H, I, O, S."""
REAL = ((16, 128, 512, 64), (16, 512, 128, 0), (128, 128, 512, 64))


def cases() -> list[Case]:
    """Return sizes that fill no panel, several numbers of tokens, and types of the matrices."""
    plain = [_case(tokens, shape) for shape in SHAPES for tokens in (1, 7)]
    kinds = [_case(5, SHAPES[2], weight=kind) for kind in (torch.bfloat16, torch.float16)]
    return [*plain, *kinds, _case(3, SHAPES[0], dtype=torch.bfloat16, weight=torch.bfloat16)]


def perf_cases() -> list[Case]:
    """Return the cases that are timed: both products of a real layer."""
    return [_case(t, shape, weight=torch.bfloat16) for shape in REAL for t in (1, 8, 64)]


def _case(
    tokens: int,
    shape: tuple[int, int, int, int],
    *,
    dtype: torch.dtype = torch.float32,
    weight: torch.dtype = torch.float32,
) -> Case:
    heads, inner, outer, rest = shape
    kind = str(weight).removeprefix("torch.")
    return Case(
        name=f"T{tokens}_H{heads}_I{inner}_O{outer}_S{rest}_{kind}",
        dtype=dtype,
        build=_builder(tokens, shape, dtype, weight),
        moved_bytes=heads * inner * outer * weight.itemsize
        + tokens * heads * (inner + outer + 2 * rest) * dtype.itemsize,
        flops=2 * tokens * heads * inner * outer,
        rtol=tolerance(dtype),
        atol=4 * tolerance(dtype),
    )


def _builder(
    tokens: int, shape: tuple[int, int, int, int], dtype: torch.dtype, kind: torch.dtype
) -> Callable[[torch.device], Arguments]:
    def build(device: torch.device) -> Arguments:
        heads, inner, outer, rest = shape
        return {
            "x": normal((tokens, heads, inner + rest), dtype, device, seed=1),
            "weight": (normal((heads, inner, outer), torch.float32, device, seed=2) / 8).to(kind),
        }

    return build
