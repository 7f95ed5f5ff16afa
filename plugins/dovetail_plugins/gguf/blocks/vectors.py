"""Blocks of the IQ types whose codes choose among points: the contents of each type.

A code is the number of a point of 4 or 8 consecutive values, with one sign bit per value. A weight
is value * code of its scale * step. The IQ1 types shift their points by an eighth, up or down: here
these are twice as many points, all of them times eight.
Source: the block structs and dequantize_row functions of
https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h and ggml-quants.c.
Shape letters: n blocks, B values a block.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch

from dovetail_plugins.gguf.blocks.fields import fields, halves, longs, words
from dovetail_plugins.gguf.blocks.grids import grid, sign_bytes

BELOW = 1 << 11
"""The bit of an IQ1 code whose point is moved down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vectors:
    """n blocks.

    Shapes: points [count, size] int8; index [n, B / size] int16; signs [n, B / 8] uint8, the lowest
    bit first, or None; codes of scales [n, B / group] int8, odd; steps [n, 1] float32
    """

    group: int
    points: torch.Tensor
    index: torch.Tensor
    codes: torch.Tensor
    steps: torch.Tensor
    signs: torch.Tensor | None = None

    def values(self) -> torch.Tensor:
        """Return the values of codes and signs. Shapes: [n, B] int8"""
        found = self.points[self.index.int()].view(len(self.index), -1)
        if self.signs is None:
            return found
        return found * (1 - 2 * fields(self.signs, 1, 1).view(torch.int8))


def vectors(type_name: str, blocks: torch.Tensor) -> Vectors:
    """Return blocks of a type as vectors. Shapes: blocks [n, block bytes] uint8"""
    return VECTORS[type_name](blocks)


@cache
def points(type_name: str) -> torch.Tensor:
    """Return the points of a type's codes. Shapes: [count, 8 or 4] int8"""
    if type_name.startswith("IQ1"):
        wide = grid("IQ1_S") * 8
        return torch.cat([wide + 1, wide - 1])
    return grid(type_name)


def _vectors_of(
    type_name: str,
    group: int,
    index: torch.Tensor,
    codes: torch.Tensor,
    steps: torch.Tensor,
    signs: torch.Tensor | None = None,
) -> Vectors:
    return Vectors(
        group=group,
        points=points(type_name),
        index=index.to(torch.int16),
        codes=(codes * 2 + 1).to(torch.int8),
        steps=steps,
        signs=signs,
    )


def _seven_bits(raw: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the contents of 32-bit numbers: four times eight signs, and a scale in the topmost
    bits.

    Shapes: [n, 4 S] uint8 -> [n, 4 S] uint8, [n, S] int8
    """
    numbers = longs(raw)
    index = numbers.unsqueeze(2) >> torch.tensor([0, 7, 14, 21]) & 127
    return sign_bytes()[index].view(len(raw), -1), (numbers >> 28).to(torch.int8)


def _iq2_xxs(raw: torch.Tensor) -> Vectors:
    pairs = raw[:, 2:].reshape(len(raw), -1, 8)
    signs, codes = _seven_bits(pairs[..., 4:].reshape(len(raw), -1))
    index = pairs[..., :4].reshape(len(raw), -1)
    return _vectors_of("IQ2_XXS", 32, index, codes, halves(raw[:, :2]) / 8, signs)


def _iq2_xs(raw: torch.Tensor) -> Vectors:
    both = words(raw[:, 2:66])
    signs, codes = sign_bytes()[(both >> 9).long()], fields(raw[:, 66:], 4, 1)
    return _vectors_of("IQ2_XS", 16, both & 511, codes, halves(raw[:, :2]) / 8, signs)


def _iq2_s(raw: torch.Tensor) -> Vectors:
    index = raw[:, 2:34].int() | fields(raw[:, 66:74], 2, 1).int() << 8
    codes = fields(raw[:, 74:], 4, 1)
    return _vectors_of("IQ2_S", 16, index, codes, halves(raw[:, :2]) / 8, raw[:, 34:66])


def _iq3_xxs(raw: torch.Tensor) -> Vectors:
    signs, codes = _seven_bits(raw[:, 66:])
    return _vectors_of("IQ3_XXS", 32, raw[:, 2:66], codes, halves(raw[:, :2]) / 4, signs)


def _iq3_s(raw: torch.Tensor) -> Vectors:
    index = raw[:, 2:66].int() | fields(raw[:, 66:74], 1, 1).int() << 8
    codes = fields(raw[:, 106:], 4, 1)
    return _vectors_of("IQ3_S", 32, index, codes, halves(raw[:, :2]), raw[:, 74:106])


def _iq1_s(raw: torch.Tensor) -> Vectors:
    both = words(raw[:, 34:])
    high = (both.unsqueeze(2) >> torch.tensor([0, 3, 6, 9]) & 7).view(len(raw), -1)
    below = (both >> 15).repeat_interleave(4, dim=1) * BELOW
    index = raw[:, 2:34].int() | high << 8 | below
    return _vectors_of("IQ1_S", 32, index, both >> 12 & 7, halves(raw[:, :2]) / 8)


def _iq1_m(raw: torch.Tensor) -> Vectors:
    both = words(raw[:, 48:])
    step = (both & 0xF000) >> torch.tensor([12, 8, 4, 0])
    steps = step.sum(dim=1, keepdim=True).to(torch.int16).view(torch.float16).float()
    codes = (both.unsqueeze(2) >> torch.tensor([0, 3, 6, 9]) & 7).view(len(raw), -1)
    high = fields(raw[:, 32:48], 4, 1).int()  # the fourth bit is the one of the codes below
    return _vectors_of("IQ1_M", 16, raw[:, :32].int() | high << 8, codes, steps / 8)


VECTORS: dict[str, Callable[[torch.Tensor], Vectors]] = {
    "IQ1_M": _iq1_m,
    "IQ1_S": _iq1_s,
    "IQ2_S": _iq2_s,
    "IQ2_XS": _iq2_xs,
    "IQ2_XXS": _iq2_xxs,
    "IQ3_S": _iq3_s,
    "IQ3_XXS": _iq3_xxs,
}
"""The types that are read here."""
