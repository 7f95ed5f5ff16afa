"""The instructions that unpack codes of 2 to 6 bits on a GPU, read as the PTX manual defines them.

No interpreter runs inline instructions, so this file has one for the dozen that are used: each
line's words are looked up, and 32-bit registers are Python integers. Source: NVIDIA, PTX ISA 8.5,
section 9.7 (prmt, lop3, shifts, fma and mul on pairs of 16-bit floats).
"""

from __future__ import annotations

import re

import pytest
import torch

from dovetail_kernels.gemm.instructions import (
    byte_instructions,
    e2m1_instructions,
    float_instructions,
)
from dovetail_kernels.gemm.panels import PLANES

MASK = 0xFFFFFFFF
TYPES = {"bf16x2": torch.bfloat16, "f16x2": torch.float16}
INTEGERS = [PLANES[f"int{bits}"] for bits in (2, 3, 4, 5, 6)]
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


def drawn(low: int, high: int, odd: int) -> tuple[list[list[int]], list[int]]:
    """Return four words' codes, and the registers that hold the words and what lies apart, a byte
    a word; of one bit, where `odd` says."""
    top = (1 << (low + high)) - 1
    random = torch.Generator().manual_seed(low * 8 + high)
    codes = torch.randint(0, top + 1, (4, 4), generator=random).tolist()
    codes[0], codes[3][3] = [0, top, top // 2, 1], top
    words = [sum((c & ((1 << low) - 1)) << low * n for n, c in enumerate(own)) for own in codes]
    size = 4 * low
    held = sum(word << size * n for n, word in enumerate(words))
    registers = [held & MASK] if low == 2 else [held & MASK, held >> 32]
    if high:
        apart = [sum((c >> low) << high * n for n, c in enumerate(own)) for own in codes]
        if high == 1:  # the other half of the byte is another panel's
            apart = [own << 4 | 5 if odd else own | 0xA0 for own in apart]
        registers.append(sum(own << 8 * n for n, own in enumerate(apart)))
    return codes, registers + ([4 * odd] * 4 if high == 1 else [])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("odd", [0, 1])
@pytest.mark.parametrize(("low", "high"), INTEGERS)
@pytest.mark.parametrize("kind", ["bf16", "fp16"])
def test_codes_as_floats(kind: str, low: int, high: int, odd: int) -> None:
    dtype = torch.bfloat16 if kind == "bf16" else torch.float16
    codes, registers = drawn(low, high, odd)
    zeros = (0, 8, 15, 64)
    less = [-(128 if kind == "bf16" else 1024) - zero for zero in zeros]
    pairs = [bits(torch.full((2,), number, dtype=dtype)) for number in less]
    given = [pair for pair in pairs for _ in range(2)]
    found = run(float_instructions(low, high, kind), registers + given, outputs=8)
    for number, zero in enumerate(zeros):
        made = [floats(found[2 * number + pair], dtype) for pair in range(2)]
        assert torch.cat(made).tolist() == [own[number] - zero for own in codes]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_codes_of_e2m1(dtype: torch.dtype) -> None:
    text = e2m1_instructions("bf16" if dtype == torch.bfloat16 else "fp16")
    for first, second in (CODES[:2], CODES[2:]):
        found = run(text, [word(first) | word(second) << 16])
        for number, register in enumerate(found):
            wanted = [E2M1[first[number]], E2M1[second[number]]]
            assert floats(register, dtype).tolist() == wanted


@pytest.mark.sampled(1)
@pytest.mark.parametrize("odd", [0, 1])
@pytest.mark.parametrize(("low", "high"), INTEGERS)
def test_codes_as_int8(low: int, high: int, odd: int) -> None:
    codes, registers = drawn(low, high, odd)
    zeros = (0, 8, 15, 64)
    found = run(byte_instructions(low, high), registers + [z * 0x01010101 for z in zeros])
    for number, (register, zero) in enumerate(zip(found, zeros, strict=True)):
        own = [(register >> 8 * n) & 255 for n in range(4)]
        made = [n - 256 if n > 127 else n for n in own]
        assert made == [c[number] - zero for c in codes]
