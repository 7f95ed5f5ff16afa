"""with_lexemes(rules): the parts of a grammar that a longest-match lexer may read as one terminal.

Single characters are always correct, but slow. A longer part is correct if it is prefix-free (no
text of it is a prefix of another) and no other terminal starts with one of its first characters.
Then the next character determines the terminal, and its end is unique. A quoted string is such a
part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from dovetail_grammars.gbnf_reader import regular
from dovetail_grammars.regex import Cat, Chars, Many, Node, Or, Ranges, Rule, outside, union

MAX_PARTS = 16
MAX_ROUNDS = 8
MAX_POSITIONS = 200
MAX_STATES = 400
_Positions = frozenset[int]


def with_lexemes(rules: Mapping[str, Node]) -> tuple[dict[str, Node], frozenset[Node]]:
    """Return the rules with some runs of parts merged, and the nodes that are terminals."""
    banned: set[Node] = set()
    for _ in range(MAX_ROUNDS):
        finder = _Finder(rules, banned)
        marked = {name: finder.marked(node) for name, node in rules.items()}
        clashing = _clashing(marked, finder.found)
        if not clashing:
            return marked, frozenset(finder.found)
        banned |= clashing
    return dict(rules), frozenset()


class _Finder:
    """Merges the shortest runs that may be terminals and are not banned."""

    def __init__(self, rules: Mapping[str, Node], banned: set[Node]) -> None:
        self._rules = rules
        self._banned = banned
        self.found: set[Node] = set()

    def marked(self, node: Node) -> Node:
        """Return the tree with runs that may be terminals merged into one part. Mutates: self"""
        match node:
            case Cat():
                return Cat(tuple(self._runs(_flat(node))))
            case Or(parts):
                return Or(tuple(map(self.marked, parts)))
            case Many(part, minimum, maximum):
                return Many(self.marked(part), minimum, maximum)
        return node

    def _runs(self, parts: Sequence[Node]) -> Iterator[Node]:
        at = 0
        while at < len(parts):
            run, size = self._run(parts[at : at + MAX_PARTS])
            if run is None:
                yield self.marked(parts[at])
            else:
                self.found.add(run)
                yield run
            at += size

    def _run(self, parts: Sequence[Node]) -> tuple[Node | None, int]:
        """Return the shortest run from the first part that may be a terminal, and its length; None
        and 1 if there is none."""
        plain: list[Node] = []
        for part in parts:
            # A rule is not merged, since it is also used in other contexts.
            node = None if isinstance(part, Rule) else regular(self._rules, part)
            if node is None:
                break
            plain.append(node)
            run = Cat(tuple(plain))
            is_new = len(plain) > 1 and run not in self._banned
            if is_new and _is_unbounded(run) and is_prefix_free(run):
                return run, len(plain)
        return None, 1


def _flat(node: Cat) -> list[Node]:
    return [p for part in node.parts for p in (_flat(part) if isinstance(part, Cat) else [part])]


def _is_unbounded(node: Node) -> bool:
    match node:
        case Cat(parts) | Or(parts):
            return any(map(_is_unbounded, parts))
        case Many(part, _, maximum):
            return maximum is None or _is_unbounded(part)
    return False


def _clashing(rules: Mapping[str, Node], runs: set[Node]) -> set[Node]:
    """Return the terminals that share a first character with another one."""
    terminals = {t for node in rules.values() for t in _terminals(node, runs)}
    firsts = {terminal: _first_characters(terminal) for terminal in terminals}
    return {
        one
        for one in runs & terminals
        if any(_overlap(firsts[one], firsts[other]) for other in terminals if other != one)
    }


def _terminals(node: Node, runs: set[Node]) -> Iterator[Node]:
    if node in runs or isinstance(node, Chars):
        yield node
        return
    match node:
        case Cat(parts) | Or(parts):
            for part in parts:
                yield from _terminals(part, runs)
        case Many(part):
            yield from _terminals(part, runs)


def _first_characters(node: Node) -> Ranges:
    automaton = _Automaton()
    first, _, _ = automaton.add(node)
    return union([pair for position in first for pair in automaton.sets[position]])


def _overlap(one: Ranges, other: Ranges) -> bool:
    return any(a <= d and c <= b for a, b in one for c, d in other)


class _TooLarge(Exception):
    """An expression has too many positions or states."""


class _Automaton:
    """The positions of an expression and their successors. Source: Glushkov 1961."""

    def __init__(self) -> None:
        self.sets: list[Ranges] = []
        self.following: list[set[int]] = []

    def add(self, node: Node) -> tuple[_Positions, _Positions, bool]:
        """Add a part; return its first and last positions and whether it may be empty. Raises:
        _TooLarge. Mutates: self"""
        match node:
            case Chars(ranges):
                if len(self.sets) >= MAX_POSITIONS:
                    raise _TooLarge
                self.sets.append(ranges)
                self.following.append(set())
                only = frozenset({len(self.sets) - 1})
                return only, only, False
            case Or(parts):
                positions = [self.add(part) for part in parts]
                firsts: _Positions = frozenset().union(*(first for first, _, _ in positions))
                lasts: _Positions = frozenset().union(*(last for _, last, _ in positions))
                return firsts, lasts, any(may_be_empty for _, _, may_be_empty in positions)
            case Cat(parts):
                return self._in_order(parts)
            case Many(part, minimum, maximum):
                return self._many(part, minimum, maximum)
        raise _TooLarge

    def _in_order(self, parts: Sequence[Node]) -> tuple[_Positions, _Positions, bool]:
        first: _Positions = frozenset()
        last: _Positions = frozenset()
        is_empty = True
        for part in parts:
            head, tail, may_be_empty = self.add(part)
            for position in last:
                self.following[position] |= head
            first = first | head if is_empty else first
            last = last | tail if may_be_empty else tail
            is_empty &= may_be_empty
        return first, last, is_empty

    def _many(
        self, part: Node, minimum: int, maximum: int | None
    ) -> tuple[_Positions, _Positions, bool]:
        if max(minimum, maximum or 0) > MAX_POSITIONS:
            raise _TooLarge
        if maximum is not None:
            once = Or((Cat(()), part))
            return self._in_order([*[part] * minimum, *[once] * (maximum - minimum)])
        first, last, may_be_empty = self._in_order([part] * max(1, minimum))
        head, tail = (first, last) if minimum < 2 else self.add(part)[:2]
        for position in last | tail:
            self.following[position] |= head
        return first, last | tail, may_be_empty or not minimum


def is_prefix_free(node: Node) -> bool:
    """Return whether no text of an expression is a prefix of another; False if that is unknown."""
    automaton = _Automaton()
    try:
        first, last, may_be_empty = automaton.add(node)
        return not may_be_empty and _ends_are_ends(automaton, first, last)
    except _TooLarge:
        return False


def going_on(node: Node) -> Ranges:
    """Return the characters after which any text of an expression is another, longer one; none if
    that is unknown."""
    automaton = _Automaton()
    try:
        first, last, may_be_empty = automaton.add(node)
    except _TooLarge:
        return ()
    nexts = [automaton.following[end] for end in last] + [first] * may_be_empty
    sets = [[pair for p in more if p in last for pair in automaton.sets[p]] for more in nexts]
    return outside(union([pair for found in sets for pair in outside(union(found))]))


def _ends_are_ends(automaton: _Automaton, first: _Positions, last: _Positions) -> bool:
    """Return whether nothing may follow an end of a text. Raises: _TooLarge"""
    cuts = sorted({cut for ranges in automaton.sets for a, b in ranges for cut in (a, b + 1)})
    pending, seen = [first], {first}
    while pending:
        open_now = pending.pop()
        for code in cuts:
            read = {p for p in open_now if any(a <= code <= b for a, b in automaton.sets[p])}
            nexts = frozenset().union(*(automaton.following[p] for p in read))
            if nexts and read & last:
                return False
            if nexts and nexts not in seen:
                seen.add(nexts)
                pending.append(nexts)
        if len(seen) > MAX_STATES:
            raise _TooLarge
    return True
