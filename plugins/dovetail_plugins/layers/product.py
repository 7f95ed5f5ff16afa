"""Elementwise products of activations: with an activated gate, with per-channel factors.

Native calls if there are any, so that steps with them can be recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from dovetail.interfaces.model import BuildContext
from dovetail.layers.linear import RowParallelLinear
from dovetail.layers.native import fused_kernel, runs_natively
from dovetail.layers.opaque import is_traced
from dovetail_kernels import product
from dovetail_kernels.product.native import Product as NativeProduct


class Product(nn.Module):
    """x * act(gate) * factors; `activation` is one that products end in (see dovetail_kernels)."""

    def __init__(self, context: BuildContext, activation: str = "none") -> None:
        super().__init__()
        self._plain = partial(product.OP.reference, activation=activation)
        self._run: Callable[..., torch.Tensor] = self._plain
        if runs_natively(product.OP, context):
            self._run = NativeProduct(activation)
        elif (fused := fused_kernel(product.OP, context)) is not None:
            self._run = partial(fused, activation=activation)

    def forward(
        self,
        x: torch.Tensor,
        gate: torch.Tensor | None = None,
        factors: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Shapes: x, gate [T, C], factors [C] -> [T, C]"""
        return (self._plain if is_traced() else self._run)(x, gate, factors)


class Scale(nn.Module):
    """A constant factor for each channel: `factors` as pairs of (channels, their factor)."""

    def __init__(self, context: BuildContext, factors: Sequence[tuple[int, float]]) -> None:
        super().__init__()
        self.is_one = all(factor == 1.0 for _, factor in factors)
        parts = [torch.full((size,), float(factor)) for size, factor in factors]
        self.register_buffer("factors", torch.cat(parts).to(context.device), persistent=False)
        self.product = Product(context)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shapes: x [T, C] -> [T, C]"""
        if self.is_one:
            return x
        out: torch.Tensor = self.product(x, None, self.get_buffer("factors"))
        return out


class ScaledRowParallelLinear(RowParallelLinear):
    """A row-parallel matrix, whose product and bias are multiplied by `factor`."""

    def __init__(
        self,
        context: BuildContext,
        name: str,
        in_size: int,
        out_size: int,
        *,
        factor: float,
        **settings: Any,
    ) -> None:
        super().__init__(context, name, in_size, out_size, **settings)
        scaled = self.spec.in_size if self.bias is None else out_size
        self.scale = Scale(context, [(scaled, factor)])

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """Return the whole factor * (x W^T + bias) (+ residual) on every rank.

        Shapes: x [T, I of this rank], residual [T, O] -> [T, O]
        """
        if self.scale.is_one:
            return super().forward(x, residual)
        if self.bias is None:  # the sum with the residual is the matrix product's
            return super().forward(self.scale(x), residual)
        out: torch.Tensor = self.scale(super().forward(x))
        return out if residual is None else out + residual
