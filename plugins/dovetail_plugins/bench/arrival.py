"""Arrival times of requests, with gaps from a gamma distribution (Poisson is a special case).

Units: seconds after the start. With shape b and scale 1 / (rate * b) the mean gap is 1 / rate and
its coefficient of variation is 1 / sqrt(b).
"""

from __future__ import annotations

import random
from itertools import accumulate


def arrival_times_s(
    num_requests: int, *, rate_per_s: float | None, burstiness: float = 1.0, seed: int = 0
) -> list[float]:
    """Return when each request is due: the first at 0, or all at 0 without a rate."""
    if rate_per_s is None:
        return [0.0] * num_requests
    rng = random.Random(seed)
    scale_s = 1 / (rate_per_s * burstiness)
    gaps = (rng.gammavariate(burstiness, scale_s) for _ in range(num_requests - 1))
    return list(accumulate(gaps, initial=0.0))
