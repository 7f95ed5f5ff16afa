"""Blocks of GGUF's types as integers: the contents of each type, in groups that share a scale.

A weight is value * code * step + offset_code * offset_step, all products but the first and the last
exact in float32. Source: the block structs and dequantize_row functions of
https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h and ggml-quants.c; the microscaling
types after the OCP specification. Shape letters: n blocks, B values a block.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from dovetail_plugins.gguf.blocks.fields import fields, halves, words
from dovetail_plugins.gguf.blocks.types import BY_NAME
from dovetail_plugins.gguf.blocks.vectors import VECTORS, Vectors, vectors

LEVELS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""The values of the IQ4 types' nibbles."""
E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""The values of MXFP4's and NVFP4's nibbles, doubled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Integers:
    """n blocks.

    Shapes: values [n, B] int8; codes, offset_codes [n, B / group] int8 or None for ones; steps,
    offset_steps [n, S] float32, each for B / S values in turn; offset_steps None: no offset.
    """

    group: int
    values: torch.Tensor
    steps: torch.Tensor
    codes: torch.Tensor | None = None
    offset_steps: torch.Tensor | None = None
    offset_codes: torch.Tensor | None = None

    def floats(self) -> torch.Tensor:
        """Return the dequantized weights. Shapes: [n, B] float32"""
        grouped = self.values.float().view(len(self.values), -1, self.group)
        grouped = grouped * _scales(self.steps, self.codes, grouped.shape[1])
        if self.offset_steps is not None:
            grouped = grouped + _scales(self.offset_steps, self.offset_codes, grouped.shape[1])
        return grouped.view(self.values.shape)


def integers(type_name: str, blocks: torch.Tensor) -> Integers:
    """Return blocks of a type as integers. Shapes: blocks [n, block bytes] uint8"""
    assert blocks.shape[1] == BY_NAME[type_name].block_bytes
    if type_name in VECTORS:
        return _spelled(vectors(type_name, blocks))
    return _READERS[type_name](blocks)


def dequantize(type_name: str, rows: torch.Tensor) -> torch.Tensor:
    """Return rows of a quantized matrix as floats. Shapes: rows [..., bytes] uint8 -> [..., K]"""
    block_bytes = BY_NAME[type_name].block_bytes
    blocks = rows.reshape(-1, block_bytes)
    return integers(type_name, blocks).floats().view(*rows.shape[:-1], -1)


def _spelled(vectors: Vectors) -> Integers:
    """Return vectors value by value."""
    return Integers(
        group=vectors.group, values=vectors.values(), codes=vectors.codes, steps=vectors.steps
    )


def _scales(steps: torch.Tensor, codes: torch.Tensor | None, groups: int) -> torch.Tensor:
    """Return a scale for every group. Shapes: [n, groups, 1]"""
    wide = steps.repeat_interleave(groups // steps.shape[1], dim=1)
    return (wide if codes is None else wide * codes.float()).unsqueeze(2)


def _looked_up(table: tuple[int, ...], nibbles: torch.Tensor) -> torch.Tensor:
    return torch.tensor(table, dtype=torch.int8)[nibbles.long()]


def _q4_0(raw: torch.Tensor) -> Integers:
    values = fields(raw[:, 2:], 4, 16).view(torch.int8) - 8
    return Integers(group=32, values=values, steps=halves(raw[:, :2]))


def _q4_1(raw: torch.Tensor) -> Integers:
    values = fields(raw[:, 4:], 4, 16).view(torch.int8)
    return _with_offset(32, values, raw)


def _with_offset(group: int, values: torch.Tensor, raw: torch.Tensor) -> Integers:
    """Return values whose block begins with a step and an offset."""
    steps, offsets = halves(raw[:, :2]), halves(raw[:, 2:4])
    return Integers(group=group, values=values, steps=steps, offset_steps=offsets)


def _fifth_bits(raw: torch.Tensor) -> torch.Tensor:
    """Return bit i of a 32-bit number as 16 for value i. Shapes: [n, 4] uint8 -> [n, 32] uint8"""
    return fields(raw, 1, 1) << 4


def _q5_0(raw: torch.Tensor) -> Integers:
    values = fields(raw[:, 6:], 4, 16) | _fifth_bits(raw[:, 2:6])
    return Integers(group=32, values=values.view(torch.int8) - 16, steps=halves(raw[:, :2]))


def _q5_1(raw: torch.Tensor) -> Integers:
    values = fields(raw[:, 8:], 4, 16) | _fifth_bits(raw[:, 4:8])
    return _with_offset(32, values.view(torch.int8), raw)


def _q8_0(raw: torch.Tensor) -> Integers:
    values = raw[:, 2:].contiguous().view(torch.int8)
    return Integers(group=32, values=values, steps=halves(raw[:, :2]))


def _q2_k(raw: torch.Tensor) -> Integers:
    codes, steps = raw[:, :16], halves(raw[:, 80:])
    return Integers(
        group=16,
        values=fields(raw[:, 16:80], 2, 32).view(torch.int8),
        codes=(codes & 15).view(torch.int8),
        steps=steps[:, :1],
        offset_codes=(codes >> 4).view(torch.int8),
        offset_steps=-steps[:, 1:],
    )


def _q3_k(raw: torch.Tensor) -> Integers:
    low = fields(raw[:, 32:96], 2, 32).view(torch.int8)
    high = fields(raw[:, :32], 1, 32).view(torch.int8)
    codes = fields(raw[:, 96:104], 4, 8) | fields(raw[:, 104:108], 2, 4) << 4
    return Integers(
        group=16,
        values=low + high * 4 - 4,
        codes=codes.view(torch.int8) - 32,
        steps=halves(raw[:, 108:]),
    )


def _six_bits(raw: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the codes of scales and of offsets of the K types. Shapes: [n, 12] -> 2 x [n, 8]"""
    scales, offsets, rest = raw[:, :4], raw[:, 4:8], raw[:, 8:]
    codes = torch.cat([scales & 63, rest & 15 | scales >> 2 & 48], dim=1)
    offset_codes = torch.cat([offsets & 63, rest >> 4 | offsets >> 2 & 48], dim=1)
    return codes.view(torch.int8), offset_codes.view(torch.int8)


def _k_offset(raw: torch.Tensor, values: torch.Tensor) -> Integers:
    """Return values whose block begins with two steps and twelve bytes of codes."""
    codes, offset_codes = _six_bits(raw[:, 4:16])
    return Integers(
        group=32,
        values=values,
        codes=codes,
        steps=halves(raw[:, :2]),
        offset_codes=offset_codes,
        offset_steps=-halves(raw[:, 2:4]),
    )


def _q4_k(raw: torch.Tensor) -> Integers:
    return _k_offset(raw, fields(raw[:, 16:], 4, 32).view(torch.int8))


def _q5_k(raw: torch.Tensor) -> Integers:
    high = fields(raw[:, 16:48], 1, 32) << 4
    return _k_offset(raw, (fields(raw[:, 48:], 4, 32) | high).view(torch.int8))


def _q6_k(raw: torch.Tensor) -> Integers:
    values = fields(raw[:, :128], 4, 64) | fields(raw[:, 128:192], 2, 32) << 4
    return Integers(
        group=16,
        values=values.view(torch.int8) - 32,
        codes=raw[:, 192:208].contiguous().view(torch.int8),
        steps=halves(raw[:, 208:]),
    )


def _iq4_nl(raw: torch.Tensor) -> Integers:
    values = _looked_up(LEVELS, fields(raw[:, 2:], 4, 16))
    return Integers(group=32, values=values, steps=halves(raw[:, :2]))


def _iq4_xs(raw: torch.Tensor) -> Integers:
    high = words(raw[:, 2:4]) >> torch.arange(0, 16, 2) & 3
    codes = fields(raw[:, 4:8], 4, 1).view(torch.int8) | (high << 4).to(torch.int8)
    return Integers(
        group=32,
        values=_looked_up(LEVELS, fields(raw[:, 8:], 4, 16)),
        codes=codes - 32,
        steps=halves(raw[:, :2]),
    )


def _mxfp4(raw: torch.Tensor) -> Integers:
    # 2 ^ (exponent - 128): the values are doubled. The first two are below the normal floats.
    exponents = raw[:, :1].int()
    bits = torch.where(exponents < 2, 0x00200000 << exponents.clamp(max=1), (exponents - 1) << 23)
    values = _looked_up(E2M1, fields(raw[:, 1:], 4, 16))
    return Integers(group=32, values=values, steps=bits.int().view(torch.float32))


def _nvfp4(raw: torch.Tensor) -> Integers:
    exponents, rest = (raw[:, :4] >> 3 & 15).int(), (raw[:, :4] & 7).float()
    normal = (1 + rest / 8) * torch.pow(2.0, exponents - 7)
    steps = torch.where(exponents == 0, rest * 2**-9, normal) / 2
    steps = steps.masked_fill(raw[:, :4] == 0x7F, 0.0)
    values = _looked_up(E2M1, fields(raw[:, 4:], 4, 8))
    return Integers(group=16, values=values, steps=steps)


def _trits(raw: torch.Tensor, run: int, count: int = 5) -> torch.Tensor:
    """Return base-3 digits, highest first: byte / 256 is a base-3 fraction.

    Shapes: [n, S] uint8 -> [n, S * count] int8 in -1 .. 1
    """
    powers = 3 ** torch.arange(count, dtype=torch.int32).view(1, 1, -1, 1)
    shifted = raw.reshape(len(raw), -1, 1, run).int() * powers & 255
    return ((shifted * 3 >> 8) - 1).to(torch.int8).view(len(raw), -1)


def _tq1_0(raw: torch.Tensor) -> Integers:
    parts = (_trits(raw[:, :32], 32), _trits(raw[:, 32:48], 16), _trits(raw[:, 48:52], 4, 4))
    return Integers(group=256, values=torch.cat(parts, dim=1), steps=halves(raw[:, 52:]))


def _tq2_0(raw: torch.Tensor) -> Integers:
    values = fields(raw[:, :64], 2, 32).view(torch.int8) - 1
    return Integers(group=256, values=values, steps=halves(raw[:, 64:]))


_READERS: dict[str, Callable[[torch.Tensor], Integers]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
    "MXFP4": _mxfp4,
    "NVFP4": _nvfp4,
    "TQ1_0": _tq1_0,
    "TQ2_0": _tq2_0,
}
