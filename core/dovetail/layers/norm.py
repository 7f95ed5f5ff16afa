"""Normalisation layers over the hidden axis. Replicated on every rank.

With a kernel, a norm and the adjacent addition are one call; without, torch does both.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import nn

from dovetail.interfaces.model import BuildContext
from dovetail.layers.dtypes import dtype_of
from dovetail.layers.native import fused_kernel, runs_natively
from dovetail.layers.opaque import is_traced
from dovetail_kernels import layer_norm, rms_norm
from dovetail_kernels.layer_norm import native as native_layer_norm
from dovetail_kernels.rms_norm import native as native_rms_norm


def _empty(context: BuildContext, size: int) -> nn.Parameter:
    dtype = dtype_of(context.model.dtype)
    return nn.Parameter(torch.empty(size, dtype=dtype, device=context.device), requires_grad=False)


def rms_kernel(
    context: BuildContext, size: int, *, eps: float, offset: float = 0.0
) -> Callable[..., torch.Tensor] | None:
    """Return the kernel that norms rows, or None if torch does it."""
    if runs_natively(rms_norm.OP, context):
        return native_rms_norm.RmsNorm(size, eps=eps, offset=offset)
    run = fused_kernel(rms_norm.OP, context)
    return None if run is None else partial(run, eps=eps, offset=offset)


class RMSNorm(nn.Module):
    """x / rms(x) * w, computed in float32.

    Source: Zhang and Sennrich, Root Mean Square Layer Normalization, 2019.
    """

    offset: ClassVar[float] = 0.0
    """Added to the weight."""

    def __init__(self, context: BuildContext, size: int, *, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = _empty(context, size)
        self._kernel = rms_kernel(context, size, eps=eps, offset=self.offset)

    def forward(
        self,
        x: torch.Tensor,
        *,
        delta: torch.Tensor | None = None,
        residual: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return residual + norm(x + delta). Shapes: all [..., E] -> [..., E]

        Mutates: x, which becomes x + delta if there is a delta
        """
        if self._kernel is not None and x.dim() == 2 and not is_traced():
            weight = self._parameters["weight"]
            return self._kernel(x, weight, delta=delta, residual=residual)
        if delta is not None:
            x.add_(delta)
        out = self._scaled(x)
        return out if residual is None else residual + out

    def _scaled(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class BareRMSNorm(RMSNorm):
    """x / rms(x), without a weight; a checkpoint has no tensor for it."""

    def __init__(self, context: BuildContext, size: int, *, eps: float) -> None:
        super().__init__(context, size, eps=eps)
        del self.weight
        self.register_parameter("weight", None)

    def _scaled(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, x.shape[-1:], None, self.eps)


class GemmaRMSNorm(RMSNorm):
    """x / rms(x) * (1 + w): Gemma stores the weight minus one."""

    offset = 1.0

    def _scaled(self, x: torch.Tensor) -> torch.Tensor:
        scale = self.offset + self.weight.float()
        return F.rms_norm(x.float(), self.weight.shape, scale, self.eps).to(x.dtype)


class LayerNorm(nn.Module):
    """(x - mean) / std * w + b, with or without the bias, or bare."""

    offset: ClassVar[float] = 0.0
    """Added to the weight."""

    def __init__(
        self,
        context: BuildContext,
        size: int,
        *,
        eps: float,
        bias: bool = True,
        weight: bool = True,
    ) -> None:
        super().__init__()
        self.eps = eps
        self.weight = _empty(context, size) if weight else None
        self.bias = _empty(context, size) if bias else None
        self._kernel = self._kernel_of(context, size)

    def _kernel_of(self, context: BuildContext, size: int) -> Callable[..., torch.Tensor] | None:
        """Return the kernel that norms rows, or None if torch does it."""
        if runs_natively(layer_norm.OP, context):
            return native_layer_norm.LayerNorm(size, eps=self.eps, offset=self.offset)
        run = fused_kernel(layer_norm.OP, context)
        return None if run is None else partial(run, eps=self.eps, offset=self.offset)

    def forward(self, x: torch.Tensor, *, delta: torch.Tensor | None = None) -> torch.Tensor:
        """Return norm(x + delta). Shapes: x and delta [..., E] -> [..., E]

        Mutates: x, which becomes x + delta if there is a delta
        """
        if self._kernel is not None and x.dim() == 2 and not is_traced():
            own = self._parameters
            return self._kernel(x, own.get("weight"), own.get("bias"), delta=delta)
        if delta is not None:
            x.add_(delta)
        weight: torch.Tensor | None = self.weight
        if weight is not None and self.offset:
            weight = weight + self.offset
        return F.layer_norm(x, x.shape[-1:], weight, self.bias, self.eps)


class LayerNorm1p(LayerNorm):
    """(x - mean) / std * (1 + w) + b: the stored weight is the weight minus one."""

    offset = 1.0
