"""ALiBi: attention whose only positions are biases, a slope of each head times the distance.

Source: Press et al., "Train short, test long: attention with linear biases enables input length
extrapolation", 2022; the slopes of head counts that are no power of two are those of their code.
"""

from __future__ import annotations

import math

from dovetail.layers.placement import Part


def alibi_slopes(num_heads: int, *, last_exponent: float = 8.0) -> tuple[float, ...]:
    """Return the slope of each head: of a power of two heads the last one's is 2^-last_exponent,
    and those before it are the geometric sequence that ends there. For other counts every other
    slope of the next power follows those of the power before."""
    power = 2 ** math.floor(math.log2(num_heads))
    first = [2 ** (-last_exponent * (i + 1) / power) for i in range(power)]
    between = [2 ** (-last_exponent * (2 * i + 1) / (2 * power)) for i in range(num_heads - power)]
    return (*first, *between)


def own_slopes(
    slopes: tuple[float, ...] | None, queries: Part, head_size: int
) -> tuple[float, ...] | None:
    """Return the slopes of the heads that a rank holds, of those of all ranks."""
    if slopes is None:
        return None
    return slopes[queries.start // head_size : (queries.start + queries.local) // head_size]
