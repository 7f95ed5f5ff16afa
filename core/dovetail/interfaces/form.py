"""Form: what a text must look like, as a small tree that every guided-decoding backend reads.

Tool parsers say the form of their calls with it, requests become it, backends compile it. Knows
no tokenizer and no library's grammar language.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec


class Literal(msgspec.Struct, frozen=True, tag=True):
    """Exactly this text."""

    text: str


class Json(msgspec.Struct, frozen=True, tag=True):
    """A JSON value that meets a schema; {} is any value, {"type": "object"} any object.

    `blanks` is the pattern of white space between its parts; empty: none at all.
    """

    schema: dict[str, Any] = {}
    blanks: str = r"[ \n\r\t]{0,8}"


class Pattern(msgspec.Struct, frozen=True, tag=True):
    """Text that a regular expression matches whole."""

    regex: str


class Grammar(msgspec.Struct, frozen=True, tag=True):
    """Text of a context-free grammar. `language` is "ebnf", "gbnf" or "lark"."""

    text: str
    language: str = "ebnf"


class Free(msgspec.Struct, frozen=True, tag=True):
    """Any text without these words in it, so that what follows is seen when it begins."""

    without: tuple[str, ...] = ()


class Sequence(msgspec.Struct, frozen=True, tag=True):
    """One part after the other."""

    parts: tuple[Form, ...]


class Choice(msgspec.Struct, frozen=True, tag=True):
    """One of the parts."""

    parts: tuple[Form, ...]


class Repeat(msgspec.Struct, frozen=True, tag=True):
    """A part several times, `most` None without limit."""

    part: Form
    least: int = 0
    most: int | None = None


Form = Literal | Json | Pattern | Grammar | Free | Sequence | Choice | Repeat


def sequence(*parts: Form | str) -> Form:
    """Return parts one after the other; text stands for itself."""
    made = tuple(Literal(part) if isinstance(part, str) else part for part in parts)
    return made[0] if len(made) == 1 else Sequence(made)


def choice_of(parts: Iterable[Form]) -> Form:
    """Return one of several parts, at least one; a single one stands for itself."""
    made = tuple(parts)
    return made[0] if len(made) == 1 else Choice(made)


def divided(part: Form, between: str, most: int | None) -> Form:
    """Return a part once to `most` times, with a text between any two."""
    if most == 1:
        return part
    more = Repeat(sequence(between, part), 0, None if most is None else most - 1)
    return Sequence((part, more))


def optional(part: Form) -> Repeat:
    """Return a part that may be left out."""
    return Repeat(part, 0, 1)


def encode_form(form: Form) -> bytes:
    """Return a form as JSON bytes. The members of schemas keep their order: answers have it too."""
    return msgspec.json.encode(form)


def decode_form(data: bytes) -> Form:
    """Return the form that `encode_form` wrote."""
    return msgspec.json.decode(data, type=Form)  # type: ignore[no-any-return]
