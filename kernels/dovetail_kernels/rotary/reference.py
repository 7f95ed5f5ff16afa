"""The definition of rotary in torch."""

from __future__ import annotations

import torch


def reference(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, is_interleaved: bool = False
) -> torch.Tensor:
    """Return x with its first 2 * cos.shape[1] features turned.

    Shapes: x [T, H, D], cos and sin [T, D' / 2] -> [T, H, D]
    """
    turned = 2 * cos.shape[1]
    cos, sin = cos.float().unsqueeze(1), sin.float().unsqueeze(1)
    head, tail = x[..., :turned].float(), x[..., turned:]
    if is_interleaved:
        a, b = head[..., 0::2], head[..., 1::2]
    else:
        a, b = head.chunk(2, dim=-1)
    first, second = a * cos - b * sin, b * cos + a * sin
    if is_interleaved:
        head = torch.stack((first, second), dim=-1).flatten(-2)
    else:
        head = torch.cat((first, second), dim=-1)
    return torch.cat((head.to(x.dtype), tail), dim=-1)
