"""What codes of weights mean, in a Triton kernel: any kind by arithmetic, 4 bits by instructions.

Knows no scales and no product.
"""

from __future__ import annotations

import triton
import triton.language as tl

E2M1_FACTOR = tl.constexpr(2.0**126)
"""The bits of e2m1, put where float32 and bfloat16 have them, are worth this much less."""

# Two words of four codes become four pairs of 16-bit numbers in eleven instructions. Four bits in
# a half of 0x4300 are 128 and themselves in bfloat16, in one of 0x6400 1024 and themselves in
# float16: what is too much is added, negative, as the arguments behind the words.
_UNPACK = """{{
    .reg .b32 p, o;
    mov.b32 o, {one};
    lop3.b32 p, $4, 0x000F000F, {magic}, 0xEA; fma.rn.{kind} $0, p, o, $5;
    shr.u32 p, $4, 4; lop3.b32 p, p, 0x000F000F, {magic}, 0xEA; fma.rn.{kind} $1, p, o, $6;
    shr.u32 p, $4, 8; lop3.b32 p, p, 0x000F000F, {magic}, 0xEA; fma.rn.{kind} $2, p, o, $7;
    shr.u32 p, $4, 12; lop3.b32 p, p, 0x000F000F, {magic}, 0xEA; fma.rn.{kind} $3, p, o, $8;
}}"""
UNPACK_BFLOAT16 = tl.constexpr(_UNPACK.format(magic="0x43004300", one="0x3F803F80", kind="bf16x2"))
UNPACK_FLOAT16 = tl.constexpr(_UNPACK.format(magic="0x64006400", one="0x3C003C00", kind="f16x2"))

# Four words become four times four int8: the low bytes of all and the high ones, then the halves of
# each byte, less the zero point's bytes (with the sign's bit set meanwhile, nothing is borrowed).
UNPACK_INT8 = tl.constexpr("""{
    .reg .b32 l, h, p;
    prmt.b32 l, $4, $5, 0x6420;
    prmt.b32 h, $4, $5, 0x7531;
    lop3.b32 p, l, 0x0F0F0F0F, 0x80808080, 0xEA; sub.u32 p, p, $6; xor.b32 $0, p, 0x80808080;
    shr.u32 p, l, 4;
    lop3.b32 p, p, 0x0F0F0F0F, 0x80808080, 0xEA; sub.u32 p, p, $7; xor.b32 $1, p, 0x80808080;
    lop3.b32 p, h, 0x0F0F0F0F, 0x80808080, 0xEA; sub.u32 p, p, $8; xor.b32 $2, p, 0x80808080;
    shr.u32 p, h, 4;
    lop3.b32 p, p, 0x0F0F0F0F, 0x80808080, 0xEA; sub.u32 p, p, $9; xor.b32 $3, p, 0x80808080;
}""")


def _e2m1(kind: str, factor: str, at: int, bits: str) -> str:
    """Return the instructions that unpack two words of e2m1 as four pairs of a 16-bit type: sign,
    exponent and one bit go where the type has them (`at` is the lowest), and a power of two makes
    up for its larger bias, numbers below the normal ones included."""
    lines = [".reg .b32 p, q, o;", f"mov.b32 o, {factor};"]
    for number in range(4):
        up, sign = at - 4 * number, 12 - 4 * number
        lines.append(f"sh{'l' if up >= 0 else 'r'}.b32 p, $4, {abs(up)}; shl.b32 q, $4, {sign};")
        lines.append(f"and.b32 p, p, {bits}; lop3.b32 p, q, 0x80008000, p, 0xEA;")
        lines.append(f"mul.rn.{kind} ${number}, p, o;")
    return "{" + " ".join(lines) + "}"


E2M1_BFLOAT16 = tl.constexpr(_e2m1("bf16x2", "0x7E807E80", 6, "0x01C001C0"))
E2M1_FLOAT16 = tl.constexpr(_e2m1("f16x2", "0x74007400", 9, "0x0E000E00"))


@triton.jit
def decode(codes, table, KIND: tl.constexpr, CENTER: tl.constexpr, dot_type: tl.constexpr):
    """Return what codes mean: integers as int8, others as float32. Shapes: as given"""
    if KIND == "int4":
        found = (codes - CENTER).to(tl.int8)
    elif KIND == "e2m1":  # sign, exponent and one bit lie where float32 has them
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
    else:
        found = codes
    return found


@triton.jit
def unpack(words, zeros, KIND: tl.constexpr, dot_type: tl.constexpr):
    """Return the numbers of the four codes of each word, less four zero points.

    Shapes: words [BN, H], each of zeros [BN, 1] float32 -> [BN, H] four times
    """
    if KIND == "e2m1":
        if dot_type == tl.bfloat16:
            made = tl.inline_asm_elementwise(
                E2M1_BFLOAT16, "=&r,=&r,=&r,=&r,r", [words],
                (tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16), True, 2,
            )  # fmt: skip
        else:
            made = tl.inline_asm_elementwise(
                E2M1_FLOAT16, "=&r,=&r,=&r,=&r,r", [words],
                (tl.float16, tl.float16, tl.float16, tl.float16), True, 2,
            )  # fmt: skip
    elif dot_type == tl.bfloat16:
        made = tl.inline_asm_elementwise(
            UNPACK_BFLOAT16, "=&r,=&r,=&r,=&r,r,r,r,r,r",
            [words, (-128.0 - zeros[0]).to(tl.bfloat16), (-128.0 - zeros[1]).to(tl.bfloat16),
             (-128.0 - zeros[2]).to(tl.bfloat16), (-128.0 - zeros[3]).to(tl.bfloat16)],
            (tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16), True, 2,
        )  # fmt: skip
    elif dot_type == tl.float16:
        made = tl.inline_asm_elementwise(
            UNPACK_FLOAT16, "=&r,=&r,=&r,=&r,r,r,r,r,r",
            [words, (-1024.0 - zeros[0]).to(tl.float16), (-1024.0 - zeros[1]).to(tl.float16),
             (-1024.0 - zeros[2]).to(tl.float16), (-1024.0 - zeros[3]).to(tl.float16)],
            (tl.float16, tl.float16, tl.float16, tl.float16), True, 2,
        )  # fmt: skip
    else:
        made = tl.inline_asm_elementwise(
            UNPACK_INT8, "=&r,=&r,=&r,=&r,r,r,r,r,r,r",
            [words, zeros[0].to(tl.int8), zeros[1].to(tl.int8), zeros[2].to(tl.int8),
             zeros[3].to(tl.int8)],
            (tl.int8, tl.int8, tl.int8, tl.int8), True, 4,
        )  # fmt: skip
    return made
