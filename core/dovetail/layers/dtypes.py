"""The supported dtypes of weights and activations, by torch's name."""

from __future__ import annotations

import torch

from dovetail.errors import ConfigError
from dovetail_kernels.integer_caches import BITS

DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
    )
} | dict.fromkeys(BITS, torch.int8)


def dtype_of(name: str) -> torch.dtype:
    """Return torch's dtype for a name such as "bfloat16". Raises: ConfigError if unknown."""
    if name not in DTYPES:
        raise ConfigError(f'"{name}" is not a dtype.', fix=f"use one of {', '.join(DTYPES)}")
    return DTYPES[name]


def dtype_name(dtype: torch.dtype) -> str:
    """Return a dtype's name, as used by `dtype_of`."""
    return str(dtype).removeprefix("torch.")
