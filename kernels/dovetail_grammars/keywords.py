"""Tables of keywords."""

from __future__ import annotations


def words(text: str) -> frozenset[str]:
    """Return the words of a text as a set."""
    return frozenset(text.split())
