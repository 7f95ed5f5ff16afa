"""The definition of rms_norm in torch."""

from __future__ import annotations

import torch


def reference(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    offset: float = 0.0,
    delta: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return x / sqrt(mean(x^2) + eps) * (weight + offset) + residual.

    Shapes: x, delta, residual [T, E], weight [E] -> [T, E]
    Mutates: x, when there is a delta
    """
    if delta is not None:
        x.add_(delta)
    wide = x.float()
    out = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    if weight is not None:
        out = out * (weight.float() + offset)
    out = out.to(x.dtype)
    return out if residual is None else residual + out
