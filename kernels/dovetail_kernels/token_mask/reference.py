"""The definition of token_mask in torch."""

from __future__ import annotations

from functools import cache

import torch


def reference(logits: torch.Tensor, masks: torch.Tensor, indices: torch.Tensor) -> None:
    """Forbid tokens. Shapes: logits [S, V], masks [A, W] int32, indices [A] int64

    Mutates: logits
    """
    # A byte of a mask picks eight numbers to add, 0 or -inf: ten times as fast as single bits.
    octets = masks.view(torch.uint8).int()
    added = torch.nn.functional.embedding(octets, _addends(logits.device, logits.dtype))
    logits.index_add_(0, indices, added.flatten(1)[:, : logits.shape[1]])


@cache
def _addends(device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """Return the addends of each byte of a mask for eight logits. Shapes: [256, 8]"""
    bits = torch.arange(256).unsqueeze(1).bitwise_right_shift(torch.arange(8)) & 1
    return torch.zeros(256, 8).masked_fill_(bits == 0, float("-inf")).to(device, dtype)
