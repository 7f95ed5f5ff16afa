"""Writes rules over characters as GBNF, the grammar language of llama.cpp."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count

from dovetail_grammars.errors import InvalidConstraint
from dovetail_grammars.regex import Cat, Chars, Many, Node, Or, Ranges, Rule


def as_gbnf(rules: Mapping[str, Node]) -> str:
    """Return the text of a grammar, one rule per line. Raises: InvalidConstraint"""
    writer = _Writer(frozenset(rules))
    lines = [f"{name} ::= {writer.text(node)}" for name, node in rules.items()]
    return "\n".join(lines + writer.lines)


class _Writer:
    """Writes trees. An unlimited repetition becomes a tail-recursive rule, since libraries
    precompute masks for such rules but not for starred groups."""

    def __init__(self, taken: frozenset[str]) -> None:
        self.lines: list[str] = []
        self._names: dict[str, str] = {}
        self._free = (name for n in count() if (name := f"r{n}") not in taken)

    def text(self, node: Node) -> str:
        """Return the text of a part."""
        match node:
            case Chars(ranges):
                return _set_text(ranges)
            case Rule(name):
                return name
            case Cat(parts):
                return self._in_order(_flat(parts))
            case Or(()):
                raise InvalidConstraint("a part matches nothing")
            case Or(parts):
                return "(" + " | ".join(map(self.text, parts)) + ")"
            case Many(part, minimum, maximum):
                return self._many(part, minimum, maximum)
        raise InvalidConstraint("a grammar has no anchors")

    def _in_order(self, parts: list[Node]) -> str:
        """Return parts in sequence. What follows an unlimited repetition becomes part of its rule,
        so that its masks can be precomputed too."""
        texts: list[str] = []
        for part in reversed(parts):
            match part:
                case Many(Or() as inner, 0, None) if texts:
                    texts = [self._tail(self.text(inner), " ".join(_joined(texts)))]
                case _:
                    texts.insert(0, self.text(part))
        return " ".join(_joined(texts)) or '""'

    def _many(self, part: Node, minimum: int, maximum: int | None) -> str:
        inner = self.text(part)
        if isinstance(part, Chars):
            return f"[{inner[1:-1]}]" + _count(minimum, maximum)
        name = self._rule(inner) if isinstance(part, Or) else f"({inner})"
        if maximum is not None:
            return name + _count(minimum, maximum)
        first = [name + _count(minimum, minimum)] if minimum else []
        return " ".join([*first, self._tail(inner)])

    def _rule(self, inner: str) -> str:
        """Return a rule for a repeated part, the same for equal parts."""
        if inner not in self._names:
            self._names[inner] = next(self._free)
            self.lines.append(f"{self._names[inner]} ::= {inner}")
        return self._names[inner]

    def _tail(self, inner: str, out: str = '""') -> str:
        """Return a rule for any number of a part, followed by `out`."""
        key = f"{inner}* {out}"
        if key not in self._names:
            name = self._names[key] = next(self._free)
            branches = inner[1:-1].split(" | ") if _is_flat_choice(inner) else [inner]
            ways = " | ".join(f"{branch} {name}" for branch in branches)
            self.lines.append(f"{name} ::= {out} | {ways}")
        return self._names[key]


def _is_flat_choice(text: str) -> bool:
    """Return whether a text is one group of alternatives without nested groups."""
    return text.startswith("(") and text.endswith(")") and "(" not in text[1:]


def _set_text(ranges: Ranges) -> str:
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return f'"{_character(ranges[0][0])}"'
    body = "".join(_character(a) + ("" if a == b else "-" + _character(b)) for a, b in ranges)
    return f"[{body}]"


def _count(minimum: int, maximum: int | None) -> str:
    short = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((minimum, maximum))
    if short is not None:
        return short
    return f"{{{minimum},{'' if maximum is None else maximum}}}"


def _flat(parts: tuple[Node, ...]) -> list[Node]:
    return [p for part in parts for p in (_flat(part.parts) if isinstance(part, Cat) else (part,))]


def _joined(texts: list[str]) -> list[str]:
    """Return texts with adjacent quoted ones joined."""
    written: list[str] = []
    for text in texts:
        is_both = _is_quoted(text) and written and _is_quoted(written[-1])
        if is_both:
            written[-1] = written[-1][:-1] + text[1:]
        else:
            written.append(text)
    return written


def _is_quoted(text: str) -> bool:
    return text.startswith('"') and text.endswith('"') and len(text) > 2


def _character(code: int) -> str:
    letter = chr(code)
    if letter.isascii() and (letter.isalnum() or letter == " "):
        return letter
    # With four or eight digits, since after \x some readers take as many digits as there are.
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
