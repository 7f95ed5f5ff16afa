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

from dovetail_kernels import bit_fields, k_scales
from dovetail_kernels.bit_fields.reference import Plane
from dovetail_plugins.gguf.blocks.fields import fields, stored_halves, words
from dovetail_plugins.gguf.blocks.types import BY_NAME
from dovetail_plugins.gguf.blocks.vectors import VECTORS, Vectors, vectors

Scales = Callable[[torch.Tensor], dict[str, torch.Tensor]]
"""Reads the steps and codes of blocks, by the names of `Integers`. Takes [n, block bytes] uint8."""
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
    layout = LAYOUTS[type_name]
    values = layout.numbers(layout.places(blocks))
    scales = layout.scales(blocks)
    steps = {name: t.float() for name, t in scales.items() if t.is_floating_point()}
    return Integers(group=layout.group, values=values, **scales | steps)


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


def _bytes(raw: torch.Tensor, start: int, stop: int) -> torch.Tensor:
    """Return some bytes of each block, of which torch copies columns on one thread. Shapes: [n,
    block bytes] -> [n, stop - start]"""
    run = bit_fields.OP.pick("cpu", torch.uint8)
    found: torch.Tensor = run(blocks=raw, planes=(Plane(start, stop, 8, stop - start),))
    return found


def _step(start: int) -> Scales:
    """Return a reader of one step of 16 bits."""
    return lambda raw: {"steps": stored_halves(raw, start)}


def _step_and_offset(raw: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"steps": stored_halves(raw, 0), "offset_steps": stored_halves(raw, 2)}


def _q2_k(raw: torch.Tensor) -> dict[str, torch.Tensor]:
    codes, steps = raw[:, :16], stored_halves(raw, 80, 2)
    return {
        "codes": (codes & 15).view(torch.int8),
        "steps": steps[:, :1],
        "offset_codes": (codes >> 4).view(torch.int8),
        "offset_steps": -steps[:, 1:],
    }


def _q3_k(raw: torch.Tensor) -> dict[str, torch.Tensor]:
    codes = fields(raw[:, 96:104], 4, 8) | fields(raw[:, 104:108], 2, 4) << 4
    return {"codes": codes.view(torch.int8) - 32, "steps": stored_halves(raw, 108)}


def _k_offset(raw: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the scales of a block that begins with two steps and codes in six bits."""
    codes, steps, offset_codes, offset_steps = k_scales.OP.pick("cpu", torch.uint8)(blocks=raw)
    return {
        "codes": codes,
        "steps": steps,
        "offset_codes": offset_codes,
        "offset_steps": offset_steps,
    }


def _q6_k(raw: torch.Tensor) -> dict[str, torch.Tensor]:
    codes = _bytes(raw, 192, 208).view(torch.int8)
    return {"codes": codes, "steps": stored_halves(raw, 208)}


def _iq4_xs(raw: torch.Tensor) -> dict[str, torch.Tensor]:
    high = words(raw[:, 2:4]) >> torch.arange(0, 16, 2) & 3
    codes = fields(raw[:, 4:8], 4, 1).view(torch.int8) | (high << 4).to(torch.int8)
    return {"codes": codes - 32, "steps": stored_halves(raw, 0)}


def _mxfp4(raw: torch.Tensor) -> dict[str, torch.Tensor]:
    # 2 ^ (exponent - 128): the values are doubled. The first two are below the normal floats.
    exponents = raw[:, :1].int()
    bits = torch.where(exponents < 2, 0x00200000 << exponents.clamp(max=1), (exponents - 1) << 23)
    return {"steps": bits.int().view(torch.float32)}


def _nvfp4(raw: torch.Tensor) -> dict[str, torch.Tensor]:
    exponents, rest = (raw[:, :4] >> 3 & 15).int(), (raw[:, :4] & 7).float()
    normal = (1 + rest / 8) * torch.pow(2.0, exponents - 7)
    steps = torch.where(exponents == 0, rest * 2**-9, normal) / 2
    return {"steps": steps.masked_fill(raw[:, :4] == 0x7F, 0.0)}


def _trits(raw: torch.Tensor, run: int, count: int = 5) -> torch.Tensor:
    """Return base-3 digits, highest first: byte / 256 is a base-3 fraction.

    Shapes: [n, S] uint8 -> [n, S * count] uint8 in 0 .. 2
    """
    powers = 3 ** torch.arange(count, dtype=torch.int32).view(1, 1, -1, 1)
    shifted = raw.reshape(len(raw), -1, 1, run).int() * powers & 255
    return (shifted * 3 >> 8).to(torch.uint8).view(len(raw), -1)


def _tq1_0(raw: torch.Tensor) -> torch.Tensor:
    return torch.cat([_trits(raw[:, :32], 32), _trits(raw[:, 32:48], 16),
                      _trits(raw[:, 48:52], 4, 4)], dim=1)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where a type's blocks hold what.

    `group`: values that share a scale; `planes`: the bits of a value, which is `center` more than
    the number that is meant, or its place in `levels`; `scales` reads all the rest of a block.
    """

    group: int
    scales: Scales
    planes: tuple[Plane, ...] = ()
    center: int = 0
    levels: tuple[int, ...] = ()

    @property
    def is_native(self) -> bool:
        """Return whether the native library unpacks the values, which takes no further memory."""
        return bool(self.planes) and bit_fields.OP.runs("native", "cpu", torch.uint8)

    def places(self, blocks: torch.Tensor) -> torch.Tensor:
        """Return the values as they are stored. Shapes: [n, block bytes] -> [n, B] uint8"""
        if not self.planes:
            return _tq1_0(blocks)
        run = bit_fields.OP.pick("cpu", torch.uint8)
        values: torch.Tensor = run(blocks=blocks, planes=self.planes)
        return values

    def numbers(self, places: torch.Tensor) -> torch.Tensor:
        """Return the numbers that stored values mean. Shapes: [n, B] uint8 -> [n, B] int8"""
        if self.levels:
            return torch.tensor(self.levels, dtype=torch.int8)[places.long()]
        return places.view(torch.int8) - self.center


def _nibbles(start: int, run: int, count: int = 32) -> Plane:
    """Return `count` fields of four bits."""
    return Plane(start, start + count // 2, 4, run)


LAYOUTS: dict[str, Layout] = {
    "Q4_0": Layout(group=32, scales=_step(0), planes=(_nibbles(2, 16),), center=8),
    "Q4_1": Layout(group=32, scales=_step_and_offset, planes=(_nibbles(4, 16),)),
    "Q5_0": Layout(
        group=32, scales=_step(0), planes=(_nibbles(6, 16), Plane(2, 6, 1, 1, 4)), center=16
    ),
    "Q5_1": Layout(
        group=32, scales=_step_and_offset, planes=(_nibbles(8, 16), Plane(4, 8, 1, 1, 4))
    ),
    "Q8_0": Layout(group=32, scales=_step(0), planes=(Plane(2, 34, 8, 32),)),
    "Q2_K": Layout(group=16, scales=_q2_k, planes=(Plane(16, 80, 2, 32),)),
    "Q3_K": Layout(
        group=16, scales=_q3_k, planes=(Plane(32, 96, 2, 32), Plane(0, 32, 1, 32, 2)), center=4
    ),
    "Q4_K": Layout(group=32, scales=_k_offset, planes=(_nibbles(16, 32, 256),)),
    "Q5_K": Layout(
        group=32, scales=_k_offset, planes=(_nibbles(48, 32, 256), Plane(16, 48, 1, 32, 4))
    ),
    "Q6_K": Layout(
        group=16, scales=_q6_k, planes=(_nibbles(0, 64, 256), Plane(128, 192, 2, 32, 4)), center=32
    ),
    "IQ4_NL": Layout(group=32, scales=_step(0), planes=(_nibbles(2, 16),), levels=LEVELS),
    "IQ4_XS": Layout(group=32, scales=_iq4_xs, planes=(_nibbles(8, 16, 256),), levels=LEVELS),
    "MXFP4": Layout(group=32, scales=_mxfp4, planes=(_nibbles(1, 16),), levels=E2M1),
    "NVFP4": Layout(group=16, scales=_nvfp4, planes=(_nibbles(4, 8, 64),), levels=E2M1),
    "TQ1_0": Layout(group=256, scales=_step(52), center=1),
    "TQ2_0": Layout(group=256, scales=_step(64), planes=(Plane(0, 64, 2, 32),), center=1),
}
"""Types of integers -> their blocks."""
