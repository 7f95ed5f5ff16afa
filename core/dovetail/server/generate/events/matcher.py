"""Finding markers in text that is still growing."""

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
    matches = [
        (at, -len(marker), which)
        for which, marker in enumerate(markers)
        if marker and (at := text.find(marker, begin)) >= 0
    ]
    if not matches:
        return None
    start, _, which = min(matches)
    return Found(start=start, which=which)


def partial_length(text: str, markers: Sequence[str]) -> int:
    """Return how many characters at the end of `text` may be the beginning of a marker."""
    longest = max((len(marker) for marker in markers), default=1) - 1
    for size in range(min(longest, len(text)), 0, -1):
        tail = text[-size:]
        if any(len(marker) > size and marker.startswith(tail) for marker in markers):
            return size
    return 0


def without_cut_marker(text: str, markers: Sequence[str]) -> str:
    """Return a text that was cut off without the marker at its end, where most of it is there."""
    size = partial_length(text, markers)
    tail = text[len(text) - size :]
    is_most = any(m.startswith(tail) and 2 * size >= len(m) for m in markers)
    return text[: len(text) - size] if size and is_most else text


def without(text: str, words: Sequence[str]) -> str:
    """Return a text without these words."""
    for word in words:
        text = text.replace(word, "")
    return text
