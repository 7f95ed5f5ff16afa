"""The definition of gated_activation in torch."""

from __future__ import annotations

import torch

from dovetail_kernels.gemm.reference import ACTIVATIONS


def reference(x: torch.Tensor, activation: str = "silu") -> torch.Tensor:
    """Return act(gate) * up. Shapes: x [T, 2 F] (gate, then up) -> [T, F]"""
    gate, up = x.float().chunk(2, dim=-1)
    return (ACTIVATIONS[activation](gate) * up).to(x.dtype)
