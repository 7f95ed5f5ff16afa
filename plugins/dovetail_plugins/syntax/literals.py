"""Literals of other notations as JSON text: Python's, and one with marks instead of quotes.

Reads from the left and no further than it must, so that a result for the beginning of a text holds
for the whole. Evaluates nothing, and keeps the bytes of numbers that are JSON. Accepts common
mistakes of models: 07, a set, a quote within a string that does not end it.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dovetail.interfaces.tool_parser import MalformedToolCall, UnfinishedToolCall
from dovetail.json_text import loads, quoted, skip_blanks
from dovetail_plugins.syntax.schemas import (
    inner_schema,
    is_allowed,
    item_schema,
    kind_of,
    kinds,
    listed,
)

MAX_DEPTH = 48
MAX_ITEMS = 10_000
MAX_NUMBER_CHARS = 400
_WORD = re.compile(r"\w+")
_BARE_KEY = re.compile(r"[^\s:{}\[\],<>\"']+")
_NUMBER = re.compile(r"[-+]?[0-9.](?:[eE][-+](?=[0-9])|[\w.])*")
_JSON_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_LEADING_ZEROS = re.compile(r"^([-+]?)0+(?=[0-9])")
_OPENING = re.compile(r"([rRuU]?)(\"\"\"|'''|\"|')")
_INSIDE = {
    '"': re.compile(r'([^"\\]*+(?:\\.[^"\\]*+)*)"', re.DOTALL),
    "'": re.compile(r"([^'\\]*+(?:\\.[^'\\]*+)*)'", re.DOTALL),
    '"""': re.compile(r'([^"\\]*+(?:(?:\\.|"(?!""))[^"\\]*+)*)"""', re.DOTALL),
    "'''": re.compile(r"([^'\\]*+(?:(?:\\.|'(?!''))[^'\\]*+)*)'''", re.DOTALL),
}
_ESCAPE = re.compile(
    r"\\(?:([0-7]{1,3})|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL
)
_BEHIND_VALUE = ",)]}:"
MAX_ROW = 2
"""How many quotes that belong to a string may directly precede its closing quotes."""
MAX_QUOTES = 64
"""How many quotes that do not end it a string may hold."""
_LETTERS = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "\n": ""}
_LETTERS |= {letter: letter for letter in "\\'\"/"}
_WORDS = {"True": "true", "False": "false", "None": "null", "none": "null"}
_NO_SCHEMA: Mapping[str, Any] = {}
_WORDS |= {word: word for word in ("true", "false", "null")}
CLOSING = {"[": "]", "{": "}", "(": ")"}


class CutLiteral(MalformedToolCall):
    """The text ends before its meaning is decided."""


@dataclass(frozen=True, slots=True)
class Literals:
    """`mark` opens and closes a string; empty: strings are Python's. With a mark the keys of
    objects are bare words."""

    mark: str = ""

    def value(
        self, text: str, at: int, depth: int = 0, schema: Mapping[str, Any] = _NO_SCHEMA
    ) -> tuple[str, int]:
        """Return (the value at this position as JSON text, the position after it). A number or word
        that the schema allows only as a string becomes that string, as it was written.

        Raises: CutLiteral, UnfinishedToolCall if the text ends in a string, MalformedToolCall.
        """
        if depth > MAX_DEPTH:
            raise MalformedToolCall("nested too deep")
        if at >= len(text):
            raise CutLiteral("a value is missing")
        if text[at] in CLOSING:
            return self._container(text, at, depth, schema)
        if self._is_string(text, at):
            return self._strings(text, at)
        json_text, end = _scalar(text, at)
        return _fitted(json_text, text[at:end], schema), end

    def _is_string(self, text: str, at: int) -> bool:
        if not self.mark:
            return _OPENING.match(text, at) is not None
        rest = text[at : at + len(self.mark)]
        if rest != self.mark and self.mark.startswith(rest):
            raise CutLiteral("the mark of a string is cut")
        return rest == self.mark

    def _strings(self, text: str, at: int) -> tuple[str, int]:
        """Read a string, in Python also several in a row: they are one."""
        joined = ""
        while True:
            part, at = self.string(text, at)
            joined += part
            following = skip_blanks(text, at)
            if self.mark or _OPENING.match(text, following) is None:
                return json.dumps(_paired(joined), ensure_ascii=False), at
            at = following

    def string(self, text: str, at: int) -> tuple[str, int]:
        """Return (the text of the one string that begins here, the position after it).

        Raises: CutLiteral, UnfinishedToolCall if the text ends first.
        """
        if self.mark:
            start = at + len(self.mark)
            end = text.find(self.mark, start)
            if end < 0:
                raise UnfinishedToolCall("a string is not closed")
            return text[start:end], end + len(self.mark)
        opening = _OPENING.match(text, at)
        assert opening is not None
        quote = opening[2]
        if text[opening.start(2) :] == quote * 2:
            raise CutLiteral("an empty string, or the beginning of three quotes")
        end = _closing_quote(text, opening.end(), quote)
        inside = text[opening.end() : end]
        is_raw = opening[1] in ("r", "R")
        return inside if is_raw else _ESCAPE.sub(_unescaped, inside), end + len(quote)

    def _container(
        self, text: str, at: int, depth: int, schema: Mapping[str, Any]
    ) -> tuple[str, int]:
        """Read a list, an object, a set, or a tuple: a list too if it has a comma."""
        opening, closing = text[at], CLOSING[text[at]]
        parts: list[tuple[str, str]] = []
        has_comma = False
        at = skip_blanks(text, at + 1)
        is_object = opening == "{" and not self._is_set(text, at, depth)
        while text[at : at + 1] != closing:
            key, at = self.key(text, at) if is_object else ("", at)
            part, at = self.value(text, at, depth + 1, _inner(schema, key) if schema else schema)
            parts.append((key, part))
            if len(parts) > MAX_ITEMS:
                raise MalformedToolCall("too many items")
            at = skip_blanks(text, at)
            if text[at : at + 1] == ",":
                has_comma = True
                at = skip_blanks(text, at + 1)
            elif at < len(text) and text[at] != closing:
                raise MalformedToolCall(f"no , or {closing} at character {at + 1}")
        if is_object:
            return "{" + ", ".join(key + part for key, part in dict(parts).items()) + "}", at + 1
        joined = ", ".join(part for _, part in parts)
        is_list = opening != "(" or has_comma or not parts
        return f"[{joined}]" if is_list else joined, at + 1

    def _is_set(self, text: str, at: int, depth: int) -> bool:
        """Return whether a brace opens a set: no colon follows its first item."""
        if self.mark or text[at : at + 1] == "}":
            return False
        behind = skip_blanks(text, self.value(text, at, depth + 1)[1])
        if behind >= len(text):
            raise CutLiteral("a key, or an item of a set")
        return text[behind] in ",}"

    def key(self, text: str, at: int) -> tuple[str, int]:
        """Return (the key at this position, quoted, with its colon; the position of the value).

        Raises: like `value`.
        """
        if at >= len(text):
            raise CutLiteral("a key is missing")
        if text[at] in CLOSING:
            raise MalformedToolCall("a key is a container")
        bare = _BARE_KEY.match(text, at) if self.mark else None
        if bare is not None:
            key, at = json.dumps(bare[0], ensure_ascii=False), bare.end()
        else:
            key, at = self.value(text, at, MAX_DEPTH)
            key = key if key.startswith('"') else json.dumps(key)
        at = skip_blanks(text, at)
        if at >= len(text):
            raise CutLiteral("a key without a value")
        if text[at] != ":":
            raise MalformedToolCall(f"no : at character {at + 1}")
        return key + ": ", skip_blanks(text, at + 1)


PYTHON = Literals()


def _closing_quote(text: str, at: int, quote: str) -> int:
    """Return the position of the closing quote: the first one after which a value may end or
    another string begin, or the first of too many. In a row of quotes that ends a value, the last
    ones close it.

    Raises: UnfinishedToolCall if there is none yet, CutLiteral if the row may continue.
    """
    first, begin = -1, at
    for _ in range(MAX_QUOTES):
        inside = _INSIDE[quote].match(text, begin)
        if inside is None:
            raise UnfinishedToolCall("a string is not closed")
        begin = inside.end() + _num_more(text, inside.end(), quote)
        first = first if first >= 0 else begin - len(quote)
        following = skip_blanks(text, begin)
        is_over = following >= len(text) or text[following] in _BEHIND_VALUE
        if is_over or len(quote) > 1 or _OPENING.match(text, following):
            return begin - len(quote)
    return first


def _num_more(text: str, at: int, quote: str) -> int:
    """Return how many quotes after a closing one belong to the same row, if the row ends the value:
    they are the end of the text."""
    number = 0
    while text.startswith(quote[0], at + number) and number < MAX_ROW:
        number += 1
    if not number:
        return 0
    following = skip_blanks(text, at + number)
    if following >= len(text):
        raise CutLiteral("quotes in a row, of which more may follow")
    return number if text[following] in _BEHIND_VALUE else 0


def _scalar(text: str, at: int) -> tuple[str, int]:
    word = _NUMBER.match(text, at) or _WORD.match(text, at)
    if word is None:
        if text[at:] in ("-", "+"):
            raise CutLiteral("a sign without a number")
        raise MalformedToolCall(f"no literal at character {at + 1}")
    if len(word[0]) > MAX_NUMBER_CHARS:
        raise MalformedToolCall("a number too long")
    if text[word.end() :] in ("", "-", "+"):
        raise CutLiteral("a word or number that may go on")
    if word[0] in _WORDS:
        return _WORDS[word[0]], word.end()
    if _JSON_NUMBER.fullmatch(word[0]):
        return word[0], word.end()
    return _odd_number(word[0]), word.end()


def _odd_number(text: str) -> str:
    """Return a number that only Python, or nearly Python, writes (1_000, .5, 0x10, 07) as JSON."""
    try:
        value = ast.literal_eval(_LEADING_ZEROS.sub(r"\1", text))
    except (ValueError, SyntaxError) as error:
        raise MalformedToolCall(f"{text[:32]} is not a literal") from error
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value):
        raise MalformedToolCall(f"{text[:32]} is not a number in JSON")
    return json.dumps(value)


def _inner(schema: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    return inner_schema(schema, loads(key[:-2])) if key else item_schema(schema)


def _fitted(json_text: str, written: str, schema: Mapping[str, Any]) -> str:
    """Return the JSON of a number or word, as a string if only that fits the schema."""
    if not schema:
        return json_text
    allowed, values = kinds(schema), listed(schema)
    is_listed = not values or loads(json_text) in values
    if is_allowed(kind_of(loads(json_text)), allowed) and (is_listed or written not in values):
        return json_text
    may_be_text = written in values or (allowed is not None and "string" in allowed)
    return quoted(written) if may_be_text else json_text


def _unescaped(found: re.Match[str]) -> str:
    octal, two, four, eight, letter = found.groups()
    if letter is not None:
        return _LETTERS.get(letter, found[0])
    code = int(octal, 8) if octal else int(two or four or eight, 16)
    return chr(code) if code <= 0x10FFFF else found[0]


def _paired(text: str) -> str:
    """Return text whose surrogates are paired as JSON pairs them; a lone one is not a character."""
    if text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
