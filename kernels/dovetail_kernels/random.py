"""Seeded arguments for cases: the same numbers on every device."""

from __future__ import annotations

import torch

TOLERANCES = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def normal(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, *, seed: int
) -> torch.Tensor:
    """Return standard normal numbers."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(device=device, dtype=dtype)


def permutation(count: int, device: torch.device, *, seed: int) -> torch.Tensor:
    """Return 0 .. count - 1 in a random order. Shapes: [count] int64"""
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed)).to(device)


def tolerance(dtype: torch.dtype) -> float:
    """Return the error, relative and absolute, that rounding to a dtype allows."""
    return TOLERANCES[dtype]
