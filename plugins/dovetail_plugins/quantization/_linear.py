"""PlainLinear: one full-precision weight, multiplied by torch. Shared by methods that leave some
layers alone."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from dovetail.interfaces.quantization import LinearMethod, LinearSpec
from dovetail.layers.dtypes import dtype_of
from dovetail.layers.placement import mark_axes


class PlainLinear(LinearMethod):
    """One weight [O, I] in the compute dtype."""

    def create(self, layer: nn.Module, spec: LinearSpec) -> None:
        """Register an empty `weight`. Mutates: layer"""
        empty = torch.empty(
            spec.out_size, spec.in_size, dtype=dtype_of(spec.dtype), device=spec.device
        )
        weight = nn.Parameter(empty, requires_grad=False)
        layer.register_parameter("weight", mark_axes(weight, output=0, input=1))

    def apply(self, layer: nn.Module, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Return x W^T + bias. Shapes: x [T, I], bias [O] -> [T, O]"""
        return F.linear(x, layer.get_parameter("weight"), bias)
