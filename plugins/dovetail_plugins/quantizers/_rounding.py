"""Rounding to nearest in groups of inputs, and small integers packed into int32 words.

Shape letters: O outputs, I inputs, G inputs per group.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


def grouped(weight: torch.Tensor, group: int) -> torch.Tensor:
    """Return a view with a row a group. Shapes: [O, I] -> [O, I / G, G]"""
    return weight.unflatten(1, (-1, group))


def even_steps(weight: torch.Tensor, group: int, *, bits: int, dtype: torch.dtype) -> torch.Tensor:
    """Return the size of a step of every group, for levels on both sides of 0.

    Shapes: weight [O, I] -> [O, I / G] in `dtype`, all nonzero
    """
    largest = grouped(weight, group).abs().amax(-1)
    return stored_steps(largest / ((1 << bits) - 1) * 2, dtype)


def stored_steps(steps: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return steps as they are stored: rounded, finite and nonzero."""
    limits = torch.finfo(dtype)
    return steps.clamp(limits.smallest_normal, limits.max).to(dtype)


def levels(
    weight: torch.Tensor,
    steps: torch.Tensor,
    *,
    bits: int,
    zeros: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the nearest levels, counted from 0. `zeros` is the level of 0; None: the middle one.

    Shapes: weight [O, I], steps and zeros [O, I / G] -> [O, I] uint8
    """
    group = weight.shape[1] // steps.shape[1]
    zero = 1 << (bits - 1) if zeros is None else zeros.unsqueeze(-1)
    codes = (grouped(weight, group) / steps.float().unsqueeze(-1)).round_() + zero
    return codes.clamp_(0, (1 << bits) - 1).to(torch.uint8).flatten(1)


def meant(
    values: torch.Tensor,
    steps: torch.Tensor,
    *,
    bits: int,
    zeros: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the values of levels. Shapes: as in `levels`, -> [O, I] float32"""
    group = values.shape[1] // steps.shape[1]
    zero = 1 << (bits - 1) if zeros is None else zeros.unsqueeze(-1).float()
    return ((grouped(values, group).float() - zero) * steps.float().unsqueeze(-1)).flatten(1)


def pack(
    values: torch.Tensor, bits: int, *, axis: int, order: Sequence[int] | None = None
) -> torch.Tensor:
    """Return small integers in int32 words along an axis, the first in the lowest bits.

    `order` is the position in a word of value i. Shapes: [..., n, ...] -> [..., n * bits / 32, ...]
    """
    count = 32 // bits
    words = values.movedim(axis, -1).unflatten(-1, (-1, count)).to(torch.int64)
    places = torch.tensor(order or range(count)) * bits
    packed = (words << places).sum(-1)
    signed = torch.where(packed >= 1 << 31, packed - (1 << 32), packed)
    return signed.to(torch.int32).movedim(-1, axis).contiguous()
