"""Concatenated packed weights of several experts, for products of rows sorted by expert."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import torch

from dovetail_kernels.gemm.gpu import KEPT, GpuPacked, pack
from dovetail_kernels.gemm.weight import FLOATS, Weight


def stack(experts: Sequence[GpuPacked]) -> GpuPacked | None:
    """Return the weights of several experts as one, None if they differ in kind."""
    first = experts[0]
    rest = [f.name for f in fields(GpuPacked) if f.name not in KEPT]
    for other in experts:
        if any(getattr(other, name) != getattr(first, name) for name in rest):
            return None
        if list(other.tensors()) != list(first.tensors()):
            return None
    if first.table is not None and not all(_same_table(first, other) for other in experts):
        return None
    stacked: dict[str, Any] = {
        name: _stacked([e.tensors()[name] for e in experts])
        for name in first.tensors()
        if name != "table"
    }
    return replace(first, num_experts=len(experts), **stacked)


def stack_floats(values: torch.Tensor, *, is_gated: bool) -> GpuPacked:
    """Return plain matrices of experts without repacking. Shapes: values [X, N, K]"""
    name = next(name for name, dtype in FLOATS.items() if dtype == values.dtype)
    one = pack(Weight(format=name, values=values[0]), is_gated=is_gated)
    return replace(one, values=values, num_experts=len(values))


def _same_table(one: GpuPacked, other: GpuPacked) -> bool:
    return one.table is not None and other.table is not None and torch.equal(one.table, other.table)


def _stacked(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    if tensors[0].dtype != torch.float8_e4m3fn:
        return torch.stack(list(tensors))
    return torch.stack([t.view(torch.uint8) for t in tensors]).view(torch.float8_e4m3fn)
