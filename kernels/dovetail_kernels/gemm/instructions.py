"""The instructions that unpack words of codes of 2 to 6 bits on a GPU, as text of PTX.

A word has four codes of LOW bits (8 or 16 bits a word); HIGH more bits of each code may be stored
separately, in a byte a word (`panels.PLANES`). Source: NVIDIA, PTX ISA 8.5, section 9.7
"""

from __future__ import annotations

from dovetail_kernels.gemm.panels import PLANES

E2M1 = {"bf16": ("bf16x2", "0x7E807E80", 6, "0x01C001C0"),
        "fp16": ("f16x2", "0x74007400", 9, "0x0E000E00")}  # fmt: skip
"""A 16-bit type in instructions, the factor that corrects its larger bias, twice, and the place of
an unsigned e2m1's bits: the lowest, and all."""
FLOATS = {
    "bf16": ("bf16x2", "0x43004300", "0x3F803F80"),
    "fp16": ("f16x2", "0x64006400", "0x3C003C00"),
}
"""A 16-bit type as instructions call it, 128 or 1024 twice, and 1 twice: bits in the last places of
the former are a whole number more, which is subtracted with the zero point."""
SIGNS = "0x80808080"


def instructions(kind: str, dot_type: str) -> tuple[str, str]:
    """Return the instructions that unpack a kind of codes as "int8", "bf16" or "fp16", and the
    constraints of its results and arguments: all in registers."""
    if kind == "e2m1":
        return e2m1_instructions(dot_type), _places(4, 1)
    low, high = PLANES[kind]
    given = low // 2 + (0, 5, 1)[high]
    if dot_type == "int8":
        return byte_instructions(low, high), _places(4, given + 4)
    return float_instructions(low, high, dot_type), _places(8, given + 8)


def _places(results: int, arguments: int) -> str:
    return ",".join(["=&r"] * results + ["r"] * arguments)


def float_instructions(low: int, high: int, kind: str) -> str:
    """Return the instructions that turn four words into four times two pairs of a 16-bit type.

    Results $0 to $7: two pairs of code 0, of code 1, and so on. Arguments: the words, the separate
    bits, their shifts (four, only for one bit), and for each code two pairs that are added.
    """
    pairs, magic, one = FLOATS[kind]
    lines = [".reg .b32 a0, a1, b0, b1, c, p, q, o;", f"mov.b32 o, {one};"]
    words, at = ("$8", "$9"), 10
    if low == 2:
        lines += _spread("a", "$8")
        words, at = ("a0", "a1"), 9
    if high:
        source, at = _apart(lines, high, at)
        lines += _spread("b", source)
    for code in range(4):
        for pair in range(2):
            lines.append(_shifted("p", words[pair], low * code))
            lines.append(f"lop3.b32 p, p, {_twice((1 << low) - 1)}, {magic}, 0xEA;")
            if high:
                lines.append(_shifted("q", f"b{pair}", high * code - low))
                mask = _twice(((1 << high) - 1) << low)
                lines.append(f"lop3.b32 p, q, {mask}, p, 0xEA;")
            number = 2 * code + pair
            lines.append(f"fma.rn.{pairs} ${number}, p, o, ${at + number};")
    return "{" + " ".join(lines) + "}"


def byte_instructions(low: int, high: int) -> str:
    """Return the instructions that turn four words into four times four int8, results $0 to $3.
    Arguments as before, but four bytes for each code to be subtracted. (With the sign's bit set,
    there is no borrow.)"""
    lines = [".reg .b32 l, h, c, p, q;"]
    words, at = ("$4",) * 4, 5
    if low == 4:
        lines += ["prmt.b32 l, $4, $5, 0x6420;", "prmt.b32 h, $4, $5, 0x7531;"]
        words, at = ("l", "l", "h", "h"), 6
    source = ""
    if high:
        source, at = _apart(lines, high, at)
    for code in range(4):
        lines.append(_shifted("p", words[code], low * code % 8))
        lines.append(f"lop3.b32 p, p, {_four((1 << low) - 1)}, {SIGNS}, 0xEA;")
        if high:
            lines.append(_shifted("q", source, high * code - low))
            lines.append(f"lop3.b32 p, q, {_four(((1 << high) - 1) << low)}, p, 0xEA;")
        lines.append(f"sub.u32 p, p, ${at + code}; xor.b32 ${code}, p, {SIGNS};")
    return "{" + " ".join(lines) + "}"


def _apart(lines: list[str], high: int, at: int) -> tuple[str, int]:
    """Return the location of the separate bits, and the next argument. Mutates: lines"""
    if high > 1:
        return f"${at}", at + 1
    lines.append(f"shr.b32 c, ${at}, ${at + 1};")
    return "c", at + 5


def _spread(name: str, source: str) -> list[str]:
    """Return the instructions that turn four bytes into two pairs of 16 bits."""
    return [f"prmt.b32 {name}0, {source}, 0, 0x4140;", f"prmt.b32 {name}1, {source}, 0, 0x4342;"]


def _shifted(to: str, source: str, right: int) -> str:
    return f"sh{'r' if right >= 0 else 'l'}.b32 {to}, {source}, {abs(right)};"


def _twice(bits: int) -> str:
    return f"0x{bits:04X}{bits:04X}"


def _four(bits: int) -> str:
    return "0x" + f"{bits:02X}" * 4


def e2m1_instructions(dot_type: str) -> str:
    """Return the instructions that unpack two words of e2m1 as four pairs of a 16-bit type: sign,
    exponent and one bit move to the type's positions, and a power of two corrects its larger bias,
    also for subnormal numbers."""
    kind, factor, at, bits = E2M1[dot_type]
    lines = [".reg .b32 p, q, o, z;", f"mov.b32 o, {factor}; mov.b32 z, 0x80008000;"]
    for number in range(4):
        up, sign = at - 4 * number, 12 - 4 * number
        lines.append(f"sh{'l' if up >= 0 else 'r'}.b32 p, $4, {abs(up)}; shl.b32 q, $4, {sign};")
        lines.append(f"and.b32 p, p, {bits}; lop3.b32 p, q, 0x80008000, p, 0xEA;")
        lines.append(f"fma.rn.{kind} ${number}, p, o, z;")
    return "{" + " ".join(lines) + "}"
