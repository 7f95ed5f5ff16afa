"""AnswerParser: parses an answer by the parts it must have, to find the JSON within it.

An answer of several parts (a tag, then arguments) may have several parses at once, each called a
reading. An item counts as a duplicate if any reading says so, which may be too strict.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from dovetail_grammars.errors import InvalidConstraint
from dovetail_grammars.unique_items.json_place import BLANK, JsonPlace, Mode, NotJson, read, start
from dovetail_grammars.unique_items.shapes import Shape

MAX_READINGS = 200


@dataclass(frozen=True, eq=False, slots=True)
class Json:
    """JSON of a schema's shape."""

    shape: Shape


@dataclass(frozen=True, eq=False, slots=True)
class Text:
    """Exactly this text."""

    text: bytes


@dataclass(frozen=True, eq=False, slots=True)
class Loose:
    """Text with an unknown end."""


@dataclass(frozen=True, eq=False, slots=True)
class Several:
    """These parts one after another, or one of them."""

    parts: tuple[Part, ...]
    is_choice: bool


@dataclass(frozen=True, eq=False, slots=True)
class Again:
    """A part `least` to `most` times (None: no limit)."""

    part: Part
    least: int
    most: int | None


Part = Json | Text | Loose | Several | Again


class ItemState(NamedTuple):
    """What is being read (rest of a text, place in JSON, or loose text), and the parts after it."""

    now: bytes | JsonPlace | Loose
    rest: tuple[Part, ...]


Readings = tuple[ItemState, ...]


class AnswerParser:
    """Parses answers of one kind. Raises: InvalidConstraint"""

    def __init__(self, part: Part) -> None:
        self.beginning: Readings = tuple(_readings((part,)))

    def read(self, readings: Readings, data: bytes) -> Readings:
        """Return the readings after more of the answer; none if it does not match.

        Raises: Duplicate, InvalidConstraint
        """
        found: dict[object, ItemState] = {}
        pending = [(reading, data) for reading in readings]
        while pending:
            reading, left = pending.pop()
            if left:
                pending += _behind(reading, left)
            else:
                found[_key(reading)] = reading
            if len(pending) + len(found) > MAX_READINGS:
                raise InvalidConstraint("the answer can be read in too many ways")
        return tuple(found.values())


def _behind(reading: ItemState, data: bytes) -> Iterator[tuple[ItemState, bytes]]:
    """Yield readings after some of the text, with the remaining text. Raises: Duplicate"""
    now, rest = reading
    match now:
        case bytes():
            size = min(len(now), len(data))
            if now[:size] == data[:size] and size:
                left = now[size:]
                ways = [ItemState(left, rest)] if left else _readings(rest)
                yield from ((way, data[size:]) for way in ways)
        case JsonPlace():
            yield from _behind_json(now, rest, data)
        case Loose():
            yield reading, b""
            ways = list(_readings(rest))
            yield from ((way, data[at:]) for at in range(len(data)) for way in ways if way.now)


def _behind_json(
    place: JsonPlace, rest: tuple[Part, ...], data: bytes
) -> Iterator[tuple[ItemState, bytes]]:
    try:
        place, size = read(place, data)
    except NotJson:
        return
    if place.mode is Mode.DONE:
        left = data[size:] if rest else data[size:].lstrip(bytes(BLANK))
        yield from ((way, left) for way in _readings(rest))
    else:
        yield ItemState(place, rest), b""


def _readings(parts: tuple[Part, ...], depth: int = 0) -> Iterator[ItemState]:
    """Yield the ways to start with the first of these parts."""
    if depth > MAX_READINGS:
        raise InvalidConstraint("the constraint is nested too deep beside uniqueItems")
    if not parts:
        yield ItemState(b"", ())
        return
    first, rest = parts[0], parts[1:]
    match first:
        case Json(shape):
            yield ItemState(start(shape), rest)
        case Text(b""):
            yield from _readings(rest, depth + 1)
        case Text(text):
            yield ItemState(text, rest)
        case Loose():
            yield ItemState(first, rest)
            yield from _readings(rest, depth + 1)
        case Several(several, is_choice=True):
            for part in several:
                yield from _readings((part, *rest), depth + 1)
        case Several(several):
            yield from _readings((*several, *rest), depth + 1)
        case Again(part, minimum, maximum):
            if maximum != 0:
                again = first
                if minimum or maximum is not None:
                    again = Again(
                        part, max(0, minimum - 1), None if maximum is None else maximum - 1
                    )
                yield from _readings((part, again, *rest), depth + 1)
            if not minimum:
                yield from _readings(rest, depth + 1)


def _key(reading: ItemState) -> object:
    """Return a key that is equal for readings with the same continuations."""
    now = id(reading.now) if isinstance(reading.now, Loose) else reading.now
    return (now, *map(id, reading.rest))
