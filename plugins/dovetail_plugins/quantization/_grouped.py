"""What 4-bit-and-less methods share: unsigned values in groups become a weight kernels multiply.

2 and 3 bits are 4-bit values that use fewer levels, so all of them are exact in the 4-bit format.
8 bits in groups have no format of their own: they become full-precision weights.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from dovetail.errors import ConfigError
from dovetail_kernels.gemm.weight import Weight

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
) -> Weight:
    """Return the matrix (value - zero) * scale.

    Shapes: values [N, K] uint8, scales and zeros [N, K / G] -> [N, K]
    """
    inputs = values.shape[1]
    group = inputs // scales.shape[1]
    if bits > 4:
        return _wide(values, scales, zeros, order)
    fitting = next((g for g in sorted(GROUPS, reverse=True) if group % g == 0), None)
    if fitting is None:
        return _full(values, scales, zeros, order)
    repeats = group // fitting
    return Weight(
        format=ACTIVATIONS[activations],
        values=values,
        scales=scales.repeat_interleave(repeats, dim=1),
        zeros=None if bool((zeros == 8).all()) else spread(zeros, repeats, scales.dtype),
        group=fitting,
        order=order,
    )


def spread(zeros: torch.Tensor, repeats: int, dtype: torch.dtype) -> torch.Tensor:
    """Return zero points in the type of the scales, which holds them exactly, a column a group."""
    return zeros.to(dtype).repeat_interleave(repeats, dim=1)


def _wide(
    values: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, order: torch.Tensor | None
) -> Weight:
    """Return 8-bit values: as int8 with a scale per output where that is what they are."""
    if scales.shape[1] == 1 and bool((zeros == 128).all()):
        signed = (values.to(torch.int16) - 128).to(torch.int8)
        return Weight(format="int8", values=signed, scales=scales[:, 0].float(), order=order)
    return _full(values, scales, zeros, order)


def _full(
    values: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, order: torch.Tensor | None
) -> Weight:
    group = values.shape[1] // scales.shape[1]
    wide = torch.empty(values.shape, dtype=torch.bfloat16)
    for row in range(len(values)):
        steps, points = (t[row].float().repeat_interleave(group) for t in (scales, zeros))
        wide[row] = (values[row].float() - points) * steps
    return Weight(format="bfloat16", values=wide, order=order)
