"""Constraint: the required form of an answer, as a small tree that every structured-output backend
reads.

Requests become constraints, tool parsers describe their calls as constraints, backends compile
them. Independent of tokenizers and of any library's grammar language.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec


class Literal(msgspec.Struct, frozen=True, tag=True):
    """Exactly this text."""

    text: str


class JsonSchema(msgspec.Struct, frozen=True, tag=True):
    """A JSON value that is valid under a schema; {} is any value, {"type": "object"} any object.

    `whitespace` is a regular expression for the white space between tokens of JSON; empty: none.
    """

    schema: dict[str, Any] = {}
    whitespace: str = r"[ \n\r\t]{0,8}"


class Regex(msgspec.Struct, frozen=True, tag=True):
    """Text that a regular expression matches as a whole."""

    pattern: str


class Grammar(msgspec.Struct, frozen=True, tag=True):
    """Text of a context-free grammar. `language` is "ebnf", "gbnf" or "lark"."""

    text: str
    language: str = "ebnf"


class FreeText(msgspec.Struct, frozen=True, tag=True):
    """Any text that contains none of these words, so that the part after it can be recognised; or,
    with a grammar in GBNF, such a text of the grammar."""

    without: tuple[str, ...] = ()
    grammar: str = ""


class Concat(msgspec.Struct, frozen=True, tag=True):
    """The parts, one after the other."""

    parts: tuple[Constraint, ...]


class Choice(msgspec.Struct, frozen=True, tag=True):
    """One of the parts."""

    parts: tuple[Constraint, ...]


class Repeat(msgspec.Struct, frozen=True, tag=True):
    """A part, repeated `least` to `most` times; None: no limit."""

    part: Constraint
    least: int = 0
    most: int | None = None


Constraint = Literal | JsonSchema | Regex | Grammar | FreeText | Concat | Choice | Repeat


def concat(*parts: Constraint | str) -> Constraint:
    """Return the parts one after the other; a string is a literal."""
    items = tuple(Literal(part) if isinstance(part, str) else part for part in parts)
    return items[0] if len(items) == 1 else Concat(items)


def choice_of(parts: Iterable[Constraint]) -> Constraint:
    """Return a choice of one or more parts; a single part is returned as it is."""
    items = tuple(parts)
    return items[0] if len(items) == 1 else Choice(items)


def separated(part: Constraint, separator: str, most: int | None) -> Constraint:
    """Return a part once to `most` times, with a separator between any two."""
    if most == 1:
        return part
    more = Repeat(concat(separator, part), 0, None if most is None else most - 1)
    return Concat((part, more))


def optional(part: Constraint) -> Repeat:
    """Return a part that may be left out."""
    return Repeat(part, 0, 1)


def encode_constraint(constraint: Constraint) -> bytes:
    """Return a constraint as JSON bytes. Schema members keep their order, which is also the order
    in answers."""
    return msgspec.json.encode(constraint)


def decode_constraint(data: bytes) -> Constraint:
    """Return the constraint that `encode_constraint` encoded."""
    return msgspec.json.decode(data, type=Constraint)  # type: ignore[no-any-return]
