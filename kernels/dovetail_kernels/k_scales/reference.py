"""The definition of k_scales in torch."""

from __future__ import annotations

import torch

SIX_BITS, FOUR_BITS = 0x3F, 0x0F

Scales = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
"""Codes [n, 8] int8, steps [n, 1] float16, offset codes [n, 8] int8, offset steps [n, 1]
float16."""


def reference(blocks: torch.Tensor) -> Scales:
    """Return the scales and offsets of blocks. Shapes: blocks [n, S] uint8"""
    steps = blocks[:, :4].contiguous().view(torch.float16)
    scales, offsets, rest = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    codes = [scales & SIX_BITS, rest & FOUR_BITS | scales >> 6 << 4]
    offset_codes = [offsets & SIX_BITS, rest >> 4 | offsets >> 6 << 4]
    return (
        torch.cat(codes, dim=1).view(torch.int8),
        steps[:, :1].contiguous(),
        torch.cat(offset_codes, dim=1).view(torch.int8),
        -steps[:, 1:],
    )
