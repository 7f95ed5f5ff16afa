"""ALiBi: attention with distance biases instead of positions, one slope per head.

Source: Press et al., "Train short, test long: attention with linear biases enables input length
extrapolation", 2022; their code has the slopes of head counts that are no power of two.
"""

from __future__ import annotations

import math

from dovetail.layers.linear.placement import Part


def alibi_slopes(num_heads: int, *, last_exponent: float = 8.0) -> tuple[float, ...]:
    """Return the slope of each head. For a power of two heads it is a geometric sequence that ends
    at 2^-last_exponent. Other counts append every other slope of the next power of two to those of
    the previous one."""
    power = 2 ** math.floor(math.log2(num_heads))
    first = [2 ** (-last_exponent * (i + 1) / power) for i in range(power)]
    between = [2 ** (-last_exponent * (2 * i + 1) / (2 * power)) for i in range(num_heads - power)]
    return (*first, *between)


def own_slopes(
    slopes: tuple[float, ...] | None, queries: Part, head_size: int
) -> tuple[float, ...] | None:
    """Return the slopes of a rank's heads, given those of all ranks."""
    if slopes is None:
        return None
    return slopes[queries.start // head_size : (queries.start + queries.local) // head_size]
