"""Whether a layer's op runs on the native CPU library: decided once, when the layer is built."""

from __future__ import annotations

import torch

from dovetail.interfaces.model import BuildContext
from dovetail.layers.dtypes import dtype_of
from dovetail_kernels.op import Op

NATIVE = "native"


def runs_natively(op: Op, context: BuildContext) -> bool:
    """Return whether the op's native implementation takes this model's activations."""
    return op.runs(NATIVE, torch.device(context.device).type, dtype_of(context.model.dtype))
