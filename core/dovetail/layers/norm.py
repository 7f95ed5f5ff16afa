"""Normalisation layers over the hidden axis. Replicated on every rank. Knows no model."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from dovetail.interfaces.model import BuildContext
from dovetail.layers.dtypes import dtype_of


def _empty(context: BuildContext, size: int) -> nn.Parameter:
    dtype = dtype_of(context.model.dtype)
    return nn.Parameter(torch.empty(size, dtype=dtype, device=context.device), requires_grad=False)


class RMSNorm(nn.Module):
    """x / rms(x) * w, computed in float32.

    Source: Zhang and Sennrich, Root Mean Square Layer Normalization, 2019.
    """

    def __init__(self, context: BuildContext, size: int, *, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = _empty(context, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shapes: x [..., E] -> [..., E]"""
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class GemmaRMSNorm(RMSNorm):
    """x / rms(x) * (1 + w): Gemma stores the weight's distance from one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shapes: x [..., E] -> [..., E]"""
        scale = 1.0 + self.weight.float()
        return F.rms_norm(x.float(), self.weight.shape, scale, self.eps).to(x.dtype)


class LayerNorm(nn.Module):
    """(x - mean) / std * w + b, with or without the bias."""

    def __init__(self, context: BuildContext, size: int, *, eps: float, bias: bool = True) -> None:
        super().__init__()
        self.eps = eps
        self.weight = _empty(context, size)
        self.bias = _empty(context, size) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shapes: x [..., E] -> [..., E]"""
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)
