"""Form: what a text must look like, as a small tree that every guided-decoding backend reads.

Tool parsers say the form of their calls with it, requests become it, backends compile it. Knows
no tokenizer and no library's grammar language.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Literal:
    """Exactly this text."""

    text: str


@dataclass(frozen=True, slots=True)
class Json:
    """A JSON value that meets a schema; {} is any value, {"type": "object"} any object."""

    schema: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pattern:
    """Text that a regular expression matches whole."""

    regex: str


@dataclass(frozen=True, slots=True)
class Grammar:
    """Text of a context-free grammar. `language` is "ebnf", "gbnf" or "lark"."""

    text: str
    language: str = "ebnf"


@dataclass(frozen=True, slots=True)
class Free:
    """Any text without these words in it, so that what follows is seen when it begins."""

    without: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Sequence:
    """One part after the other."""

    parts: tuple[Form, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the parts."""

    parts: tuple[Form, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """A part several times, `most` None without limit."""

    part: Form
    least: int = 0
    most: int | None = None


Form = Literal | Json | Pattern | Grammar | Free | Sequence | Choice | Repeat


def sequence(*parts: Form | str) -> Form:
    """Return parts one after the other; text stands for itself."""
    made = tuple(Literal(part) if isinstance(part, str) else part for part in parts)
    return made[0] if len(made) == 1 else Sequence(made)


def optional(part: Form) -> Repeat:
    """Return a part that may be left out."""
    return Repeat(part, 0, 1)
