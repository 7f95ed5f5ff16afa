"""Word: what a tool, item or block type in a client's request means here.

Every dialect has such tables, keyed by the client's type names. `docs/how_to/use_the_apis.md`
prints them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Meaning = Literal["honoured", "mapped", "left out", "refused"]
"""`left out`: the request is answered without it, and a header names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """How a type is handled, a description for readers, and the way to read it if a dialect has
    several."""

    how: Meaning
    what: str = ""
    read_as: str = ""


Words = Mapping[str, Word]


def words_of(how: Meaning, what: str, *names: str, read_as: str = "") -> dict[str, Word]:
    """Return entries that all have the same meaning."""
    return dict.fromkeys(names, Word(how=how, what=what, read_as=read_as))


def is_left_out(words: Words, name: str) -> bool:
    """Return whether a request is answered without this."""
    return name in words and words[name].how == "left out"
