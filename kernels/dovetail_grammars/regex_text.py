"""Spelling of characters and counts in regular expressions, portable across libraries."""

from __future__ import annotations

_WITH_BACKSLASH = frozenset(r"\.^$|?*+()[]{}/-")
_AS_NUMBER = frozenset([*map(chr, range(32)), "\x7f", "&", "~"])
"""Set operators of some libraries, and invisible characters."""


def character(code: int) -> str:
    """Return a character, escaped if it has a special meaning."""
    letter = chr(code)
    named = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}.get(letter)
    if named:
        return named
    if letter in _AS_NUMBER:
        return f"\\x{code:02x}"
    return "\\" + letter if letter in _WITH_BACKSLASH else letter


def count_text(minimum: int, maximum: int | None) -> str:
    """Return the count that follows a part."""
    short = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((minimum, maximum))
    if short is not None:
        return short
    return (
        f"{{{minimum}}}"
        if minimum == maximum
        else f"{{{minimum},{'' if maximum is None else maximum}}}"
    )
