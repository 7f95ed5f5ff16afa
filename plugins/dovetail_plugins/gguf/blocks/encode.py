"""Levels, codes and steps as the bytes of GGUF's blocks: the inverse of `integers.py`.

Source: the block structs of https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h.
Shape letters: B blocks, S groups of a block.
"""

from __future__ import annotations

import torch


def halves(steps: torch.Tensor) -> torch.Tensor:
    """Return steps as float16. Shapes: [B] -> [B, 2] uint8"""
    return steps.half().unsqueeze(1).contiguous().view(torch.uint8)


def packed(values: torch.Tensor, bits: int, run: int) -> torch.Tensor:
    """Return fields of this many bits: `run` values fill the lowest bits of as many bytes, the next
    `run` the next bits. Shapes: [B, n] uint8 -> [B, n * bits / 8] uint8"""
    count = 8 // bits
    parts = values.reshape(len(values), -1, count, run)
    out = parts[:, :, 0].clone()
    for number in range(1, count):
        out |= parts[:, :, number] << (bits * number)
    return out.flatten(1)


def q4(levels: torch.Tensor, run: int = 16) -> torch.Tensor:
    """Return nibbles. Shapes: [B, n] uint8 -> [B, n / 2]"""
    return packed(levels, 4, run)


def q5(levels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the fifth bits and the nibbles of blocks of 32. Shapes: [B, 32] -> [B, 4], [B, 16]"""
    return packed(levels >> 4, 1, 1), packed(levels & 15, 4, 16)


def six_bits(codes: torch.Tensor, offset_codes: torch.Tensor) -> torch.Tensor:
    """Return the twelve bytes of the codes of Q4_K and Q5_K. Shapes: 2 x [B, 8] uint8 -> [B, 12]"""
    low, high = codes.chunk(2, dim=1)
    offset_low, offset_high = offset_codes.chunk(2, dim=1)
    return torch.cat(
        (
            low | (high >> 4) << 6,
            offset_low | (offset_high >> 4) << 6,
            (high & 15) | (offset_high & 15) << 4,
        ),
        dim=1,
    )


def q3_codes(codes: torch.Tensor) -> torch.Tensor:
    """Return the twelve bytes of Q3_K's codes. Shapes: [B, 16] uint8, 0 to 63 -> [B, 12]"""
    return torch.cat((packed(codes & 15, 4, 8), packed(codes >> 4, 2, 4)), dim=1)


def iq4_codes(codes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the high and the low bits of IQ4_XS's codes. Shapes: [B, 8] uint8, 0 to 63 -> [B, 2],
    [B, 4]"""
    return packed(codes >> 4, 2, 1), packed(codes & 15, 4, 1)
