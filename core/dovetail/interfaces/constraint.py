"""Constraint: what a text must look like, as a small tree that every structured-output backend
reads.

Tool parsers say the constraint of their calls with it, requests become it, backends compile it.
Knows no tokenizer and no library's grammar language.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec


class Literal(msgspec.Struct, frozen=True, tag=True):
    """Exactly this text."""

    text: str


class JsonSchema(msgspec.Struct, frozen=True, tag=True):
    """A JSON value that meets a schema; {} is any value, {"type": "object"} any object.

    `whitespace` is the pattern of white space between its parts; empty: none at all.
    """

    schema: dict[str, Any] = {}
    whitespace: str = r"[ \n\r\t]{0,8}"


class Regex(msgspec.Struct, frozen=True, tag=True):
    """Text that a regular expression matches whole."""

    regex: str


class Grammar(msgspec.Struct, frozen=True, tag=True):
    """Text of a context-free grammar. `language` is "ebnf", "gbnf" or "lark"."""

    text: str
    language: str = "ebnf"


class FreeText(msgspec.Struct, frozen=True, tag=True):
    """Any text without these words in it, so that what follows is seen when it begins."""

    without: tuple[str, ...] = ()


class Concat(msgspec.Struct, frozen=True, tag=True):
    """One part after the other."""

    parts: tuple[Constraint, ...]


class Choice(msgspec.Struct, frozen=True, tag=True):
    """One of the parts."""

    parts: tuple[Constraint, ...]


class Repeat(msgspec.Struct, frozen=True, tag=True):
    """A part several times, `most` None without limit."""

    part: Constraint
    least: int = 0
    most: int | None = None


Constraint = Literal | JsonSchema | Regex | Grammar | FreeText | Concat | Choice | Repeat


def concat(*parts: Constraint | str) -> Constraint:
    """Return parts one after the other; text stands for itself."""
    made = tuple(Literal(part) if isinstance(part, str) else part for part in parts)
    return made[0] if len(made) == 1 else Concat(made)


def choice_of(parts: Iterable[Constraint]) -> Constraint:
    """Return one of several parts, at least one; a single one stands for itself."""
    made = tuple(parts)
    return made[0] if len(made) == 1 else Choice(made)


def separated(part: Constraint, between: str, most: int | None) -> Constraint:
    """Return a part once to `most` times, with a text between any two."""
    if most == 1:
        return part
    more = Repeat(concat(between, part), 0, None if most is None else most - 1)
    return Concat((part, more))


def optional(part: Constraint) -> Repeat:
    """Return a part that may be left out."""
    return Repeat(part, 0, 1)


def encode_constraint(constraint: Constraint) -> bytes:
    """Return a constraint as JSON bytes. The members of schemas keep their order: answers have it
    too."""
    return msgspec.json.encode(constraint)


def decode_constraint(data: bytes) -> Constraint:
    """Return the constraint that `encode_constraint` wrote."""
    return msgspec.json.decode(data, type=Constraint)  # type: ignore[no-any-return]
