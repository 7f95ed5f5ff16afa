"""Regular expressions as trees, and how to write them without shorthands.

`regex_reader` reads them. Libraries differ in the meaning of \\d, ., anchors and flags, and some
ignore what they do not support. So written expressions contain only sets, groups and counts, and
match a whole text.
"""

from __future__ import annotations

from dataclasses import dataclass

from dovetail_grammars.errors import InvalidConstraint
from dovetail_grammars.regex_text import character, count_text

Ranges = tuple[tuple[int, int], ...]
"""Code points, first and last of each run; sorted and disjoint."""
LAST = 0x10FFFF
MAX_DEPTH = 60
"""How deep expressions and grammars may nest."""


@dataclass(frozen=True, slots=True)
class Chars:
    """One character of a set."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Cat:
    """Parts in sequence."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """Alternatives."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Many:
    """A repeated part; `most` None: unlimited."""

    part: Node
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Edge:
    """An anchor: the start or the end of the text."""

    is_start: bool


@dataclass(frozen=True, slots=True)
class Look:
    """A lookahead: the rest of the whole text, up to its end, matches this, or does not."""

    part: Node
    is_wanted: bool


@dataclass(frozen=True, slots=True)
class Rule:
    """A reference to the rule of this name; only in grammars."""

    name: str


Node = Chars | Cat | Or | Many | Edge | Look | Rule
NOTHING = Cat(())


def ranges(text: str) -> Ranges:
    """Return the set of these characters."""
    return union([(ord(c), ord(c)) for c in text])


def union(pairs: list[tuple[int, int]] | Ranges) -> Ranges:
    """Return runs of code points, sorted and merged."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(pairs):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return tuple(merged)


def outside(pairs: Ranges) -> Ranges:
    """Return all other characters, without surrogates."""
    gaps, at = [], 0
    for first, last in union([*pairs, (0xD800, 0xDFFF)]):
        if at < first:
            gaps.append((at, first - 1))
        at = last + 1
    return tuple([*gaps, (at, LAST)] if at <= LAST else gaps)


DIGITS = ((48, 57),)
WORDS = union([(48, 57), (65, 90), (95, 95), (97, 122)])
BLANKS = union(
    [
        *ranges(" \t\n\r\f\v\xa0\u1680\u2028\u2029\u202f\u205f\u3000\ufeff"),
        (0x2000, 0x200A),
    ]
)
"""White space and line ends of ECMA-262."""
ANY = outside(())
IN_LINE = outside(ranges("\n\r\u2028\u2029"))
ANYTHING = Many(Chars(ANY), 0, None)


def literal(text: str) -> Node:
    """Return a tree of exactly this text."""
    return Cat(tuple(Chars(((ord(c), ord(c)),)) for c in text))


_SHORT = {34: '"', 92: "\\", 10: "n", 13: "r", 9: "t", 8: "b", 12: "f"}
_NEVER_RAW = union([(0, 31), (34, 34), (92, 92)])


def quoted(node: Node, *, by_number: bool = False) -> Node:
    """Return the tree for the same texts inside the quotes of a JSON string.

    Control characters without a short escape are written by number, or else omitted.
    """
    match node:
        case Chars(found):
            ways = _quoted_ways(found, by_number)
            return ways[0] if len(ways) == 1 else Or(tuple(ways))
        case Cat(parts):
            return Cat(tuple(quoted(part, by_number=by_number) for part in parts))
        case Or(parts):
            return Or(tuple(quoted(part, by_number=by_number) for part in parts))
        case Many(part, minimum, maximum):
            return Many(quoted(part, by_number=by_number), minimum, maximum)
    return node


def _quoted_ways(found: Ranges, by_number: bool) -> list[Node]:
    """Return how the characters of a set are written: as they are, by a letter, by a number."""
    raw = outside(union([*outside(found), *_NEVER_RAW]))
    controls = {code for a, b in found for code in range(a, min(b, 92) + 1)}
    ways: list[Node] = [Chars(raw)] if raw else []
    if short := "".join(letter for code, letter in _SHORT.items() if code in controls):
        ways.append(Cat((Chars(((92, 92),)), Chars(ranges(short)))))
    for high in (0, 1) if by_number else ():
        codes = [code for code in range(16 * high, 16 * high + 16) if code in controls]
        digits = "".join(f"{code % 16:x}" for code in codes if code not in _SHORT)
        if digits:
            ways.append(Cat((literal(f"\\u00{high}"), Chars(ranges(digits)))))
    return ways


def without(node: Node, removed: Ranges = ()) -> Node:
    """Return the tree of the texts without any of these characters, Or(()) if there is none."""
    match node:
        case Chars(found):
            remaining = outside(union([*outside(found), *removed])) if removed else found
            return Chars(remaining) if remaining else Or(())
        case Cat(parts):
            pieces = tuple(without(part, removed) for part in parts)
            return Or(()) if Or(()) in pieces else Cat(pieces)
        case Or(parts):
            return Or(tuple(p for p in (without(part, removed) for part in parts) if p != Or(())))
        case Many(part, minimum, maximum):
            inner = without(part, removed)
            if inner == Or(()):
                return inner if minimum else NOTHING
            return Many(inner, minimum, maximum)
    return node


class Alternatives:
    """What readers of expressions and grammars have in common: texts of parts between "|", in which
    parts may hold such texts. A reader adds `take`, `sequence` and `fault`."""

    _depth = 0

    def take(self, sign: str, /) -> bool:
        """Go past a sign if it is next; return whether it was."""
        raise NotImplementedError

    def sequence(self) -> Node:
        """Return the tree of one alternative."""
        raise NotImplementedError

    def fault(self, what: str) -> InvalidConstraint:
        """Return the error of the text at the current place."""
        raise NotImplementedError

    def alternatives(self) -> Node:
        """Return the tree of all alternatives. Raises: InvalidConstraint"""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self.fault(f"is nested more than {MAX_DEPTH} deep")
        parts = [self.sequence()]
        while self.take("|"):
            parts.append(self.sequence())
        self._depth -= 1
        return parts[0] if len(parts) == 1 else Or(tuple(parts))


def written(node: Node) -> str:
    """Return a tree as an expression: sets, (?: ), | and counts. Raises: InvalidConstraint"""
    match node:
        case Chars(found):
            return _set_text(found)
        case Cat(parts):
            return "".join(f"(?:{written(p)})" if isinstance(p, Or) else written(p) for p in parts)
        case Or(()):
            raise InvalidConstraint("the expression matches nothing")
        case Or(parts):
            return "|".join(map(written, parts))
        case Many(part, minimum, maximum):
            inner = written(part)
            if not inner:
                return ""
            whole = inner if isinstance(part, Chars) else f"(?:{inner})"
            return whole + count_text(minimum, maximum)
        case Rule(name):
            raise InvalidConstraint(f"a recursive rule ({name}) is not a regular expression")
        case Look():
            raise InvalidConstraint("the expression looks ahead, which is not supported here")
    raise InvalidConstraint("the expression has an anchor in the middle")


def _set_text(found: Ranges) -> str:
    if len(found) == 1 and found[0][0] == found[0][1]:
        return character(found[0][0])
    others = outside(found)
    if not others:
        return r"(?:[^a]|a)"
    is_negative = len(others) < len(found)
    body = "".join(
        character(first) + ("" if first == last else "-" + character(last))
        for first, last in (others if is_negative else found)
    )
    return f"[^{body}]" if is_negative else f"[{body}]"
