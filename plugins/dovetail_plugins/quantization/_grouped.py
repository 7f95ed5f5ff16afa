"""Shared by methods of 4 bits and less: unsigned values in groups become a weight kernels multiply.

Widths that no kernel has are values of the next one that use fewer levels, so all of them are exact
in the kernels' formats. Groups that are not a multiple of 8 inputs become a float16 (or bfloat16)
matrix, the one inexact case.
"""

from __future__ import annotations

import torch

from dovetail.errors import ConfigError
from dovetail_kernels.gemm.weight import Weight, integer_format
from dovetail_plugins.quantization._float_formats import half_if_exact
from dovetail_plugins.quantization._widths import STEP, width_of


def grouped_weight(
    values: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor,
    *,
    bits: int,
    group: int = 0,
    order: torch.Tensor | None = None,
) -> Weight:
    """Return the matrix (value - zero) * scale.

    Scales may be wider than in the checkpoint: they are narrowed if that is exact. `group` is G, 0
    if all groups have one size.
    Shapes: values [N, K] uint8, scales and zeros [N, K / G rounded up] -> [N, K]
    """
    inputs = values.shape[1]
    group = group or inputs // scales.shape[1]
    size = width_of(bits, group)
    half = 1 << (size - 1)
    if size == 8:
        values = (values.to(torch.int16) - half).to(torch.int8)
    if size == 8 and group == inputs and bool((zeros == half).all()):
        return Weight(format="int8", values=values, scales=scales[:, 0].float(), order=order)
    if group % STEP:
        return _full(values, scales, zeros - (half if size == 8 else 0), group, order)
    is_even = bool((zeros == half).all())
    scales, zeros = half_if_exact(scales.float(), zeros.float() - (half if size == 8 else 0))
    return Weight(
        format=integer_format(size, "float"),
        values=values,
        scales=scales,
        zeros=None if is_even else zeros,
        group=group,
        order=order,
    )


def group_order(group_of: torch.Tensor, group: int) -> torch.Tensor | None:
    """Return the inputs sorted by group, or None if they are already in groups.

    A rank that has some of the inputs must have whole groups, which follow each other.
    Shapes: group_of [I] (-1 everywhere: not given) -> [I] int64. Raises: ConfigError
    """
    if bool((group_of < 0).all()):
        return None
    own = group_of.long() - group_of.min()
    if torch.equal(own, torch.arange(len(own)) // group):
        return None
    counts = own.bincount()
    if bool((counts[:-1] != group).any()) or counts[-1] > group:
        raise ConfigError(
            "the inputs of a group are on several ranks: they were ordered by activation.",
            where="--tensor-parallel-size",
            fix="use one rank, or a checkpoint without desc_act (actorder: group).",
        )
    return torch.argsort(own, stable=True)


def _full(
    values: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor,
    group: int,
    order: torch.Tensor | None,
) -> Weight:
    """Return the matrix in float16 if it fits, because that type is more exact for it."""
    largest = float(scales.abs().max()) * 256 if scales.numel() else 0.0
    fits = largest < torch.finfo(torch.float16).max
    wide = torch.empty(values.shape, dtype=torch.float16 if fits else torch.bfloat16)
    inputs = values.shape[1]
    for row in range(len(values)):
        steps, points = (t[row].float().repeat_interleave(group)[:inputs] for t in (scales, zeros))
        wide[row] = (values[row].float() - points) * steps
    return Weight(format="float16" if fits else "bfloat16", values=wide, order=order)
