"""The definition of gated_norm in torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def reference(
    x: torch.Tensor,
    gate: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    group_size: int,
    gate_first: bool,
) -> torch.Tensor:
    """Return the gated norm, in x's dtype. Shapes: x, gate [T, D], weight [D] or [group_size] ->
    [T, D]"""
    opened = F.silu(gate.float())
    values = x.float() * opened if gate_first else x.float()
    groups = values.unflatten(-1, (-1, group_size))
    normed = groups * torch.rsqrt(groups.square().mean(dim=-1, keepdim=True) + eps)
    scaled = (normed * weight.float().view(-1, group_size)).flatten(-2)
    return (scaled if gate_first else scaled * opened).to(x.dtype)
