"""The definition of qk_rotary in torch."""

from __future__ import annotations

import torch

from dovetail_kernels.rms_norm.reference import reference as rms_norm
from dovetail_kernels.rotary.reference import reference as rotary


def reference(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    num_heads: int,
    num_kv_heads: int,
    q_weight: torch.Tensor | None = None,
    k_weight: torch.Tensor | None = None,
    eps: float = 1e-6,
    offset: float = 0.0,
    is_interleaved: bool = False,
) -> None:
    """Norm and turn the q and k heads. Shapes: qkv [T, (H + 2 K) D]. Mutates: qkv"""
    heads = qkv.unflatten(-1, (num_heads + 2 * num_kv_heads, -1))
    q, k = heads[:, :num_heads], heads[:, num_heads : num_heads + num_kv_heads]
    for part, weight in ((q, q_weight), (k, k_weight)):
        normed = part if weight is None else rms_norm(part, weight, eps, offset)
        part.copy_(rotary(normed, cos[positions], sin[positions], is_interleaved))
