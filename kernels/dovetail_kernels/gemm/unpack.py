"""What codes of weights mean, in a Triton kernel: any kind by arithmetic, those of 2 to 6 bits by
instructions of the device's own (`instructions`).
"""

from __future__ import annotations

import triton
import triton.language as tl

E2M1_FACTOR = tl.constexpr(2.0**126)
"""The bits of e2m1, put where float32 and bfloat16 have them, are worth this much less."""


@triton.jit
def decode(codes, table, KIND: tl.constexpr, CENTER: tl.constexpr, dot_type: tl.constexpr):
    """Return the values of codes: integers as int8, others as float32. Shapes: as given"""
    if KIND == "e2m1":  # sign, exponent and one bit lie where float32 has them
        bits = codes.to(tl.int32)
        bits = ((bits & 7) << 22) | ((bits & 8) << 28)
        found = bits.to(tl.float32, bitcast=True) * E2M1_FACTOR
    elif KIND == "table4":
        found = tl.load(table + codes.to(tl.int32))
    elif KIND == "float":
        found = codes.to(tl.float32)
    elif KIND == "float8":
        found = codes.to(tl.float8e4nv, bitcast=True)
        if dot_type != tl.float8e4nv:
            found = found.to(tl.float32)
    elif KIND == "int8":
        found = codes
    else:
        found = (codes - CENTER).to(tl.int8)
    return found


@triton.jit
def code_of(words, highs, shift, NUMBER: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr):
    """Return one code of each word. `shift`: where a byte of two panels has this one's bits."""
    code = words.to(tl.int32) >> (LOW * NUMBER) & ((1 << LOW) - 1)
    if HIGH:
        more = highs.to(tl.int32) >> (HIGH * NUMBER + shift) & ((1 << HIGH) - 1)
        code |= more << LOW
    return code


@triton.jit
def unpack(words, highs, shift, zeros, KIND: tl.constexpr, HIGH: tl.constexpr,
           dot_type: tl.constexpr, TEXT: tl.constexpr, PLACES: tl.constexpr):  # fmt: skip
    """Return the numbers of the four codes of each word, less four zero points.

    Shapes: words and highs [BN, H], each of zeros [BN, 1] float32 -> [BN, H] four times
    """
    if KIND == "e2m1":
        made = tl.inline_asm_elementwise(
            TEXT, PLACES, [words],
            (dot_type.value, dot_type.value, dot_type.value, dot_type.value), True, 2,
        )  # fmt: skip
    else:
        if dot_type == tl.int8:
            less = (zeros[0].to(dot_type), zeros[1].to(dot_type), zeros[2].to(dot_type),
                    zeros[3].to(dot_type))  # fmt: skip
        else:
            own: tl.constexpr = -128.0 if dot_type == tl.bfloat16 else -1024.0
            less = ((own - zeros[0]).to(dot_type), (own - zeros[1]).to(dot_type),
                    (own - zeros[2]).to(dot_type), (own - zeros[3]).to(dot_type))  # fmt: skip
        given = (words,)
        if HIGH == 1:
            given = given + (highs, shift)  # type: ignore[assignment] # noqa: RUF005
        elif HIGH == 2:
            given = given + (highs,)  # type: ignore[assignment] # noqa: RUF005
        made = tl.inline_asm_elementwise(
            TEXT, PLACES, given + less,
            (dot_type.value, dot_type.value, dot_type.value, dot_type.value), True, 4,
        )  # fmt: skip
    return made
