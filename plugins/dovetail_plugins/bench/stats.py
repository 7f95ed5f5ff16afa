"""Statistics of a list of numbers: mean, median, standard deviation, percentiles, peak overlap.

Pure functions without numpy, which the client would have to import.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from dovetail.errors import ConfigError


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the percentile `share` (0 to 100), with linear interpolation.

    `ordered` is sorted and not empty.
    """
    place = (len(ordered) - 1) * share / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def summary(values: Iterable[float], percentiles: Sequence[float]) -> dict[str, float]:
    """Return mean, median, std (of the population), min, max and p<N>; empty for no values."""
    ordered = sorted(values)
    if not ordered:
        return {}
    mean = math.fsum(ordered) / len(ordered)
    variance = math.fsum((value - mean) ** 2 for value in ordered) / len(ordered)
    named = {f"p{share:g}": percentile(ordered, share) for share in percentiles}
    return {
        "mean": mean,
        "median": percentile(ordered, 50),
        "std": math.sqrt(variance),
        "min": ordered[0],
        "max": ordered[-1],
        **named,
    }


def peak_overlap(spans: Iterable[tuple[float, float]]) -> int:
    """Return the maximum number of (start, end) spans that overlap; touching is not an overlap."""
    edges = sorted(edge for start, end in spans for edge in ((end, -1), (start, 1)))
    running = peak = 0
    for _, change in edges:
        running += change
        peak = max(peak, running)
    return peak


def parsed_percentiles(words: Sequence[str], where: str) -> list[float]:
    """Return percentiles as numbers, without duplicates. Raises: ConfigError"""
    try:
        shares = [float(word.lower().removeprefix("p")) for word in words]
    except ValueError:
        shares = [-1.0]
    if any(not 0 <= share <= 100 for share in shares):
        raise ConfigError(
            f"{' '.join(words)!r} are not percentiles.",
            where=where,
            fix=f"e.g. {where} 50,90,99.9.",
        )
    return list(dict.fromkeys(shares))
