"""The definition of head_products in torch."""

from __future__ import annotations

import torch


def reference(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return each head's first I numbers times its matrix, followed by its other numbers.

    Shapes: x [T, H, I + S], weight [H, I, O] -> [T, H, O + S]
    """
    size = weight.shape[1]
    first, rest = x[..., :size], x[..., size:]
    rotated = torch.bmm(first.transpose(0, 1), weight.to(x.dtype)).transpose(0, 1)
    return torch.cat([rotated, rest], dim=-1)
