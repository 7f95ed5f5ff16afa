"""Rows of floats as GGUF blocks, to nearest, exactly as ggml rounds them.

Source: quantize_row_q8_0_ref and quantize_row_q4_0_ref in
https://github.com/ggml-org/ggml/blob/master/src/ggml-quants.c
"""

from __future__ import annotations

from collections.abc import Callable

import torch

BLOCK = 32


def to_q8_0(weight: torch.Tensor) -> torch.Tensor:
    """Return blocks of a float16 step and 32 int8. Shapes: [O, I] -> [O, I / 32 * 34] uint8"""
    parts = weight.float().unflatten(1, (-1, BLOCK))
    steps = parts.abs().amax(-1, keepdim=True) / 127
    scaled = parts * torch.where(steps == 0, 0, 1 / steps)
    values = scaled.sign() * (scaled.abs() + 0.5).floor()  # halves go away from 0
    return _blocks(steps, values.to(torch.int8).view(torch.uint8))


def to_q4_0(weight: torch.Tensor) -> torch.Tensor:
    """Return blocks of a float16 step and 32 values in 16 bytes, value i sharing a byte with value
    i + 16. Shapes: [O, I] -> [O, I / 32 * 18] uint8"""
    parts = weight.float().unflatten(1, (-1, BLOCK))
    place = parts.abs().argmax(-1, keepdim=True)
    steps = parts.gather(-1, place) / -8  # the largest magnitude is met exactly, by the level -8
    turned = torch.where(steps == 0, 0, 1 / steps)
    levels = (parts * turned + 8.5).trunc().clamp(0, 15).to(torch.uint8)
    low, high = levels.chunk(2, dim=-1)
    return _blocks(steps, low | (high << 4))


def _blocks(steps: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return steps and values side by side. Shapes: [O, N, 1], [O, N, n] -> [O, N * (2 + n)]"""
    heads = steps.to(torch.float16).contiguous().view(torch.uint8)
    return torch.cat((heads, values), dim=-1).flatten(1)


QUANTIZERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"Q8_0": to_q8_0, "Q4_0": to_q4_0}
