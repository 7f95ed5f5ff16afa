"""The numbers that sampling is made of: a token's weight, a row's random numbers.

A weight is e^x in units of 2^-40, rounded to a whole number, by float32 operations that round the
same everywhere. Sums of whole numbers do not depend on their order, so a threshold or a draw is the
same token in any batch, on any number of threads and on every instruction set.
Source of the hash for the random numbers: Steele, Lea, Flood, "Fast splittable pseudorandom number
generators" (splitmix64), OOPSLA 2014.
"""

from __future__ import annotations

import numpy as np
import torch

WEIGHT_UNITS = 40
"""The best token weighs 2^40; one 28 natural logarithms below it weighs 0 and is never drawn."""
MAX_VOCAB = 1 << 22
"""The sum of this many largest weights still fits a signed 64-bit integer."""
LEAST_X = -30.0
LOG2_E = float.fromhex("0x1.715476p+0")
POWERS_OF_TWO = tuple(
    float.fromhex(c)
    for c in ("0x1.5bba14p-10", "0x1.3cea88p-7", "0x1.c6b752p-5", "0x1.ebf9bcp-3", "0x1.62e42ap-1")
)
"""2^f = 1 + f (..) for |f| <= 1/2, highest power first: relative error below 2e-7."""
MASS_SLACK = 1e-12
"""What p may lack by its decimal notation: of ten even tokens p = 0.3 keeps three."""

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
MIX_2 = np.uint64(0x94D049BB133111EB)


def weights(x: torch.Tensor) -> torch.Tensor:
    """Return round(2^40 e^x), whole numbers: bit for bit what kernels compute, on any device.

    Shapes: any float32, all <= 0 -> the same
    """
    y = x.clamp(min=LEAST_X).mul_(LOG2_E)
    n = y.round()
    f = y.sub_(n)
    p = torch.full_like(f, POWERS_OF_TWO[0])
    for c in (*POWERS_OF_TWO[1:], 1.0):
        p.mul_(f).add_(c)
    power = n.int().add_(127 + WEIGHT_UNITS).bitwise_left_shift_(23).view(torch.float32)
    return p.mul_(power).round_()


def goal_of(total: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Return the weight that a nucleus must reach. Shapes: [S] int64, [S] float64 -> [S] int64"""
    return (total.double() * (top_p - MASS_SLACK)).ceil().long().clamp_(min=1)


def target_of(total: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """Return the sum of weights that the drawn token is the first to exceed.

    Shapes: total [S] int64, uniform [S] float64 in [0, 1) -> [S] int64
    """
    return torch.minimum((total.double() * uniform).long(), total - 1)


def uniforms(seeds: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Return one number in [0, 1) per pair. Shapes: seeds [S] uint64, positions [S] -> [S] float64

    Two seeds share no stretch of their sequences, since the seed itself is hashed first.
    """
    counter = positions.astype(np.uint64) + np.uint64(1)
    bits = _mixed(_mixed(seeds + GOLDEN) + GOLDEN * counter)
    fractions: np.ndarray = (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return fractions


def _mixed(z: np.ndarray) -> np.ndarray:
    """Return splitmix64's output function of z. Shapes: [S] uint64 -> [S] uint64"""
    z = (z ^ (z >> np.uint64(30))) * MIX_1
    z = (z ^ (z >> np.uint64(27))) * MIX_2
    mixed: np.ndarray = z ^ (z >> np.uint64(31))
    return mixed
