"""What every Triton kernel of sampling reads a row by: its numbers, logits, keys and weights.

Nothing here may be fused (launches say enable_fp_fusion=False): a weight is the definition's to the
last bit.
"""

from __future__ import annotations

import triton
import triton.language as tl

from dovetail_kernels.sample import definition
from dovetail_kernels.sample.device import FIELD_NAMES

FIELDS = tl.constexpr(len(FIELD_NAMES))
TEMPERATURE, TOP_K, TOP_P, LEAST, UNIFORM, REPETITION, FREQUENCY, PRESENCE, SLOT = (
    tl.constexpr(i) for i in range(len(FIELD_NAMES))
)
"""The columns of a row's numbers; the temperature is stored as its inverse."""
INFINITE = tl.constexpr(0x7F800000)
"""The key of -inf."""
MAGNITUDE = tl.constexpr(0x7FFFFFFF)
LEAST_X = tl.constexpr(definition.LEAST_X)
LOG2_E = tl.constexpr(definition.LOG2_E)
C5, C4, C3, C2, C1 = (tl.constexpr(c) for c in definition.POWERS_OF_TWO)
BIAS = tl.constexpr(127 + definition.WEIGHT_UNITS)
WHOLE = tl.constexpr(float(1 << 23))
"""From here on every float32 is a whole number."""
NEAREST = tl.constexpr(1.5 * (1 << 23))
"""Adding and taking it away again rounds a smaller float32 to the nearest whole number."""


@triton.jit
def field_of(wishes, row, WHICH: tl.constexpr):
    return tl.load(wishes + row * FIELDS + WHICH)


@triton.jit
def is_finite(x):
    return (x.to(tl.int32, bitcast=True) & MAGNITUDE) < INFINITE


@triton.jit
def is_sampled(best, factor):
    return is_finite(best) & (factor != 0.0)


@triton.jit
def row_best(bests, row, num_pieces, PIECES: tl.constexpr):
    at = tl.arange(0, PIECES)
    own = tl.load(bests + row * num_pieces + at, mask=at < num_pieces, other=float("-inf"))
    is_spoilt = tl.max((own != own).to(tl.int32), axis=0) > 0
    best = tl.max(tl.where(own == own, own, float("-inf")), axis=0)
    return tl.where(is_spoilt, float("nan"), best)


@triton.jit
def values(logits, stride, row, token, vocab, wishes, seen, HAS_PENALTIES: tl.constexpr):
    inside = token < vocab
    at = logits + row * stride + token
    value = tl.load(at, mask=inside, other=float("-inf")).to(tl.float32)
    if HAS_PENALTIES:
        slot = field_of(wishes, row, SLOT).to(tl.int64)
        here = inside & (slot >= 0)
        times = tl.load(seen + slot * vocab + token, mask=here, other=0)
        repetition = field_of(wishes, row, REPETITION).to(tl.float32)
        frequency = field_of(wishes, row, FREQUENCY).to(tl.float32)
        presence = field_of(wishes, row, PRESENCE).to(tl.float32)
        repeated = tl.where(value > 0.0, tl.div_rn(value, repetition), value * repetition)
        drawn = (times - 1).to(tl.float32)
        taken = frequency * drawn + presence * tl.where(drawn > 0.0, 1.0, 0.0)
        value = tl.where(times > 0, repeated - taken, value)
    return value


@triton.jit
def weight(x):
    y = tl.maximum(x, LEAST_X) * LOG2_E
    n = (y + NEAREST) - NEAREST
    f = y - n
    p = tl.full(x.shape, C5, tl.float32)
    p = p * f + C4
    p = p * f + C3
    p = p * f + C2
    p = p * f + C1
    p = p * f + 1.0
    power = ((n.to(tl.int32) + BIAS) << 23).to(tl.float32, bitcast=True)
    scaled = p * power
    return tl.where(scaled < WHOLE, (scaled + WHOLE) - WHOLE, scaled).to(tl.int64)


@triton.jit
def key_of(x):
    # Of two x <= 0 the larger has the smaller key.
    return x.to(tl.int32, bitcast=True) & MAGNITUDE


@triton.jit
def x_of(key):
    return -(key.to(tl.float32, bitcast=True))
