"""Wraps pure torch functions of tensors, so that recorded steps can run them again (see
`dovetail_kernels.cpu.program`)."""

from __future__ import annotations

import torch

from dovetail.layers.opaque import is_traced
from dovetail_kernels.cpu.program import TensorFunction, by_torch


def of_tensors(function: TensorFunction, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return function(*tensors), new tensors. It may also depend on weights and settings, but on
    nothing that a step changes: a recording repeats it unchanged."""
    return function(*tensors) if is_traced() else by_torch(function, *tensors)
