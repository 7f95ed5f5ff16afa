"""What torch computes of tensors alone, so that recorded steps can do it again (see
`dovetail_kernels.cpu.program`)."""

from __future__ import annotations

import torch

from dovetail.layers.opaque import is_traced
from dovetail_kernels.cpu.program import TensorFunction, by_torch


def of_tensors(function: TensorFunction, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return function(*tensors), new tensors. Beside the numbers in the tensors it may depend on
    weights and settings, and on nothing that a step changes: a recording repeats it as it is."""
    return function(*tensors) if is_traced() else by_torch(function, *tensors)
