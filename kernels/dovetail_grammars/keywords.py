"""Tables of keywords."""

from __future__ import annotations


def words(text: str) -> frozenset[str]:
    """Return the words of a text, for tables of keywords."""
    return frozenset(text.split())
