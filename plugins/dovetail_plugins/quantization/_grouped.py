"""What 4-bit-and-less methods share: unsigned values in groups become a weight kernels multiply.

2 and 3 bits are 4-bit values that use fewer levels, so all of them are exact in the 4-bit format.
More bits in groups are two 4-bit matrices, of the upper and the lower bits, whose products are
added: exact too, and of the checkpoint's size. What no group size of the kernels divides becomes a
float16 (or bfloat16) matrix, the one inexact case.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import torch

from dovetail.errors import ConfigError
from dovetail_kernels.gemm.weight import Weight
from dovetail_plugins.quantization._halves import Halves

GROUPS = (32, 64, 128)
ACTIVATIONS = {"int8": "int4_int8", "float": "int4"}


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedOptions:
    """Options of methods whose weights are 4-bit groups."""

    activations: str = field(
        default="int8",
        metadata={"help": "int8: activations become 8-bit per token, which is faster; float: not"},
    )

    def __post_init__(self) -> None:
        """Raises: ConfigError for a value that is not possible."""
        if self.activations not in ACTIVATIONS:
            raise ConfigError(
                f"{self.activations!r} is not possible",
                where="--plugin-options.quantization.activations",
                fix=f"use one of {', '.join(ACTIVATIONS)}",
            )


def grouped_weight(
    values: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor,
    *,
    bits: int,
    activations: str,
    order: torch.Tensor | None = None,
) -> Weight | Halves:
    """Return the matrix (value - zero) * scale.

    Shapes: values [N, K] uint8, scales and zeros [N, K / G] -> [N, K]
    """
    inputs = values.shape[1]
    group = inputs // scales.shape[1]
    scales = narrowed(scales)
    if bits == 8 and activations == "int8" and group == inputs and bool((zeros == 128).all()):
        signed = (values.to(torch.int16) - 128).to(torch.int8)
        return Weight(format="int8", values=signed, scales=scales[:, 0].float(), order=order)
    fitting = next((g for g in sorted(GROUPS, reverse=True) if group % g == 0), None)
    if fitting is None or not _can_be_halved(scales, bits):
        return _full(values, scales, zeros, order)
    repeats = group // fitting
    as_int4 = partial(
        _int4, group=fitting, repeats=repeats, format=ACTIVATIONS[activations], order=order
    )
    if bits <= 4:
        return as_int4(values, scales, zeros)
    upper = torch.div(zeros, 16, rounding_mode="floor")
    return Halves(
        upper=as_int4(values >> 4, scales * 16, upper),
        lower=as_int4(values & 15, scales, zeros - 16 * upper),
    )


def _int4(
    values: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor,
    *,
    group: int,
    repeats: int,
    format: str,
    order: torch.Tensor | None,
) -> Weight:
    """Return a 4-bit matrix whose groups are `repeats` of the kernel's. Zero points come in the
    type of the scales, which holds them exactly."""
    return Weight(
        format=format,
        values=values,
        scales=scales.repeat_interleave(repeats, dim=1),
        zeros=None
        if bool((zeros == 8).all())
        else zeros.to(scales.dtype).repeat_interleave(repeats, dim=1),
        group=group,
        order=order,
    )


def narrowed(scales: torch.Tensor) -> torch.Tensor:
    """Return scales in the narrowest type that holds them exactly: they were loaded wide, since a
    checkpoint's config does not say how they are stored."""
    for dtype in (torch.float16, torch.bfloat16):
        narrow = scales.to(dtype)
        if torch.equal(narrow.float(), scales.float()):
            return narrow
    return scales


def group_order(group_of: torch.Tensor, group: int) -> torch.Tensor | None:
    """Return the inputs sorted by group, or None where they lie in groups already.

    Shapes: group_of [I] (-1 everywhere: not told) -> [I] int64
    """
    in_place = torch.arange(len(group_of)) // group
    if bool((group_of < 0).all()) or torch.equal(group_of.long(), in_place):
        return None
    return torch.argsort(group_of, stable=True)


def _can_be_halved(scales: torch.Tensor, bits: int) -> bool:
    return bits <= 4 or bool((scales * 16).isfinite().all())


def _full(
    values: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, order: torch.Tensor | None
) -> Weight:
    """Return the matrix in float16 where it fits, which is the more exact type for it."""
    group = values.shape[1] // scales.shape[1]
    largest = float(scales.abs().max()) * 256 if scales.numel() else 0.0
    fits = largest < torch.finfo(torch.float16).max
    wide = torch.empty(values.shape, dtype=torch.float16 if fits else torch.bfloat16)
    for row in range(len(values)):
        steps, points = (t[row].float().repeat_interleave(group) for t in (scales, zeros))
        wide[row] = (values[row].float() - points) * steps
    return Weight(format="float16" if fits else "bfloat16", values=wide, order=order)
