"""The definition of gated_activation in torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def reference(x: torch.Tensor, activation: str = "silu") -> torch.Tensor:
    """Return act(gate) * up. Shapes: x [T, 2 F] (gate, then up) -> [T, F]"""
    gate, up = x.float().chunk(2, dim=-1)
    if activation == "silu":
        gate = F.silu(gate)
    else:
        gate = F.gelu(gate, approximate="tanh" if activation == "gelu_tanh" else "none")
    return (gate * up).to(x.dtype)
