"""The definition of layer_norm in torch."""

from __future__ import annotations

import torch


def reference(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    delta: torch.Tensor | None = None,
    offset: float = 0.0,
) -> torch.Tensor:
    """Return (x - mean) / sqrt(variance + eps) * (weight + offset) + bias.

    Shapes: x and delta [T, E], weight and bias [E] -> [T, E]
    Mutates: x, when there is a delta
    """
    if delta is not None:
        x.add_(delta)
    wide = x.float()
    centred = wide - wide.mean(dim=-1, keepdim=True)
    out = centred * torch.rsqrt(centred.square().mean(dim=-1, keepdim=True) + eps)
    if weight is not None:
        out = out * (weight.float() + offset)
    if bias is not None:
        out = out + bias.float()
    return out.to(x.dtype)
