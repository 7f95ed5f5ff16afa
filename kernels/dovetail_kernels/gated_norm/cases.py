"""Cases of gated_norm: a gate before the norm and after it, one group and many."""

from __future__ import annotations

from collections.abc import Callable

import torch

from dovetail_kernels.op import Arguments, Case
from dovetail_kernels.random import normal, tolerance


def cases() -> list[Case]:
    """Return decode, prefill and odd sizes in three dtypes, with both orders and both weights."""
    return _cases(70)


def small_cases() -> list[Case]:
    """Return the same with few rows, each interpreted separately."""
    return _cases(3)


def _cases(many: int) -> list[Case]:
    whole = [
        _case(tokens, size, size // groups, gate_first=True, dtype=dtype)
        for tokens, size, groups in ((1, 1024, 1), (7, 96, 4), (many, 333, 1))
        for dtype in (torch.float32, torch.bfloat16, torch.float16)
    ]
    heads = [
        _case(tokens, size * heads, size, gate_first=first, is_shared=is_shared, apart=13)
        for tokens, size, heads in ((1, 128, 8), (9, 17, 3), (many, 64, 2))
        for first in (False, True)
        for is_shared in (False, True)
    ]
    return whole + heads


def perf_cases() -> list[Case]:
    """Return the cases that are timed: a norm of the whole, and one of heads."""
    return [
        _case(tokens, 4096, group, gate_first=group == 4096, is_shared=group != 4096)
        for group in (4096, 128)
        for tokens in (1, 8, 256)
    ]


def _case(
    tokens: int,
    size: int,
    group_size: int,
    *,
    gate_first: bool,
    is_shared: bool = False,
    apart: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Case:
    order = "gate_first" if gate_first else "norm_first"
    weight_size = group_size if is_shared else size
    return Case(
        name=f"{order}_T{tokens}_D{size}_G{group_size}_weight{weight_size}",
        dtype=dtype,
        build=_builder(tokens, size, group_size, weight_size, gate_first, apart, dtype),
        moved_bytes=(3 * tokens * size + weight_size) * dtype.itemsize,
        flops=25 * tokens * size,
        rtol=tolerance(dtype),
        atol=tolerance(dtype),
    )


def _builder(
    tokens: int,
    size: int,
    group_size: int,
    weight_size: int,
    gate_first: bool,
    apart: int,
    dtype: torch.dtype,
) -> Callable[[torch.device], Arguments]:
    def build(device: torch.device) -> Arguments:
        x, gate = (normal((tokens, size + apart), dtype, device, seed=seed) for seed in (1, 2))
        return {
            "x": x[:, :size],
            "gate": gate[:, :size],
            "weight": normal((weight_size,), dtype, device, seed=3),
            "eps": 1e-6,
            "group_size": group_size,
            "gate_first": gate_first,
        }

    return build
