"""Regular expressions as automata: matching, intersection, difference and complement.

Uses derivatives: the rest of an expression after a character is again an expression, and equivalent
expressions are normalized to be equal, so that there are finitely many. Everything has a limit;
beyond it, Undecided is raised. Source: Brzozowski, Derivatives of Regular Expressions (1964);
Owens, Reppy, Turon, Regular-expression derivatives re-examined (2009).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from dovetail_grammars.errors import InvalidConstraint
from dovetail_grammars.regex import (
    ANY,
    ANYTHING,
    LAST,
    Cat,
    Chars,
    Edge,
    Look,
    Many,
    Node,
    Or,
    Ranges,
    Rule,
    outside,
    union,
)
from dovetail_grammars.regex_reader import found_within

MAX_STATES = 300
MAX_PARTS = 4_000
"""Maximum number of parts in one expression, also in one made from an automaton."""
MAX_WORK = 500_000
"""The work limit for one schema, in parts of expressions: less than a second."""
_NONE, _EMPTY = Or(()), Cat(())


class Undecided(InvalidConstraint):
    """Deciding takes too much work. If nothing else decides, the constraint is refused."""


class Effort:
    """The work budget of one schema."""

    def __init__(self, max_work: int = MAX_WORK) -> None:
        self._left = max_work

    def spend(self, count: int) -> None:
        """Use up some of the budget. Raises: Undecided when none is left"""
        self._left -= count
        if self._left < 0:
            raise Undecided("the expressions take too long")


@lru_cache(maxsize=512)
def searched(pattern: str) -> Node:
    """Return the texts in which a schema's pattern finds a match. Raises: Undecided"""
    try:
        return found_within(pattern)
    except InvalidConstraint as error:
        raise Undecided(str(error)) from error


@lru_cache(maxsize=4096)
def looks(node: Node) -> bool:
    """Return whether an expression contains lookahead."""
    match node:
        case Look():
            return True
        case Cat(parts) | Or(parts):
            return any(map(looks, parts))
        case Many(part):
            return looks(part)
    return False


def without_looks(node: Node, effort: Effort) -> Node:
    """Return an equivalent expression without lookahead. Raises: Undecided"""
    if not looks(node):
        return node
    return _Automaton((node,), all, effort).expression() or _NONE


def conditions(node: Node, effort: Effort) -> list[Node]:
    """Return expressions without lookahead that together match the same texts: what follows the
    lookaheads at the start, then each lookahead's own. Raises: Undecided"""
    parts = list(node.parts) if isinstance(node, Cat) else [node]
    found: list[Node] = []
    while parts and isinstance(seen := parts[0], Look):
        del parts[0]
        part = without_looks(seen.part, effort)
        found.append(_told_apart(part) if seen.is_wanted else _opposite(part, effort))
    return [without_looks(Cat(tuple(parts)), effort), *found]


def _told_apart(node: Node) -> Node:
    """Return an equivalent expression that is deterministic, since libraries try all ways to match
    "a run of characters, then one of them, then anything"."""
    match node:
        case Cat((Many(Chars(runs), minimum, maximum), Chars(end), rest)) if rest == ANYTHING:
            others = outside(union([*outside(runs), *end]))
            more = None if maximum is None else maximum - minimum
            head = Many(Chars(runs), minimum, minimum)
            return Cat((head, Many(Chars(others), 0, more), Chars(end), ANYTHING))
    return node


def _opposite(node: Node, effort: Effort) -> Node:
    """Return the texts that an expression does not match. "At least N characters" has no automaton
    of a useful size, so it is complemented directly. Raises: Undecided"""
    match node:
        case Cat((Many(Chars(found), minimum, maximum), *rest)) if minimum and (
            rest == [ANYTHING] or (not rest and maximum is None)
        ):
            fewer, other = Many(Chars(found), 0, minimum - 1), outside(found)
            ended = Cat((Many(Chars(found), 0, None), Chars(other), ANYTHING))
            early = Cat((fewer, Chars(other), ANYTHING)) if rest else ended
            return Or((fewer, early)) if other else fewer
    return other_texts(node, effort) or _NONE


def matches(node: Node, text: str, effort: Effort) -> bool:
    """Return whether an expression matches a whole text. Raises: Undecided"""
    for letter in text:
        node = _behind(node, ord(letter), effort)
        if node == _NONE:
            return False
    return _may_end(node)


def shared(one: Node, other: Node, effort: Effort) -> Node | None:
    """Return the texts that both match, None if there are none. Raises: Undecided"""
    return _Automaton((one, other), all, effort).expression()


def left(one: Node, other: Node, effort: Effort) -> Node | None:
    """Return the texts that only the first matches, None if none. Raises: Undecided"""
    return _Automaton((one, other), lambda ends: ends[0] and not ends[1], effort).expression()


def are_disjoint(one: Node, other: Node, effort: Effort) -> bool:
    """Return whether no text matches both. Raises: Undecided"""
    return not _Automaton((one, other), all, effort).alive[0]


def has_texts(node: Node, minimum: int, effort: Effort) -> bool:
    """Return whether an expression matches at least `minimum` different texts. Raises: Undecided"""
    return _Automaton((node,), all, effort).num_texts(minimum) >= minimum


def other_texts(node: Node, effort: Effort) -> Node | None:
    """Return the texts that an expression does not match, None if none. Raises: Undecided"""
    return left(ANYTHING, node, effort)


def _cat(parts: Sequence[Node]) -> Node:
    joined: list[Node] = []
    for part in parts:
        if part == _NONE:
            return _NONE
        for one in part.parts if isinstance(part, Cat) else (part,):
            if not _is_known(one, joined):
                joined.append(one)
    return joined[0] if len(joined) == 1 else Cat(tuple(joined))


def _is_known(node: Node, joined: list[Node]) -> bool:
    """Return whether the same lookahead is already at this position."""
    if isinstance(node, Look):
        for other in reversed(joined):
            if other == node or not isinstance(other, Look):
                return other == node
    return False


def _or(parts: Sequence[Node]) -> Node:
    choices: dict[Node, None] = {}
    found: Ranges = ()
    for part in parts:
        for one in part.parts if isinstance(part, Or) else (part,):
            if isinstance(one, Chars):
                found = union([*found, *one.ranges])
            else:
                choices[one] = None
    if found:
        choices[Chars(found)] = None
    if ANYTHING in choices:
        return ANYTHING
    ordered = sorted(choices, key=_order)
    return ordered[0] if len(ordered) == 1 else Or(tuple(ordered))


@lru_cache(maxsize=4096)
def _order(node: Node) -> str:
    return repr(node)


def _may_end(node: Node) -> bool:
    match node:
        case Cat(parts):
            return all(map(_may_end, parts))
        case Or(parts):
            return any(map(_may_end, parts))
        case Many(part, minimum):
            return minimum == 0 or _may_end(part)
        case Look(part, is_wanted):
            return _may_end(part) == is_wanted
    return False


def _size(node: Node) -> int:
    match node:
        case Cat(parts) | Or(parts):
            return 1 + sum(map(_size, parts))
        case Many(part) | Look(part):
            return 1 + _size(part)
    return 1


def _behind(node: Node, code: int, effort: Effort) -> Node:
    derivative = _derivative(node, code)
    size = _size(derivative)
    effort.spend(size)
    if size > MAX_PARTS:
        raise Undecided("the expression grows too long")
    return derivative


def _derivative(node: Node, code: int) -> Node:
    """Return the derivative: what must follow a character."""
    if looks(node):
        return _derivative_of_looking(node, code)
    match node:
        case Chars(found):
            return _EMPTY if any(a <= code <= b for a, b in found) else _NONE
        case Or(parts):
            return _or([_derivative(part, code) for part in parts])
        case Cat(parts):
            choices = []
            for number, part in enumerate(parts):
                choices.append(_cat([_derivative(part, code), *parts[number + 1 :]]))
                if not _may_end(part):
                    break
            return _or(choices)
        case Many(part, minimum, maximum):
            if maximum == 0:
                return _NONE
            again = Many(part, max(0, minimum - 1), None if maximum is None else maximum - 1)
            rest = _EMPTY if again.most == 0 else again
            return _cat([_derivative(part, code), rest])
        case Edge() | Rule() | Look():
            raise Undecided("an anchor stands within the expression")


def _derivative_of_looking(node: Node, code: int) -> Node:
    """Return what must follow a character, for an expression with lookahead."""
    first, *rest = node.parts if isinstance(node, Cat) else (node,)
    if isinstance(first, Look):
        seen = _seen(_derivative(first.part, code), is_wanted=first.is_wanted)
        return _cat([seen, _derivative(_cat(rest), code)])
    if not looks(first):
        choices = [_cat([_derivative(first, code), *rest])]
        return _or([*choices, _derivative(_cat(rest), code)] if _may_end(first) else choices)
    return _or([_derivative(_cat([way, *rest]), code) for way in _ways(first)])


def _seen(node: Node, *, is_wanted: bool) -> Node:
    if node in (_NONE, ANYTHING):
        return _EMPTY if (node == ANYTHING) is is_wanted else _NONE
    return Look(node, is_wanted)


def _ways(node: Node) -> tuple[Node, ...]:
    """Return the ways to start with a part that has lookahead. Raises: Undecided"""
    match node:
        case Or(parts):
            return parts
        case Many(_, _, 0):
            return (_EMPTY,)
        case Many(part, minimum, maximum):
            if _may_be_empty(part):
                raise Undecided("what is repeated looks ahead, and may be empty")
            again = Many(part, max(0, minimum - 1), None if maximum is None else maximum - 1)
            return (_cat([part, again]),) if minimum else (_EMPTY, _cat([part, again]))
    return (node,)


def _may_be_empty(node: Node) -> bool:
    """Return whether a part may match without consuming a character, whatever follows."""
    match node:
        case Cat(parts):
            return all(map(_may_be_empty, parts))
        case Or(parts):
            return any(map(_may_be_empty, parts))
        case Many(part, minimum):
            return minimum == 0 or _may_be_empty(part)
    return isinstance(node, Look)


def _firsts(node: Node, found: set[int]) -> None:
    """Collect the boundaries of the sets of possible first characters. Mutates: found"""
    match node:
        case Chars(runs):
            for first, last in runs:
                found |= {first, last + 1}
        case Or(parts):
            for part in parts:
                _firsts(part, found)
        case Cat(parts):
            for part in parts:
                _firsts(part, found)
                if not _may_end(part) and not looks(part):
                    break
        case Many(part) | Look(part):
            _firsts(part, found)


class _Automaton:
    """The product automaton of several expressions; state 0 is the start."""

    def __init__(
        self,
        nodes: tuple[Node, ...],
        ends: Callable[[Sequence[bool]], bool],
        effort: Effort,
    ) -> None:
        self._effort = effort
        self.steps: list[dict[int, list[tuple[int, int]]]] = []
        self.is_end: list[bool] = []
        self._explore(nodes, ends)
        self.alive = self._alive()

    def _explore(self, nodes: tuple[Node, ...], ends: Callable[[Sequence[bool]], bool]) -> None:
        numbers: dict[tuple[Node, ...], int] = {nodes: 0}
        pending = [nodes]
        for state in pending:
            self.is_end.append(ends([_may_end(node) for node in state]))
            bounds: set[int] = {0}
            for node in state:
                _firsts(node, bounds)
            cuts = sorted(bounds - {LAST + 1})
            targets: dict[int, list[tuple[int, int]]] = {}
            for at, first in enumerate(cuts):
                last = cuts[at + 1] - 1 if at + 1 < len(cuts) else LAST
                following = tuple(_behind(node, first, self._effort) for node in state)
                if following not in numbers:
                    if len(numbers) >= MAX_STATES:
                        raise Undecided("the expressions have too many states")
                    numbers[following] = len(numbers)
                    pending.append(following)
                targets.setdefault(numbers[following], []).append((first, last))
            self.steps.append(targets)

    def _alive(self) -> list[bool]:
        """Return for each state whether an accepting state can be reached."""
        sources: dict[int, list[int]] = {}
        for source, targets in enumerate(self.steps):
            for target, found in targets.items():
                if _characters(found):
                    sources.setdefault(target, []).append(source)
        alive = list(self.is_end)
        pending = [state for state, ends in enumerate(alive) if ends]
        while pending:
            for source in sources.get(pending.pop(), ()):
                if not alive[source]:
                    alive[source] = True
                    pending.append(source)
        return alive

    def num_texts(self, limit: int) -> int:
        """Return the number of accepted texts, at most `limit`."""
        counts = [int(end) for end in self.is_end]  # texts of one length, by their start state
        found = 0
        for _ in self.steps:
            found += counts[0]
            counts = self._one_longer(counts, limit)
        for _ in self.steps:  # a text with more characters than there are states has a loop
            if counts[0]:
                return limit
            counts = self._one_longer(counts, limit)
        return min(found, limit)

    def _one_longer(self, counts: list[int], limit: int) -> list[int]:
        """Return the number of texts with one more character, by their start state."""
        return [
            min(limit, sum(_size_of(runs) * counts[target] for target, runs in targets.items()))
            for targets in self.steps
        ]

    def expression(self) -> Node | None:
        """Return the automaton's expression, by eliminating states one by one."""
        if not self.alive[0]:
            return None
        names = self._classes()
        final = -1
        ways: dict[int, dict[int, Node]] = {-2: {names[0]: _EMPTY}, final: {}}
        for state, targets in enumerate(self.steps):
            if not self.alive[state] or names[state] in ways:
                continue
            edges: dict[int, list[Node]] = {}
            for target, found in targets.items():
                runs = _characters(found)
                if self.alive[target] and runs:
                    edges.setdefault(names[target], []).append(Chars(runs))
            ways[names[state]] = {target: _or(parts) for target, parts in edges.items()}
            if self.is_end[state]:
                ways[names[state]][final] = _EMPTY
        return _eliminated(ways, self._effort).get(final)

    def _classes(self) -> list[int]:
        """Return a class number per state; equivalent states share one (Moore)."""
        names = [
            int(end) + 2 * int(alive) for end, alive in zip(self.is_end, self.alive, strict=True)
        ]
        while True:
            self._effort.spend(len(names))
            kinds: dict[object, int] = {}
            fresh = []
            for state, targets in enumerate(self.steps):
                runs: dict[int, list[tuple[int, int]]] = {}
                for target, found in targets.items():
                    runs.setdefault(names[target], []).extend(found)
                key = (names[state], frozenset((k, union(v)) for k, v in runs.items()))
                fresh.append(kinds.setdefault(key, len(kinds)))
            if len(kinds) == len(set(names)):
                return fresh
            names = fresh


def _size_of(found: list[tuple[int, int]]) -> int:
    return sum(last - first + 1 for first, last in _characters(found))


def _characters(found: list[tuple[int, int]]) -> Ranges:
    """Return runs without surrogates."""
    return outside(outside(union(found)))


def _eliminated(ways: dict[int, dict[int, Node]], effort: Effort) -> dict[int, Node]:
    """Return the expressions from the start to the end. States with the fewest outgoing transitions
    go first, which suits libraries best; if that grows too long, shortest first.
    """
    pending = set(ways) - {-2, -1}
    graph = {state: dict(targets) for state, targets in ways.items()}
    try:
        for state in sorted(pending, key=lambda s: len(ways[s])):
            _eliminate(graph, state, effort)
        return graph[-2]
    except Undecided:
        graph = ways
    while pending:
        state = min(pending, key=lambda s: (_weight(graph, s), s))
        pending.remove(state)
        _eliminate(graph, state, effort)
    return graph[-2]


def _weight(ways: dict[int, dict[int, Node]], state: int) -> int:
    """Return how much longer the expressions become when a state is eliminated."""
    inward = [
        _size(targets[state]) for s, targets in ways.items() if s != state and state in targets
    ]
    outward = [_size(part) for target, part in ways[state].items() if target != state]
    loop = _size(ways[state][state]) if state in ways[state] else 0
    return (
        sum(inward) * (len(outward) - 1)
        + sum(outward) * (len(inward) - 1)
        + loop * (len(inward) * len(outward) - 1)
    )


def _eliminate(ways: dict[int, dict[int, Node]], state: int, effort: Effort) -> None:
    """Eliminate a state, with its paths added to the others. Mutates: ways"""
    outward = ways.pop(state)
    loop = outward.pop(state, None)
    again = [] if loop is None else [_starred(loop)]
    for targets in ways.values():
        inward = targets.pop(state, None)
        if inward is None:
            continue
        for target, part in outward.items():
            way = _cat([inward, *again, part])
            targets[target] = _or([targets[target], way]) if target in targets else way
            size = _size(targets[target])
            effort.spend(size)
            if size > MAX_PARTS:
                raise Undecided("the expression grows too long")


def _starred(loop: Node) -> Node:
    return ANYTHING if loop == Chars(ANY) else Many(loop, 0, None)
