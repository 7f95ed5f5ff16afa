"""Regular expressions as automata: which texts match, what two expressions share, what one leaves.

By derivatives: what is left of an expression behind a character is an expression again, and
expressions that say the same are kept equal, so that there are finitely many. Everything is
bounded; beyond it is Undecided. Source: Brzozowski, Derivatives of Regular Expressions (1964);
Owens, Reppy, Turon, Regular-expression derivatives re-examined (2009).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from dovetail.interfaces.structured_output import InvalidConstraint
from dovetail.structured_output.regex import (
    ANY,
    ANYTHING,
    LAST,
    Cat,
    Chars,
    Edge,
    Many,
    Node,
    Or,
    Ranges,
    Rule,
    outside,
    union,
)
from dovetail.structured_output.regex_reader import found_within

MAX_STATES = 300
MAX_PARTS = 4_000
"""Parts of one expression, and of one that is written from an automaton."""
MAX_WORK = 500_000
"""Parts of expressions that are walked, for one schema: less than a second."""
_NONE, _EMPTY = Or(()), Cat(())


class Undecided(InvalidConstraint):
    """It takes too much to tell. Where nobody decides otherwise the constraint is refused."""


class Effort:
    """Counts the work on one schema."""

    def __init__(self, most: int = MAX_WORK) -> None:
        self._left = most

    def spend(self, count: int) -> None:
        """Take so much work. Raises: Undecided when there is none left"""
        self._left -= count
        if self._left < 0:
            raise Undecided("the expressions take too long")


@lru_cache(maxsize=512)
def searched(pattern: str) -> Node:
    """Return the texts in which a schema's pattern finds something. Raises: Undecided

    Lookahead is read at the beginning of an anchored pattern: it restricts the whole text.
    """
    heads, rest = lookaheads(pattern)
    try:
        node: Node | None = found_within(f"^(?:{rest})" if heads else rest)
        effort = Effort()
        for is_wanted, inner in heads:
            part = found_within(f"^(?:{inner})")
            if node is not None:
                node = shared(node, part, effort) if is_wanted else left(node, part, effort)
    except InvalidConstraint as error:
        raise Undecided(str(error)) from error
    return _NONE if node is None else node


def lookaheads(pattern: str) -> tuple[list[tuple[bool, str]], str]:
    """Return what an anchored pattern looks ahead for (wanted or not), and the rest of it."""
    found: list[tuple[bool, str]] = []
    if not pattern.startswith(("^(?=", "^(?!")):
        return found, pattern
    at = 1
    while pattern.startswith(("(?=", "(?!"), at):
        end = _group_end(pattern, at)
        if end is None:
            return [], pattern
        found.append((pattern[at + 2] == "=", pattern[at + 3 : end]))
        at = end + 1
    rest = pattern[at:]
    # An alternative at the top would begin without what stands before it.
    return ([], pattern) if _group_end(f"({rest})", 0, stop="|") is None else (found, rest)


def _group_end(pattern: str, start: int, stop: str = "") -> int | None:
    """Return where the group that begins here ends; None if it does not, or `stop` comes first."""
    depth, at, is_set = 0, start, False
    while at < len(pattern):
        letter = pattern[at]
        if letter == "\\":
            at += 1
        elif is_set:
            is_set = letter != "]"
        elif letter == "[":
            is_set = True
            at += pattern.startswith(("]", "^]"), at + 1) * (1 + pattern.startswith("^", at + 1))
        elif letter == "(":
            depth += 1
        elif letter == ")":
            depth -= 1
            if depth == 0:
                return at
        elif letter == stop and depth == 1:
            return None
        at += 1
    return None


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
    """Return the texts of one that the other does not match, None if none. Raises: Undecided"""
    return _Automaton((one, other), lambda ends: ends[0] and not ends[1], effort).expression()


def are_disjoint(one: Node, other: Node, effort: Effort) -> bool:
    """Return whether no text matches both. Raises: Undecided"""
    return not _Automaton((one, other), all, effort).alive[0]


def has_texts(node: Node, least: int, effort: Effort) -> bool:
    """Return whether an expression matches at least `least` texts. Raises: Undecided"""
    return _Automaton((node,), all, effort).num_texts(least) >= least


def other_texts(node: Node, effort: Effort) -> Node | None:
    """Return every text that an expression does not match, None if none. Raises: Undecided"""
    return left(ANYTHING, node, effort)


def _cat(parts: Sequence[Node]) -> Node:
    made: list[Node] = []
    for part in parts:
        if part == _NONE:
            return _NONE
        made += part.parts if isinstance(part, Cat) else (part,)
    return made[0] if len(made) == 1 else Cat(tuple(made))


def _or(parts: Sequence[Node]) -> Node:
    made: dict[Node, None] = {}
    found: Ranges = ()
    for part in parts:
        for one in part.parts if isinstance(part, Or) else (part,):
            if isinstance(one, Chars):
                found = union([*found, *one.ranges])
            else:
                made[one] = None
    if found:
        made[Chars(found)] = None
    if ANYTHING in made:
        return ANYTHING
    kept = sorted(made, key=_order)
    return kept[0] if len(kept) == 1 else Or(tuple(kept))


@lru_cache(maxsize=4096)
def _order(node: Node) -> str:
    return repr(node)


def _may_end(node: Node) -> bool:
    match node:
        case Cat(parts):
            return all(map(_may_end, parts))
        case Or(parts):
            return any(map(_may_end, parts))
        case Many(part, least):
            return least == 0 or _may_end(part)
    return False


def _size(node: Node) -> int:
    match node:
        case Cat(parts) | Or(parts):
            return 1 + sum(map(_size, parts))
        case Many(part):
            return 1 + _size(part)
    return 1


def _behind(node: Node, code: int, effort: Effort) -> Node:
    made = _derivative(node, code)
    size = _size(made)
    effort.spend(size)
    if size > MAX_PARTS:
        raise Undecided("the expression grows too long")
    return made


def _derivative(node: Node, code: int) -> Node:
    """Return what must follow a character."""
    match node:
        case Chars(found):
            return _EMPTY if any(a <= code <= b for a, b in found) else _NONE
        case Or(parts):
            return _or([_derivative(part, code) for part in parts])
        case Cat(parts):
            made = []
            for number, part in enumerate(parts):
                made.append(_cat([_derivative(part, code), *parts[number + 1 :]]))
                if not _may_end(part):
                    break
            return _or(made)
        case Many(part, least, most):
            if most == 0:
                return _NONE
            again = Many(part, max(0, least - 1), None if most is None else most - 1)
            rest = _EMPTY if again.most == 0 else again
            return _cat([_derivative(part, code), rest])
        case Edge() | Rule():
            raise Undecided("an anchor stands within the expression")


def _firsts(node: Node, found: set[int]) -> None:
    """Collect where the sets of characters that may come first begin and end. Mutates: found"""
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
                if not _may_end(part):
                    break
        case Many(part):
            _firsts(part, found)


class _Automaton:
    """The states of several expressions side by side; state 0 is the beginning."""

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
        """Return for each state whether an end can be reached."""
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

    def num_texts(self, most: int) -> int:
        """Return how many texts lead to an end, `most` if there are more."""
        counts = [int(end) for end in self.is_end]  # of texts of one length, by where they begin
        found = 0
        for _ in self.steps:
            found += counts[0]
            counts = self._one_longer(counts, most)
        for _ in self.steps:  # a text of more characters than states goes in a circle
            if counts[0]:
                return most
            counts = self._one_longer(counts, most)
        return min(found, most)

    def _one_longer(self, counts: list[int], most: int) -> list[int]:
        """Return how many texts with one character more there are, by where they begin."""
        return [
            min(most, sum(_size_of(runs) * counts[target] for target, runs in targets.items()))
            for targets in self.steps
        ]

    def expression(self) -> Node | None:
        """Return the expression of the automaton, states eliminated one by one."""
        if not self.alive[0]:
            return None
        names = self._classes()
        final = -1
        ways: dict[int, dict[int, Node]] = {-2: {names[0]: _EMPTY}, final: {}}
        for state, targets in enumerate(self.steps):
            if not self.alive[state] or names[state] in ways:
                continue
            made: dict[int, list[Node]] = {}
            for target, found in targets.items():
                runs = _characters(found)
                if self.alive[target] and runs:
                    made.setdefault(names[target], []).append(Chars(runs))
            ways[names[state]] = {target: _or(parts) for target, parts in made.items()}
            if self.is_end[state]:
                ways[names[state]][final] = _EMPTY
        for state in sorted(set(ways) - {-2, final}, key=lambda s: len(ways[s])):
            _eliminate(ways, state)
        return ways[-2].get(final)

    def _classes(self) -> list[int]:
        """Return a number for each state; those that go on alike have the same (Moore)."""
        names = [
            int(end) + 2 * int(alive) for end, alive in zip(self.is_end, self.alive, strict=True)
        ]
        while True:
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
    """Return runs without halves of surrogate pairs."""
    return outside(outside(union(found)))


def _eliminate(ways: dict[int, dict[int, Node]], state: int) -> None:
    """Take a state out; what led through it leads around. Mutates: ways"""
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
            if _size(targets[target]) > MAX_PARTS:
                raise Undecided("the expression grows too long")


def _starred(loop: Node) -> Node:
    return ANYTHING if loop == Chars(ANY) else Many(loop, 0, None)
