"""Search for markers in growing text: fixed texts, and tags given by a pattern."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from dovetail.interfaces.data.text import MAX_TAG_CHARS, Layout, Tag


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkerMatch:
    """The earliest marker: its start and end, and its index among the given ones."""

    start: int
    end: int
    which: int


def find_first(text: str, markers: Sequence[str | Tag], begin: int = 0) -> MarkerMatch | None:
    """Return the earliest marker at or after `begin`; the longest of several at one place."""
    matches = [
        (place[0], -place[1], which)
        for which, marker in enumerate(markers)
        if marker and (place := _place(text, marker, begin)) is not None
    ]
    if not matches:
        return None
    start, end, which = min(matches)
    return MarkerMatch(start=start, end=-end, which=which)


def _place(text: str, marker: str | Tag, begin: int) -> tuple[int, int] | None:
    if isinstance(marker, Tag):
        found = _whole(marker).search(text, begin)
        return found.span() if found else None
    at = text.find(marker, begin)
    return (at, at + len(marker)) if at >= 0 else None


@cache
def _whole(tag: Tag) -> re.Pattern[str]:
    return re.compile(tag.pattern)


@cache
def _begun(tag: Tag) -> re.Pattern[str]:
    return re.compile(tag.begun + r"\Z")


def partial_length(text: str, markers: Sequence[str | Tag]) -> int:
    """Return how many characters at the end of `text` may be the start of a marker."""
    words = [marker if isinstance(marker, str) else marker.start for marker in markers]
    begun = [_num_begun(text, marker) for marker in markers if isinstance(marker, Tag)]
    min_length = max(begun, default=0)
    longest = max(map(len, words), default=1) - 1
    for size in range(min(longest, len(text)), min_length, -1):
        tail = text[-size:]
        if any(len(word) > size and word.startswith(tail) for word in words):
            return size
    return min_length


def _num_begun(text: str, tag: Tag) -> int:
    """Return how many characters at the end of a text are an unclosed tag."""
    found = _begun(tag).search(text, max(0, len(text) - len(tag.start) - MAX_TAG_CHARS))
    return len(text) - found.start() if found else 0


def without_cut_marker(text: str, markers: Sequence[str | Tag]) -> str:
    """Return a truncated text without the marker at its end, if most of the marker is there."""
    size = partial_length(text, markers)
    tail = text[len(text) - size :]
    is_most = any(_is_most(tail, marker) for marker in markers)
    return text[: len(text) - size] if size and is_most else text


def _is_most(tail: str, marker: str | Tag) -> bool:
    if isinstance(marker, Tag):
        return tail.startswith(marker.start)
    return marker.startswith(tail) and 2 * len(tail) >= len(marker)


def longest_first(layout: Iterable[str | Tag]) -> Layout:
    """Return the texts and tags without duplicates: longest first, tags last."""
    return tuple(sorted(set(layout), key=_size))


def _size(word: str | Tag) -> tuple[bool, int, str]:
    return (True, 0, word.pattern) if isinstance(word, Tag) else (False, -len(word), word)


def without(text: str, words: Sequence[str | Tag]) -> str:
    """Return a text with these words and tags removed."""
    for word in words:
        text = text.replace(word, "") if isinstance(word, str) else _whole(word).sub("", text)
    return text
