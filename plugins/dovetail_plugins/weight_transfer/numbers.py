"""Verify numbers: whether weights that are to be used are numbers."""

from __future__ import annotations

import torch

from dovetail.errors import ConfigError
from dovetail_kernels.nan_check import OP
from dovetail_kernels.nan_check.bits import INFINITY, bits_of


def verify_numbers(name: str, tensor: torch.Tensor, path: str) -> None:
    """Raise ConfigError if a tensor of the checkpoint at a path has a value that is not a number
    (NaN). Codes of 8 bits and integers are not looked at."""
    infinity = INFINITY.get(tensor.dtype)
    if infinity is None or not tensor.numel():
        return
    bits = bits_of(tensor)
    if OP.pick(bits.device.type, bits.dtype)(bits, infinity):
        raise ConfigError(
            f"{name} has values that are not numbers (NaN).",
            where=path,
            fix="save the checkpoint of an earlier step.",
        )
