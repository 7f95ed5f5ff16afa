"""The definition of checksum in torch."""

from __future__ import annotations

import torch

PIECE_BYTES = 1 << 18
LANES = 16


def reference(data: torch.Tensor) -> torch.Tensor:
    """Return two sums a lane and piece. Shapes: data [N] uint8 -> [pieces, 2, 16] int32"""
    padded = torch.nn.functional.pad(data, (0, -len(data) % PIECE_BYTES))
    words = padded.view(torch.int32).view(-1, PIECE_BYTES // 4 // LANES, LANES).long() & 0xFFFFFFFF
    times = torch.arange(words.shape[1], 0, -1, device=data.device).view(1, -1, 1)
    sums = torch.stack([words.sum(dim=1), (words * times).sum(dim=1)], dim=1) & 0xFFFFFFFF
    return torch.where(sums >= 1 << 31, sums - (1 << 32), sums).int()
