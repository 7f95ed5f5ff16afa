"""Values of floating-point types as the integers that their bits are."""

from __future__ import annotations

import torch

INFINITY = {torch.float32: 0x7F800000, torch.bfloat16: 0x7F80, torch.float16: 0x7C00}
"""The bits of infinity in each type."""
_INTEGERS = {2: torch.int16, 4: torch.int32}


def integer_of(dtype: torch.dtype) -> torch.dtype:
    """Return the integer type as wide as one of INFINITY."""
    return _INTEGERS[dtype.itemsize]


def bits_of(values: torch.Tensor) -> torch.Tensor:
    """Return the bits of values of a type of INFINITY. Shapes: any -> same, contiguous"""
    return values.contiguous().view(integer_of(values.dtype))
