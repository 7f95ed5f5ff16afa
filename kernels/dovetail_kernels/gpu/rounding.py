"""Rounding to bfloat16 and to 8-bit floats, written out, so that an interpreter and a GPU store the
same bits.

For 8-bit floats a number becomes a multiple of the type's step by adding and taking away 1.5 * 2^23
steps, which rounds to the nearest, of two to the even one. Knows no op; needs Triton.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

FLOAT8_STEPS = {torch.float8_e4m3fn: (3, 121), torch.float8_e5m2: (2, 113)}
"""Bits of the fraction, and the exponent (as float32 has it) of the smallest normal number."""


@triton.jit
def nearest_float8(x, FRACTION: tl.constexpr, LEAST: tl.constexpr):
    """Return float32 numbers that a type of FLOAT8_STEPS holds; x is within its range."""
    exponent = (x.to(tl.uint32, bitcast=True).to(tl.int32, bitcast=True) >> 23) & 255
    exponent = tl.maximum(exponent, LEAST) + 23 - FRACTION
    large = (exponent << 23).to(tl.float32, bitcast=True) * 1.5
    return (x + large) - large


@triton.jit
def nearest_bfloat16(x):
    """Return float32 numbers that bfloat16 holds; a NaN stays a NaN."""
    bits = x.to(tl.uint32, bitcast=True)
    bits += 0x7FFF + ((bits >> 16) & 1)
    return tl.where(x == x, (bits & 0xFFFF0000).to(tl.float32, bitcast=True), x)
