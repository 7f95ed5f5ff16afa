"""Finding markers in text that is still growing. Knows nothing of what a marker means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The earliest marker: where it begins, and which of the given ones it is."""

    start: int
    which: int


def find_first(text: str, markers: Sequence[str], begin: int = 0) -> Found | None:
    """Return the earliest marker at or after `begin`; the longest wins where two begin alike."""
    best: Found | None = None
    for which, marker in enumerate(markers):
        at = text.find(marker, begin) if marker else -1
        if at < 0:
            continue
        if best is None or at < best.start:
            best = Found(start=at, which=which)
        elif at == best.start and len(marker) > len(markers[best.which]):
            best = Found(start=at, which=which)
    return best


def partial_length(text: str, markers: Sequence[str]) -> int:
    """Return how many characters at the end of `text` may be the beginning of a marker."""
    longest = max((len(marker) for marker in markers), default=1) - 1
    for size in range(min(longest, len(text)), 0, -1):
        tail = text[-size:]
        if any(len(marker) > size and marker.startswith(tail) for marker in markers):
            return size
    return 0
