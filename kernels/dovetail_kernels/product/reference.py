"""The definition of product in torch."""

from __future__ import annotations

import torch

from dovetail_kernels.gemm.reference import ACTIVATIONS


def reference(
    x: torch.Tensor,
    gate: torch.Tensor | None = None,
    factors: torch.Tensor | None = None,
    activation: str = "none",
) -> torch.Tensor:
    """Return x * act(gate) * factors. Shapes: x, gate [T, C], factors [C] -> [T, C]"""
    result = x.float()
    if gate is not None:
        result = result * ACTIVATIONS[activation](gate.float())
    if factors is not None:
        result = result * factors.float()
    return result.to(x.dtype)
