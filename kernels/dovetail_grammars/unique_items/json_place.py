"""JsonPlace: the parser state of a JSON text that is being written, with the items of lists that
must be unique.

Reads bytes and stores only the open levels. Places are immutable: reading returns a new one, so
that tokens can be tried and rolled back. An item's text is stored without white space. Source: RFC
8259.
"""

from __future__ import annotations

import json
from enum import Enum, auto
from typing import Any, NamedTuple

from dovetail_grammars.unique_items.shapes import Shape

BLANK = frozenset(b" \n\r\t")
_SCALAR = frozenset(b"+-.0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_QUOTE, _BACKSLASH, _COMMA, _COLON = b'"\\,:'
_OPEN_LIST, _CLOSE_LIST, _OPEN_OBJECT, _CLOSE_OBJECT = b"[]{}"


class Duplicate(Exception):
    """An item that is already in the list."""


class NotJson(Exception):
    """The text cannot be continued to valid JSON."""


class Mode(Enum):
    """What is being read."""

    VALUE = auto()
    FIRST_ITEM = auto()
    STRING = auto()
    STRING_ESCAPE = auto()
    SCALAR = auto()
    FIRST_NAME = auto()
    NAME = auto()
    IN_NAME = auto()
    NAME_ESCAPE = auto()
    COLON = auto()
    AFTER = auto()
    DONE = auto()


class Level(NamedTuple):
    """An open list or object. `items` are the texts of a list's items if they must be unique, else
    None; `values` are their parsed values. The current item begins at `start`."""

    is_list: bool
    shape: Shape
    items: tuple[bytes, ...] | None = None
    values: frozenset[Any] = frozenset()
    start: int = 0


class JsonPlace(NamedTuple):
    """`text` is the item of the outermost list of unique items, `name` the member's name."""

    mode: Mode
    shape: Shape
    levels: tuple[Level, ...] = ()
    is_kept: bool = False
    text: bytes = b""
    name: bytes = b""

    def lists(self) -> list[tuple[Level, bytes]]:
        """Return the open lists of unique items, each with the text of its current item so far."""
        if not self.is_kept:
            return []
        text = self.text
        if self.mode is Mode.SCALAR and text.endswith(b"-0"):
            text = text[:-2] + b"0"
        open_lists = [level for level in self.levels if level.items is not None]
        if self.mode is Mode.AFTER and self.levels[-1].items is not None:
            open_lists.pop()  # its item is complete
        return [(level, text[level.start :]) for level in open_lists]


def start(shape: Shape) -> JsonPlace:
    """Return the place before a value."""
    return JsonPlace(Mode.VALUE, shape)


def read(place: JsonPlace, data: bytes) -> tuple[JsonPlace, int]:
    """Return the place after these bytes, and how many belong to the value.

    Raises: Duplicate, NotJson
    """
    at = 0
    while at < len(data) and place.mode is not Mode.DONE:
        if place.mode is Mode.STRING or place.mode is Mode.IN_NAME:
            end = _plain_end(data, at)
            if end > at:
                place = _kept(place, data[at:end])
                at = end
                continue
        if place.mode is Mode.SCALAR and data[at] not in _SCALAR:
            place = _ended(place)
            continue
        place = _STEPS[place.mode](place, data[at])
        at += 1
    return place, at


def _plain_end(data: bytes, at: int) -> int:
    """Return the position of the next quotation mark or backslash."""
    found = [end for end in (data.find(b'"', at), data.find(b"\\", at)) if end >= 0]
    return min(found, default=len(data))


def _kept(place: JsonPlace, written: bytes) -> JsonPlace:
    """Return a place after text that changes nothing else."""
    text = place.text + written if place.is_kept else place.text
    is_name = place.mode in (Mode.IN_NAME, Mode.NAME_ESCAPE)
    return place._replace(text=text, name=place.name + written if is_name else place.name)


def _byte(place: JsonPlace, byte: int, mode: Mode) -> JsonPlace:
    return _kept(place, bytes((byte,)))._replace(mode=mode)


def _value(place: JsonPlace, byte: int) -> JsonPlace:
    if byte in BLANK:
        return place
    if byte == _QUOTE:
        return _byte(place, byte, Mode.STRING)
    if byte == _OPEN_LIST:
        return _opened_list(_byte(place, byte, Mode.FIRST_ITEM))
    if byte == _OPEN_OBJECT:
        inner = _byte(place, byte, Mode.FIRST_NAME)
        return inner._replace(levels=(*place.levels, Level(False, place.shape)))
    if byte == _CLOSE_LIST and place.mode is Mode.FIRST_ITEM:
        return _closed(place, byte)
    if byte in _SCALAR:
        return _byte(place, byte, Mode.SCALAR)
    raise NotJson


def _opened_list(place: JsonPlace) -> JsonPlace:
    shape = place.shape
    is_unique = shape.is_unique
    begins = place.is_kept or is_unique
    level = Level(True, shape, () if is_unique else None, start=len(place.text))
    levels = (*place.levels, level)
    return place._replace(levels=levels, shape=shape.items, is_kept=begins)


def _name(place: JsonPlace, byte: int) -> JsonPlace:
    if byte in BLANK:
        return place
    if byte == _QUOTE:
        return _byte(place, byte, Mode.IN_NAME)._replace(name=b'"')
    if byte == _CLOSE_OBJECT and place.mode is Mode.FIRST_NAME:
        return _closed(place, byte)
    raise NotJson


def _in_name(place: JsonPlace, byte: int) -> JsonPlace:
    return _byte(place, byte, Mode.COLON if byte == _QUOTE else Mode.NAME_ESCAPE)


def _in_string(place: JsonPlace, byte: int) -> JsonPlace:
    if byte == _QUOTE:
        return _ended(_byte(place, byte, Mode.STRING))
    return _byte(place, byte, Mode.STRING_ESCAPE)


def _colon(place: JsonPlace, byte: int) -> JsonPlace:
    if byte in BLANK:
        return place
    if byte != _COLON:
        raise NotJson
    shape = place.levels[-1].shape.member(_text(place.name))
    return _byte(place, byte, Mode.VALUE)._replace(shape=shape, name=b"")


def _after(place: JsonPlace, byte: int) -> JsonPlace:
    if byte in BLANK:
        return place
    level = place.levels[-1]
    if byte == (_CLOSE_LIST if level.is_list else _CLOSE_OBJECT):
        return _closed(place, byte)
    if byte != _COMMA:
        raise NotJson
    if not level.is_list:
        return _byte(place, byte, Mode.NAME)
    shape = level.shape.items
    if level.items is None:
        return _byte(place, byte, Mode.VALUE)._replace(shape=shape)
    is_outermost = all(outer.items is None for outer in place.levels[:-1])
    text = b"" if is_outermost else place.text + b","
    levels = (*place.levels[:-1], level._replace(start=len(text)))
    return place._replace(mode=Mode.VALUE, shape=shape, levels=levels, text=text)


def _closed(place: JsonPlace, byte: int) -> JsonPlace:
    """Return the place after the end of a list or object."""
    levels = place.levels[:-1]
    is_kept = any(level.items is not None for level in levels)
    text = place.text + bytes((byte,)) if is_kept else b""
    return _ended(place._replace(levels=levels, text=text, is_kept=is_kept))


def _ended(place: JsonPlace) -> JsonPlace:
    """Return the place after a value. Raises: Duplicate"""
    if not place.levels:
        return place._replace(mode=Mode.DONE)
    level = place.levels[-1]
    if level.items is None:
        return place._replace(mode=Mode.AFTER)
    item = place.text[level.start :]
    item = b"0" if item == b"-0" else item
    value = _meaning(item)
    if value in level.values:
        raise Duplicate
    level = level._replace(items=(*level.items, item), values=level.values | {value})
    return place._replace(mode=Mode.AFTER, levels=(*place.levels[:-1], level))


def _text(name: bytes) -> str:
    try:
        return str(json.loads(name))
    except (ValueError, RecursionError) as error:
        raise NotJson from error


def _meaning(item: bytes) -> Any:
    """Return a key that is equal for equal JSON values."""
    try:
        return _key(json.loads(item))
    except (ValueError, RecursionError) as error:
        raise NotJson from error


def _key(value: Any) -> Any:
    match value:
        case bool():
            return ("bool", value)
        case list():
            return ("list", *map(_key, value))
        case dict():
            return ("object", frozenset((name, _key(inner)) for name, inner in value.items()))
    return value


_STEPS = {
    Mode.VALUE: _value,
    Mode.FIRST_ITEM: _value,
    Mode.STRING: _in_string,
    Mode.STRING_ESCAPE: lambda place, byte: _byte(place, byte, Mode.STRING),
    Mode.SCALAR: lambda place, byte: _byte(place, byte, Mode.SCALAR),
    Mode.FIRST_NAME: _name,
    Mode.NAME: _name,
    Mode.IN_NAME: _in_name,
    Mode.NAME_ESCAPE: lambda place, byte: _byte(place, byte, Mode.IN_NAME),
    Mode.COLON: _colon,
    Mode.AFTER: _after,
}
