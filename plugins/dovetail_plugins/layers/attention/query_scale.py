"""QueryScale: multiplies each token's queries by a factor of its position, without rotation.

The factors are in a rotary table with zero sines, so the rotary kernel multiplies them. Source of
the idea: Nakanishi, Scalable-Softmax Is Superior for Attention, 2025.
"""

from __future__ import annotations

import torch
from torch import nn

from dovetail.interfaces.model import BuildContext
from dovetail.layers.attention.rotary import HeadRotary, Rope


class PositionScale(nn.Module):
    """The table: a factor for every position that can be served. Shapes: factors [positions]"""

    def __init__(self, factors: torch.Tensor, head_size: int, device: str) -> None:
        super().__init__()
        factor = factors.float().unsqueeze(1).repeat(1, head_size // 2)
        self.register_buffer("factor", factor.to(device), persistent=False)
        self.register_buffer("none", torch.zeros_like(factor).to(device), persistent=False)

    def forward(self, positions: torch.Tensor) -> Rope:
        """Return the factors of a step's tokens. Shapes: positions [T]"""
        return Rope(positions.contiguous(), self.get_buffer("factor"), self.get_buffer("none"))


class QueryScale(HeadRotary):
    """One layer's q heads times the factors, in place of their rotation."""

    def __init__(
        self, context: BuildContext, *, num_heads: int, num_kv_heads: int, head_size: int
    ) -> None:
        super().__init__(context, num_heads=num_heads, num_kv_heads=0, head_size=head_size)
        self._parts = [n * head_size for n in (num_heads, num_kv_heads, num_kv_heads)]

    def __call__(
        self, qkv: torch.Tensor, rope: Rope | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return q, k, v. Shapes: qkv [T, (H+2K)*D] -> [T, H*D], [T, K*D], [T, K*D]

        Mutates: qkv, if there is a kernel
        """
        q, k, v = qkv.split(self._parts, dim=-1)
        return super().__call__(q, rope)[0], k, v
