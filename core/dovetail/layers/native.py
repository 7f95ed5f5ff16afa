"""Which implementation of an op a layer runs: decided once, when the layer is built."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dovetail.interfaces.model import BuildContext
from dovetail.layers.dtypes import dtype_of
from dovetail_kernels.op import Op

NATIVE = "native"
TRITON = "triton"


def runs_natively(op: Op, context: BuildContext) -> bool:
    """Return whether the op's native implementation takes this model's activations."""
    return op.runs(NATIVE, torch.device(context.device).type, dtype_of(context.model.dtype))


def triton_kernel(op: Op, context: BuildContext) -> Callable[..., Any] | None:
    """Return the op's Triton kernel, called as its reference is, or None where it does not run or
    the framework's own operators are wanted."""
    if not context.uses_fused_ops:
        return None
    device, dtype = torch.device(context.device).type, dtype_of(context.model.dtype)
    return op.pick(device, dtype, name=TRITON) if op.runs(TRITON, device, dtype) else None
