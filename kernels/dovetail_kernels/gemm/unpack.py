"""Decodes weights in a Triton kernel: any kind by arithmetic, 2 to 6 bits by the device's own
instructions (`instructions`).
"""

from __future__ import annotations

import triton
import triton.language as tl

E2M1_FACTOR = tl.constexpr(2.0**126)
"""e2m1 bits placed at the positions of float32 or bfloat16 are too small by this factor."""


@triton.jit
def decode(codes, table, KIND: tl.constexpr, CENTER: tl.constexpr, dot_type: tl.constexpr):
    """Return the values of codes: integers as int8, others as float32. Shapes: as given"""
    if KIND == "e2m1":  # sign, exponent and one bit are moved to float32's positions
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
    """Return one code of each word. `shift`: this panel's bits in a byte of two panels."""
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
        numbers = tl.inline_asm_elementwise(
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
        numbers = tl.inline_asm_elementwise(
            TEXT, PLACES, given + less,
            (dot_type.value, dot_type.value, dot_type.value, dot_type.value), True, 4,
        )  # fmt: skip
    return numbers


@triton.jit
def _wide(v, NIBBLE: tl.constexpr):
    """Return loaded factors as float32; bytes are e4m3, or two factors (NIBBLE: which, else -1)."""
    if NIBBLE >= 0:
        v = v.to(tl.int32) >> (4 * NIBBLE) & 15
    elif v.dtype == tl.uint8:
        v = v.to(tl.float8e4nv, bitcast=True)
    return v.to(tl.float32)


@triton.jit
def factor(base, steps, stored, inside, group, count, STORED, RUN: tl.constexpr,
            NIBBLE: tl.constexpr = -1):  # fmt: skip
    """Return the factor of a group's inputs. Shapes: stored [BN] -> [BN] float32"""
    there = inside & (group < count)
    found = _wide(tl.load(base + group * STORED + stored, mask=there, other=0), NIBBLE)
    if steps is not None:
        step = tl.load(steps + (group // RUN) * STORED + stored, mask=there, other=0.0)
        found = found * step.to(tl.float32)
    return found


@triton.jit
def _factors(base, steps, stored, inside, k, count, STORED, RUN: tl.constexpr, GROUP: tl.constexpr,
             H: tl.constexpr, BN: tl.constexpr, NIBBLE: tl.constexpr = -1):  # fmt: skip
    """Return each input's own factor, for groups that end inside a tile. Shapes: [BN, H]"""
    if H % GROUP == 0:
        group = k // GROUP + tl.arange(0, H // GROUP)
    else:
        group = (k + tl.arange(0, H)) // GROUP
    there = inside[:, None] & (group < count)[None, :]
    at = group[None, :] * STORED + stored[:, None]
    found = _wide(tl.load(base + at, mask=there, other=0), NIBBLE)
    if steps is not None:
        at = (group // RUN)[None, :] * STORED + stored[:, None]
        found = found * tl.load(steps + at, mask=there, other=0.0).to(tl.float32)
    if H % GROUP == 0:
        wide = tl.broadcast_to(found[:, :, None], (BN, H // GROUP, GROUP))
        found = tl.reshape(wide, (BN, H))
    return found


@triton.jit
def _center(zeros, stored, inside, group, count, STORED, RUN: tl.constexpr, CENTER: tl.constexpr,
            IS_CENTERED: tl.constexpr, BN: tl.constexpr):  # fmt: skip
    """Return the value that unpacking subtracts. Shapes: -> [BN, 1] float32"""
    if zeros is not None and IS_CENTERED:
        found = factor(zeros, None, stored, inside, group, count, STORED, RUN)
    else:
        found = tl.full((BN,), CENTER, dtype=tl.float32)
    return found[:, None]


@triton.jit
def scaled(left, k, stored, inside, scales, zeros, offsets, steps, offset_steps, count, STORED,
            SCALING: tl.constexpr, PAIRED: tl.constexpr, dot_type: tl.constexpr,
            IS_CENTERED: tl.constexpr, GROUP: tl.constexpr, RUN: tl.constexpr, H: tl.constexpr,
            BN: tl.constexpr):  # fmt: skip
    """Return weights in the form for multiplication. PAIRED: scales have the offsets above their
    four bits. Shapes: left [BN, H]

    SCALING: "none" (one scale an output, at the end), "after" the dot product, "inside" the
    weights, or for "each" input. IS_CENTERED: zero points are subtracted already.
    """
    if SCALING == "each":
        left = left.to(tl.float32)
        if zeros is not None:
            left -= _factors(zeros, None, stored, inside, k, count, STORED, RUN, GROUP, H, BN)
        left *= _factors(scales, steps, stored, inside, k, count, STORED, RUN, GROUP, H, BN,
                         0 if PAIRED else -1)  # fmt: skip
        if offsets is not None:
            left += _factors(
                offsets, offset_steps, stored, inside, k, count, STORED, RUN, GROUP, H, BN,
                1 if PAIRED else -1,
            )  # fmt: skip
    elif SCALING != "none":
        group = k // GROUP
        if zeros is not None and not IS_CENTERED:
            zero = factor(zeros, None, stored, inside, group, count, STORED, RUN)
            if dot_type == tl.int8:
                left = left - zero.to(tl.int8)[:, None]
            else:
                left = left.to(tl.float32) - zero[:, None]
        if SCALING == "inside":
            scale = factor(scales, steps, stored, inside, group, count, STORED, RUN,
                            0 if PAIRED else -1)  # fmt: skip
            left = left.to(tl.float32) * scale[:, None]
            if offsets is not None:
                offset = factor(
                    offsets, offset_steps, stored, inside, group, count, STORED, RUN,
                    1 if PAIRED else -1,
                )  # fmt: skip
                left += offset[:, None]
    return left.to(dot_type)


@triton.jit
def quarters_of(codes, highs, shift, k, stored, inside, zeros, table, count, STORED,
              KIND: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr, CENTER: tl.constexpr,
              dot_type: tl.constexpr, TEXT: tl.constexpr, PLACES: tl.constexpr,
              IS_CENTERED: tl.constexpr, CODES: tl.constexpr, GROUP: tl.constexpr,
              RUN: tl.constexpr, H: tl.constexpr, BN: tl.constexpr):  # fmt: skip
    """Return the numbers of a word's codes (four times the same if a word is one code).

    Shapes: codes and highs [BN, H] -> [BN, H] four times
    """
    if CODES == 1:
        only = decode(codes, table, KIND, CENTER, dot_type)
        quarters = (only, only, only, only)
    elif TEXT != "":
        first = _center(zeros, stored, inside, k // GROUP, count, STORED, RUN, CENTER,
                        IS_CENTERED, BN)  # fmt: skip
        if GROUP % (4 * H) == 0:
            centers = (first, first, first, first)
        else:
            centers = (
                first,
                _center(zeros, stored, inside, (k + H) // GROUP, count, STORED, RUN, CENTER,
                        IS_CENTERED, BN),
                _center(zeros, stored, inside, (k + 2 * H) // GROUP, count, STORED, RUN,
                        CENTER, IS_CENTERED, BN),
                _center(zeros, stored, inside, (k + 3 * H) // GROUP, count, STORED, RUN,
                        CENTER, IS_CENTERED, BN),
            )  # fmt: skip
        quarters = unpack(codes, highs, shift, centers, KIND, HIGH, dot_type, TEXT, PLACES)
    else:
        quarters = (
            decode(code_of(codes, highs, shift, 0, LOW, HIGH), table, KIND, CENTER, dot_type),
            decode(code_of(codes, highs, shift, 1, LOW, HIGH), table, KIND, CENTER, dot_type),
            decode(code_of(codes, highs, shift, 2, LOW, HIGH), table, KIND, CENTER, dot_type),
            decode(code_of(codes, highs, shift, 3, LOW, HIGH), table, KIND, CENTER, dot_type),
        )
    return quarters
