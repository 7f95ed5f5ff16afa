"""read_gbnf(text): parses a GBNF or EBNF grammar into rules over characters, the same for every
backend.

Supports the common subset of llama.cpp and xgrammar: rules with "::=", quoted texts, sets, ".",
groups, counts and comments; line ends are white space. Token ids, lookahead and macros are refused.
Source: https://github.com/ggml-org/llama.cpp/blob/master/grammars/README.md
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence

from dovetail_grammars.errors import InvalidConstraint
from dovetail_grammars.json_grammar import ROOT
from dovetail_grammars.regex import (
    ANY,
    LAST,
    Alternatives,
    Cat,
    Chars,
    Many,
    Node,
    Or,
    Rule,
    literal,
    outside,
    union,
    without,
)

LANGUAGES = ("gbnf", "ebnf")
MAX_NODES = 4000
MAX_COUNT = 5000
_TOKEN = re.compile(
    r"""(?P<blank>(?:\s|\#[^\n]*)+)
    |(?P<rule>[A-Za-z_][\w-]*(?=(?:\s|\#[^\n]*)*::=))
    |(?P<name>[A-Za-z_][\w-]*)
    |(?P<text>"(?:[^"\\\n]|\\.)*")
    |(?P<set>\[(?:[^\]\\\n]|\\.)*\])
    |(?P<count>[*+?]|\{\s*\d*\s*(?:,\s*\d*\s*)?\})
    |(?P<sign>::=|[|().])""",
    re.VERBOSE | re.ASCII,
)
_COUNTS: Mapping[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_LETTERS = {"n": "\n", "r": "\r", "t": "\t"}
_NUM_DIGITS = {"x": 2, "u": 4, "U": 8}


def read_gbnf(text: str) -> dict[str, Node]:
    """Return the rules of a grammar; `rules[ROOT]` is the start rule. Raises: InvalidConstraint

    A tail-recursive rule becomes a repetition: the same language, but cheaper for every backend.
    """
    return usable(_Reader(text).rules())


def usable(rules: Mapping[str, Node]) -> dict[str, Node]:
    """Return the rules that match a text, simplified as above. Raises: InvalidConstraint"""
    if ROOT not in rules:
        raise InvalidConstraint(f'the grammar has no rule "{ROOT}"')
    for name, node in rules.items():
        for used in used_names(node):
            if used not in rules:
                raise InvalidConstraint(
                    f'the grammar\'s rule "{name}" uses "{used}", which is not defined'
                )
    able = _able_to_end(rules)
    if ROOT not in able:
        raise InvalidConstraint("no text of the grammar ever ends")
    reachable = {name: without(_within(node, able)) for name, node in rules.items() if name in able}
    return {name: _without_tail_call(name, node) for name, node in reachable.items()}


def _able_to_end(rules: Mapping[str, Node]) -> set[str]:
    """Return the rules that match some finite text."""
    able: set[str] = set()

    def ends(node: Node) -> bool:
        match node:
            case Rule(name):
                return name in able
            case Cat(parts):
                return all(map(ends, parts))
            case Or(parts):
                return any(map(ends, parts))
            case Many(part, minimum):
                return not minimum or ends(part)
        return True

    while more := {name for name, node in rules.items() if name not in able and ends(node)}:
        able |= more
    return able


def _within(node: Node, able: set[str]) -> Node:
    """Return the tree with all other rules replaced by a part that matches nothing."""
    match node:
        case Rule(name):
            return node if name in able else Or(())
        case Cat(parts):
            return Cat(tuple(_within(part, able) for part in parts))
        case Or(parts):
            return Or(tuple(_within(part, able) for part in parts))
        case Many(part, minimum, maximum):
            return Many(_within(part, able), minimum, maximum)
    return node


class _Reader(Alternatives):
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(self._split())
        self._at = 0

    def _split(self) -> Iterator[tuple[str, str, int]]:
        at = 0
        while at < len(self._text):
            found = _TOKEN.match(self._text, at)
            if found is None:
                raise self.fault(f"has {self._text[at : at + 12]!r}, which is not understood", at)
            if found.lastgroup != "blank":
                yield str(found.lastgroup), found[0], at
            at = found.end()

    def fault(self, what: str, at: int | None = None) -> InvalidConstraint:
        line = self._text.count("\n", 0, self._peek()[2] if at is None else at) + 1
        return InvalidConstraint(f"the grammar {what} (line {line})")

    def _peek(self) -> tuple[str, str, int]:
        return self._tokens[self._at] if self._at < len(self._tokens) else ("", "", len(self._text))

    def take(self, word: str) -> bool:
        is_next = self._peek()[:2] == ("sign", word)
        self._at += is_next
        return is_next

    def rules(self) -> dict[str, Node]:
        """Return all rules by name. Raises: InvalidConstraint"""
        definitions: dict[str, Node] = {}
        while self._at < len(self._tokens):
            kind, name, at = self._peek()
            if kind != "rule":
                raise self.fault(f"has {name[:32]!r} where a rule must begin", at)
            if name in definitions:
                raise self.fault(f'defines "{name}" twice', at)
            self._at += 2  # the name and "::="
            definitions[name] = self.alternatives()
        return definitions

    def sequence(self) -> Node:
        parts: list[Node] = []
        while (part := self._part()) is not None:
            while self._peek()[0] == "count":
                part = Many(part, *self._count())
            parts.append(part)
        return parts[0] if len(parts) == 1 else Cat(tuple(parts))

    def _part(self) -> Node | None:
        """Return the next part, None at the end of a sequence."""
        kind, word, at = self._peek()
        if kind in ("", "rule") or word in ("|", ")"):
            return None
        self._at += 1
        match kind:
            case "name":
                return Rule(word)
            case "text":
                return literal("".join(self._letters(word[1:-1], at)))
            case "set":
                return self._set(word[1:-1], at)
        if word == ".":
            return Chars(ANY)
        if word != "(":
            raise self.fault(f"has {word!r} where a text, a set or a rule is expected", at)
        inner = self.alternatives()
        if not self.take(")"):
            raise self.fault("has a group that is not closed", at)
        return inner

    def _count(self) -> tuple[int, int | None]:
        _, word, at = self._peek()
        self._at += 1
        if word in _COUNTS:
            return _COUNTS[word]
        low, comma, high = (part.strip() for part in word[1:-1].partition(","))
        if not low and not high:
            raise self.fault(f"has a count without a number, {word!r}", at)
        minimum = int(low or 0)
        maximum = int(high) if high else None if comma else minimum
        if max(minimum, maximum or 0) > MAX_COUNT or (maximum is not None and maximum < minimum):
            raise self.fault(f"has the count {word!r}, which is too high or ends too early", at)
        return minimum, maximum

    def _letters(self, body: str, at: int) -> Iterator[str]:
        """Yield the characters of a text or a set, with escapes resolved."""
        letters = iter(body)
        for letter in letters:
            if letter != "\\":
                yield letter
                continue
            kind = next(letters)
            if kind not in _NUM_DIGITS:
                if kind.isalnum() and kind not in _LETTERS:
                    raise self.fault(f'has "\\{kind}", which is not an escape', at)
                yield _LETTERS.get(kind, kind)
                continue
            digits = "".join(itertools.islice(letters, _NUM_DIGITS[kind]))
            code = int(digits, 16) if re.fullmatch("[0-9A-Fa-f]+", digits) else -1
            is_whole = len(digits) == _NUM_DIGITS[kind] and 0 <= code <= LAST
            if not is_whole or 0xD800 <= code <= 0xDFFF:
                raise self.fault(f'has "\\{kind}{digits}", which is not a character', at)
            yield chr(code)

    def _set(self, body: str, at: int) -> Node:
        is_negative = body.startswith("^")
        # A "-" between two characters is a range; an escaped one is literal.
        pieces = re.findall(r"\\U.{8}|\\u.{4}|\\x..|\\.|.", body[is_negative:], re.DOTALL)
        letters = ["".join(self._letters(piece, at)) for piece in pieces]
        ranges, n = [], 0
        while n < len(pieces):
            is_range = pieces[n + 1 : n + 2] == ["-"] and n + 2 < len(pieces)
            last = letters[n + 2] if is_range else letters[n]
            if last < letters[n]:
                raise self.fault("has a range that ends before it begins", at)
            ranges.append((ord(letters[n]), ord(last)))
            n += 3 if is_range else 1
        characters = outside(union(ranges)) if is_negative else outside(outside(union(ranges)))
        if not characters:
            raise self.fault("has an empty set", at)
        return Chars(characters)


def used_names(node: Node) -> Iterator[str]:
    """Yield the names of the rules that a part uses."""
    match node:
        case Rule(name):
            yield name
        case Cat(parts) | Or(parts):
            for part in parts:
                yield from used_names(part)
        case Many(part):
            yield from used_names(part)


def _without_tail_call(name: str, node: Node) -> Node:
    """Return `a ::= x a | y` as `x* y`, if the rule is not used elsewhere in itself."""
    branches = node.parts if isinstance(node, Or) else (node,)
    heads, ends = [], []
    for branch in branches:
        match branch:
            case Cat((*head, Rule(last))) if last == name and head:
                heads.append(Cat(tuple(head)))
            case _:
                ends.append(branch)
    if not heads or not ends or any(name in used_names(part) for part in (*heads, *ends)):
        return node
    return Cat((Many(_one_of(heads), 0, None), _one_of(ends)))


def _one_of(parts: Sequence[Node]) -> Node:
    return parts[0] if len(parts) == 1 else Or(tuple(parts))


def inlined(rules: Mapping[str, Node]) -> Node | None:
    """Return the start rule as one regular expression, None if it is recursive or too long."""
    return regular(rules, Rule(ROOT))


def regular(rules: Mapping[str, Node], node: Node) -> Node | None:
    """Return a part of a grammar as one regular expression, None if it is recursive or too long."""
    budget = [MAX_NODES]

    def put(node: Node, within: frozenset[str]) -> Node | None:
        budget[0] -= 1
        if budget[0] < 0:
            return None
        match node:
            case Rule(name):
                return None if name in within else put(rules[name], within | {name})
            case Cat(parts) | Or(parts):
                nodes = [put(part, within) for part in parts]
                present = tuple(part for part in nodes if part is not None)
                return type(node)(present) if len(present) == len(nodes) else None
            case Many(part, minimum, maximum):
                inner = put(part, within)
                return None if inner is None else Many(inner, minimum, maximum)
        return node

    return put(node, frozenset())
