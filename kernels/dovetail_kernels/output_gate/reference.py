"""The definition of output_gate in torch."""

from __future__ import annotations

import torch


def reference(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """Return x sigmoid(gate), in x's dtype. Shapes: x, gate [T, D] -> [T, D]"""
    return (x.float() * gate.float().sigmoid()).to(x.dtype)
