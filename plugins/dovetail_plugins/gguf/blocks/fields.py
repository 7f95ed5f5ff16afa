"""Numbers in the bytes of GGUF's blocks. Shape letters: n blocks."""

from __future__ import annotations

import torch


def halves(raw: torch.Tensor) -> torch.Tensor:
    """Return float16 numbers. Shapes: [n, 2 S] uint8 -> [n, S] float32"""
    return raw.contiguous().view(torch.float16).float()


def stored_halves(raw: torch.Tensor, start: int, count: int = 1) -> torch.Tensor:
    """Return float16 numbers from a byte of each block on, as a view. Shapes: [n, even] uint8 ->
    [n, count] float16"""
    return raw.view(torch.float16)[:, start // 2 : start // 2 + count]


def words(raw: torch.Tensor) -> torch.Tensor:
    """Return unsigned 16-bit numbers. Shapes: [n, 2 S] uint8 -> [n, S] int32"""
    return raw.contiguous().view(torch.int16).int() & 0xFFFF


def longs(raw: torch.Tensor) -> torch.Tensor:
    """Return unsigned 32-bit numbers. Shapes: [n, 4 S] uint8 -> [n, S] int64"""
    return raw.contiguous().view(torch.int32).long() & 0xFFFFFFFF


def fields(raw: torch.Tensor, bits: int, run: int) -> torch.Tensor:
    """Return fields of this many bits: the lowest of `run` bytes come first, then the next.

    Shapes: [n, S] uint8 -> [n, S * 8 / bits] uint8
    """
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8).view(1, 1, -1, 1)
    parts = raw.reshape(len(raw), -1, 1, run) >> shifts
    return (parts & ((1 << bits) - 1)).view(len(raw), -1)
