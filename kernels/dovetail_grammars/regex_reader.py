"""Reads regular expressions, with the same meaning for every backend.

Supports the common subset of ECMA-262 and Python, with ECMA-262's sets: \\d and \\w are ASCII, \\s
is white space and line ends, including U+FEFF. Lookahead is supported in a schema's pattern;
lookbehind, back references and word boundaries are refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from dovetail_grammars.errors import InvalidConstraint
from dovetail_grammars.regex import (
    ANY,
    ANYTHING,
    BLANKS,
    DIGITS,
    IN_LINE,
    LAST,
    NOTHING,
    WORDS,
    Alternatives,
    Cat,
    Chars,
    Edge,
    Look,
    Many,
    Node,
    Or,
    Ranges,
    outside,
    ranges,
    union,
    written,
)
from dovetail_grammars.unicode_sets import named_set

MAX_BRANCHES = 256
_CLASSES = {
    "d": DIGITS,
    "D": outside(DIGITS),
    "w": WORDS,
    "W": outside(WORDS),
    "s": BLANKS,
    "S": outside(BLANKS),
}


@dataclass(frozen=True, slots=True)
class Dialect:
    """The sets in which dialects differ: letters after a backslash, and what "." is."""

    classes: Mapping[str, Ranges]
    in_line: Ranges


ECMA = Dialect(_CLASSES, IN_LINE)


@lru_cache(maxsize=1)
def python_dialect() -> Dialect:
    """Return sets that are within those of Python, and of Rust: a line ends with "\\n" alone."""
    blanks = union([(9, 13), (28, 32), (133, 133), *outside(union([*outside(BLANKS), *_BOM]))])
    digits, words = (
        union([pair for name in names for pair in named_set(name) or ()])
        for names in (("Nd",), ("L", "M", "N", "Pc"))
    )
    negative = {"D": outside(digits), "W": outside(words), "S": outside(blanks)}
    common = outside(union([*outside(BLANKS), *_BOM]))
    return Dialect({**_CLASSES, "s": common, **negative}, outside(ranges("\n")))


_BOM = ((0xFEFF, 0xFEFF),)
_CONTROLS = {"n": 10, "r": 13, "t": 9, "f": 12, "v": 11, "0": 0}
_HEX_DIGITS = {"x": 2}


def whole_text(regex: str) -> str:
    """Return an equivalent expression for a whole text. Raises: InvalidConstraint"""
    return written(whole(regex))


def whole(regex: str, dialect: Dialect = ECMA) -> Node:
    """Return a tree of the texts that the whole expression matches. Raises: InvalidConstraint"""
    return _without_edges(parse(regex, dialect), has_start=False, has_end=False)


def found_within(regex: str) -> Node:
    """Return a tree of the texts that contain a match, as in a schema's `pattern`.

    Raises: InvalidConstraint
    """
    return _without_edges(parse(regex), has_start=True, has_end=True)


class _Parser(Alternatives):
    def __init__(self, text: str, dialect: Dialect) -> None:
        self.text = text
        self.classes = dialect.classes
        self.in_line = dialect.in_line
        self.at = 0
        self.lead = 0  # the end of the anchors and lookaheads that the expression begins with
        self.is_dot_all = False
        self.is_folded = False

    def fault(self, what: str) -> InvalidConstraint:
        return InvalidConstraint(
            f"the expression {self.text[:80]!r} {what} (at character {self.at})"
        )

    def peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def take(self, word: str) -> bool:
        if self.text.startswith(word, self.at):
            self.at += len(word)
            return True
        return False

    def next(self) -> str:
        if self.at >= len(self.text):
            raise self.fault("ends too early")
        self.at += 1
        return self.text[self.at - 1]

    def sequence(self) -> Node:
        parts: list[Node] = []
        while self.peek() not in ("", "|", ")"):
            parts.append(self.counted(self.atom()))
        return parts[0] if len(parts) == 1 else Cat(tuple(parts))

    def counted(self, part: Node) -> Node:
        """Return a part with the count that follows it."""
        while (count := self.count()) is not None:
            if isinstance(part, Edge | Look):
                raise self.fault("repeats an anchor")
            part = Many(part, *count)
            self.take("?")  # greediness does not change which texts match
            if self.peek() and self.peek() in "+*{":
                raise self.fault("has one count after the other")
        return part

    def count(self) -> tuple[int, int | None] | None:
        for word, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self.take(word):
                return bounds
        end = self.text.find("}", self.at)
        if self.peek() != "{" or end < 0:
            return None
        low, comma, high = self.text[self.at + 1 : end].partition(",")
        if comma and not low and high.isdigit():
            raise self.fault("has a count without a beginning, which has two meanings")
        if not low.isascii() or not low.isdigit() or (high and not high.isdigit()):
            return None  # a literal brace
        minimum, maximum = int(low), int(high) if high else None if comma else int(low)
        if maximum is not None and maximum < minimum:
            raise self.fault("has a count that ends before it begins")
        self.at = end + 1
        return minimum, maximum

    def atom(self) -> Node:
        character = self.next()
        match character:
            case "(":
                return self.group()
            case "[":
                return Chars(self.bracket())
            case "\\":
                return self.escape()
            case ".":
                return Chars(ANY if self.is_dot_all else self.in_line)
            case "^":
                self.lead += self.lead == self.at - 1
                return Edge(is_start=True)
            case "$":
                return Edge(is_start=False)
            case "*" | "+" | "?":
                raise self.fault("counts nothing")
        return Chars(self.folded(ranges(character)))

    def folded(self, found: Ranges) -> Ranges:
        """Return a set, with both cases of its letters if case is ignored."""
        if not self.is_folded:
            return found
        if any(last > 127 for _, last in found):
            raise self.fault("leaves the case open of other than ASCII letters")
        letters = [chr(c) for first, last in found for c in range(first, last + 1)]
        return union([*found, *ranges("".join(c.swapcase() for c in letters))])

    def group(self) -> Node:
        flags = (self.is_dot_all, self.is_folded)
        if (is_wanted := self.take("?=")) or self.take("?!"):
            is_first = 0 < self.lead == self.at - len("(?=")
            seen = Look(self.remainder(self.alternatives(), is_first), is_wanted)
            if not self.take(")"):
                raise self.fault("has a group that is not closed")
            self.lead = self.at if is_first else self.lead
            self.is_dot_all, self.is_folded = flags
            return seen
        if self.take("?"):
            self.group_head()
            if self.text[self.at - 1] == ")":
                return NOTHING  # flags for the rest
        inner = self.alternatives()
        if not self.take(")"):
            raise self.fault("has a group that is not closed")
        self.is_dot_all, self.is_folded = flags
        return inner

    def remainder(self, node: Node, is_first: bool) -> Node:
        """Return the rest of a text in a lookahead; without an end anchor, any text may follow. A
        start anchor holds where the expression begins (`is_first`)."""
        if not is_first and any(branch[:1] == (Edge(True),) for branch in _branches(node)):
            raise self.fault("looks ahead for the beginning of the text")
        return _without_edges(node, has_start=False, has_end=True)

    def group_head(self) -> None:
        """Read what follows "(?", up to the content of the group."""
        if self.take("P<") or (self.peek() == "<" and self.text[self.at + 1 :][:1] not in "=!"):
            end = self.text.find(">", self.at)
            if end < 0:
                raise self.fault("has a name that is not closed")
            self.at = end + 1
            return
        while (flag := self.next()) in "is":
            self.is_dot_all |= flag == "s"
            self.is_folded |= flag == "i"
        if flag not in ":)":
            raise self.fault(f'has a group of a kind that is not supported, "(?{flag}"')

    def escape(self) -> Node:
        letter = self.peek()
        if letter in ("A", "Z", "z"):
            self.at += 1
            return Edge(letter == "A")
        found = self.escaped_set()
        return Chars(found if found in self.classes.values() else self.folded(found))

    def escaped_set(self) -> Ranges:
        """Return the set of an escape, after its backslash."""
        letter = self.next()
        if letter in self.classes:
            return self.classes[letter]
        if letter in _CONTROLS:
            code = _CONTROLS[letter]
        elif letter in ("p", "P"):
            return self.property_set(is_negative=letter == "P")
        elif letter == "u":
            code = self.unicode_escape()
        elif letter in _HEX_DIGITS:
            size = _HEX_DIGITS[letter]
            digits = self.text[self.at : self.at + size]
            try:
                code = int(digits, 16) if len(digits) == size else -1
            except ValueError:
                code = -1
            if code < 0 or 0xD800 <= code <= 0xDFFF:
                raise self.fault("has an escape without a character")
            self.at += size
        elif letter.isalnum() and letter.isascii():
            raise self.fault(f'has "\\{letter}", which is not supported')
        else:
            code = ord(letter)
        return ((code, code),)

    def unicode_escape(self) -> int:
        r"""Return the character of \\u0041, \\u{1F600} or a surrogate pair, after its letter."""
        pattern = r"\{0*([0-9a-fA-F]{1,6})\}|([0-9a-fA-F]{4})(?:\\u([dD][c-fC-F][0-9a-fA-F]{2}))?"
        found = re.compile(pattern).match(self.text, self.at)
        code = int(found[1] or found[2], 16) if found else -1
        if found and 0xD800 <= code <= 0xDBFF and found[3]:
            code = 0x10000 + ((code - 0xD800) << 10) + int(found[3], 16) - 0xDC00
            self.at = found.end()
        elif found:
            self.at = found.end(1 if found[1] else 2) + bool(found[1])
        if not 0 <= code <= LAST or 0xD800 <= code <= 0xDFFF:
            raise self.fault("has an escape without a character")
        return code

    def property_set(self, *, is_negative: bool) -> Ranges:
        r"""Return the set of a Unicode property, \\p{L} or \\pL, after its letter p."""
        name = self.next()
        if name == "{" and (end := self.text.find("}", self.at)) >= 0:
            name, self.at = self.text[self.at : end], end + 1
        found = named_set(name)
        if found is None:
            raise self.fault(f'has the Unicode property "{name[:40]}", which is not known')
        return outside(found) if is_negative else outside(outside(found))

    def bracket(self) -> Ranges:
        """Return the set in a bracket, after the opening one."""
        is_negative = self.take("^")
        ranges: list[tuple[int, int]] = []
        if is_negative and self.takes_anything():
            return ANY
        is_first = True
        while is_first or self.peek() != "]":
            is_first = False
            low = self.bracket_item()
            if self.peek() == "-" and self.text[self.at + 1 :][:1] not in ("]", ""):
                self.at += 1
                high = self.bracket_item()
                if len(low) != 1 or len(high) != 1 or low[0][0] != low[0][1]:
                    raise self.fault("has a range between what is not a character")
                low = ((low[0][0], high[0][0]),)
                if low[0][0] > low[0][1]:
                    raise self.fault("has a range that ends before it begins")
            ranges += low if low in self.classes.values() else self.folded(low)
        self.at += 1
        characters = outside(union(ranges)) if is_negative else outside(outside(union(ranges)))
        if not characters:
            raise self.fault("has an empty set")
        return characters

    def takes_anything(self) -> bool:
        """Return whether a negative set is ECMA-262's [^], and if so skip it. In other dialects a
        bracket may come first in a set that is closed later; such a set is read normally."""
        end = self.text.find("]", self.at + 1)
        opened = self.text.find("[", self.at)
        if self.peek() == "]" and (end < 0 or 0 <= opened < end):
            self.at += 1
            return True
        return False

    def bracket_item(self) -> Ranges:
        character = self.next()
        if character == "[" and self.peek() and self.peek() in ":=.":
            raise self.fault("has a named set")
        if character != "\\":
            return ranges(character)
        return ((8, 8),) if self.take("b") else self.escaped_set()


def parse(regex: str, dialect: Dialect = ECMA) -> Node:
    """Return the tree of an expression. Raises: InvalidConstraint"""
    parser = _Parser(regex, dialect)
    node = parser.alternatives()
    if parser.at < len(regex):
        raise parser.fault("has a bracket too many")
    return node


def _without_edges(node: Node, *, has_start: bool, has_end: bool) -> Node:
    """Return the tree for a whole text: anchors at the edges are removed, others refused. An edge
    without an anchor allows more text there, if `has_start` or `has_end` is set."""
    branches = []
    for parts in _branches(node):
        starts, ends = parts[:1] == (Edge(True),), parts[-1:] == (Edge(False),)
        while parts[:1] == (Edge(True),):
            parts = parts[1:]
        while parts[-1:] == (Edge(False),):
            parts = parts[:-1]
        if has_end:
            parts = tuple(map(_with_ends_seen, parts))
        if any(_has_edge(part) for part in parts):
            raise InvalidConstraint("the expression has an anchor in the middle")
        before = (ANYTHING,) if has_start and not starts else ()
        branches.append(Cat((*before, *parts, *((ANYTHING,) if has_end and not ends else ()))))
    return branches[0] if len(branches) == 1 else Or(tuple(branches))


def _with_ends_seen(node: Node) -> Node:
    """Return a tree with end anchors in the middle replaced by a lookahead for the end."""
    match node:
        case Edge(False):
            return Look(NOTHING, is_wanted=True)
        case Cat(parts):
            return Cat(tuple(map(_with_ends_seen, parts)))
        case Or(parts):
            return Or(tuple(map(_with_ends_seen, parts)))
        case Many(part, minimum, maximum):
            return Many(_with_ends_seen(part), minimum, maximum)
    return node


def _branches(node: Node) -> list[tuple[Node, ...]]:
    """Return alternatives as sequences; an anchor at an edge is a part of its own there."""
    if isinstance(node, Or):
        return [branch for part in node.parts for branch in _branches(part)]
    parts = node.parts if isinstance(node, Cat) else (node,)
    for at in (0, len(parts) - 1):
        if parts and _has_edge(parts[at]) and isinstance(parts[at], Or | Cat):
            inner = _branches(parts[at])
            sequences = [
                branch
                for found in inner
                for branch in _branches(Cat((*parts[:at], *found, *parts[at + 1 :])))
            ]
            if len(sequences) > MAX_BRANCHES:
                raise InvalidConstraint("the expression has too many anchors")
            return sequences
    return [parts]


def _has_edge(node: Node) -> bool:
    match node:
        case Edge():
            return True
        case Cat(parts) | Or(parts):
            return any(map(_has_edge, parts))
        case Many(part):
            return _has_edge(part)
    return False
