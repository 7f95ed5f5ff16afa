"""The instructions that unpack 4-bit codes on a GPU, read as the PTX manual defines them.

No interpreter runs inline instructions, so this file has one for the dozen that are used: each
line's words are looked up, and 32-bit registers are Python integers. Source: NVIDIA, PTX ISA 8.5,
section 9.7 (prmt, lop3, shifts, fma and mul on pairs of 16-bit floats).
"""

from __future__ import annotations

import re

import pytest
import torch

pytest.importorskip("triton")

from dovetail_kernels.gemm.unpack import (
    E2M1_BFLOAT16,
    E2M1_FLOAT16,
    UNPACK_BFLOAT16,
    UNPACK_FLOAT16,
    UNPACK_INT8,
)

MASK = 0xFFFFFFFF
TYPES = {"bf16x2": torch.bfloat16, "f16x2": torch.float16}
CODES = ((0, 15, 7, 8), (1, 2, 3, 4), (9, 10, 11, 12), (5, 6, 13, 14))
"""Four words of four codes, each code once."""
E2M1 = (0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6)


def floats(register: int, dtype: torch.dtype) -> torch.Tensor:
    halves = torch.tensor([register & 0xFFFF, register >> 16], dtype=torch.int32)
    return halves.to(torch.int16).view(dtype)


def bits(pair: torch.Tensor) -> int:
    low, high = (int(n) & 0xFFFF for n in pair.view(torch.int16))
    return low | high << 16


def permuted(a: int, b: int, selector: int) -> int:
    given = [(a >> 8 * n) & 255 for n in range(4)] + [(b >> 8 * n) & 255 for n in range(4)]
    return sum(given[(selector >> 4 * n) & 7] << 8 * n for n in range(4))


def result(name: str, values: list[int]) -> int:
    operation, *_, kind = name.split(".")
    if kind in TYPES:
        wide = [floats(v, TYPES[kind]).double() for v in values]
        made = wide[0] * wide[1] + (wide[2] if len(wide) == 3 else 0)
        return bits(made.to(TYPES[kind]))
    if operation == "lop3":
        assert values[3] == 0xEA
        return values[0] & values[1] | values[2]
    if operation == "prmt":
        return permuted(values[0], values[1], values[2])
    if operation == "mov":
        return values[0]
    a, b = values
    known = {"and": a & b, "xor": a ^ b, "sub": a - b, "shl": a << b, "shr": a >> b}
    return known[operation] & MASK


def run(text: str, arguments: list[int], outputs: int = 4) -> list[int]:
    """Return the output registers of a block of instructions."""
    registers = {f"${outputs + n}": value for n, value in enumerate(arguments)}
    for line in re.split(r"[;\n]", text.strip("{}\n ")):
        words = line.replace(",", " ").split()
        if not words or words[0] == ".reg":
            continue
        name, to, *given = words
        registers[to] = result(name, [registers[g] if g in registers else int(g, 0) for g in given])
    return [registers[f"${n}"] for n in range(outputs)]


def word(codes: tuple[int, ...]) -> int:
    return sum(code << 4 * n for n, code in enumerate(codes))


@pytest.mark.parametrize("zero", [0, 8, 15])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_codes_as_floats(dtype: torch.dtype, zero: int) -> None:
    is_bfloat16 = dtype == torch.bfloat16
    text = (UNPACK_BFLOAT16 if is_bfloat16 else UNPACK_FLOAT16).value
    less = -(128 if is_bfloat16 else 1024) - zero
    for first, second in (CODES[:2], CODES[2:]):
        words = word(first) | word(second) << 16
        found = run(text, [words] + [bits(torch.full((2,), less, dtype=dtype))] * 4)
        for number, register in enumerate(found):
            wanted = [first[number] - zero, second[number] - zero]
            assert floats(register, dtype).tolist() == wanted


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_codes_of_e2m1(dtype: torch.dtype) -> None:
    text = (E2M1_BFLOAT16 if dtype == torch.bfloat16 else E2M1_FLOAT16).value
    for first, second in (CODES[:2], CODES[2:]):
        found = run(text, [word(first) | word(second) << 16])
        for number, register in enumerate(found):
            wanted = [E2M1[first[number]], E2M1[second[number]]]
            assert floats(register, dtype).tolist() == wanted


@pytest.mark.parametrize("zero", [0, 8, 15, 64])
def test_codes_as_int8(zero: int) -> None:
    words = [word(CODES[0]) | word(CODES[1]) << 16, word(CODES[2]) | word(CODES[3]) << 16]
    found = run(UNPACK_INT8.value, words + [zero * 0x01010101] * 4)
    for number, register in enumerate(found):
        own = [(register >> 8 * n) & 255 for n in range(4)]
        assert [n - 256 if n > 127 else n for n in own] == [c[number] - zero for c in CODES]
