"""Unquantized: weights as they are, multiplied by torch. Knows no checkpoint config."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from dovetail.interfaces.plugin import Info
from dovetail.interfaces.quantization import LinearMethod, LinearSpec, QuantMethod
from dovetail.interfaces.spec import ModelSpec
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
        weight = layer.get_parameter("weight")
        return F.linear(x, weight, bias)


class Unquantized(QuantMethod):
    """The method of checkpoints that say nothing about quantization."""

    info = Info(summary="full-precision weights, multiplied by torch")

    def __init__(self, options: Any, model: ModelSpec) -> None:
        self.options = options

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why the checkpoint cannot be read unquantized. `query` is a ModelSpec or None."""
        config = query.hf_config.get("quantization_config") if query is not None else None
        if not config:
            return []
        return [f'the checkpoint is quantized with "{config.get("quant_method", "?")}"']

    def linear(self, spec: LinearSpec) -> LinearMethod:
        """Return the same plain method for every layer."""
        return PlainLinear()
