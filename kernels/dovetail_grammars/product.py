"""Product(rules, automaton): the texts of a grammar that an automaton takes.

Most parts lead from a state to one other state, and remain as they are.
Source: Bar-Hillel, Perles, Shamir 1961.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from dovetail_grammars.errors import InvalidConstraint
from dovetail_grammars.gbnf_reader import usable
from dovetail_grammars.json_grammar import ROOT
from dovetail_grammars.regex import NOTHING, Cat, Chars, Many, Node, Or, Ranges, Rule

MAX_WORK = 200_000
"""The parts that are looked at: less than a second."""
MAX_COUNT = 200
"""A part that leads to several states is repeated this often at most."""
_Ways = dict[int, Node]
"""The states that a part leads to, each with the texts that lead there."""


class Automaton(Protocol):
    """States are numbers; 0 is the first."""

    def steps(self, state: int, found: Ranges) -> Mapping[int, Ranges]:
        """Return the states after a character of a set, and the characters that lead there."""
        ...

    def after(self, name: str, state: int) -> int:
        """Return the state after the text of a rule, which alone leads to this one."""
        ...


class Product:
    """Each rule becomes one for every pair of states that its texts may lead between."""

    def __init__(self, rules: Mapping[str, Node], automaton: Automaton) -> None:
        self._given = rules
        self._automaton = automaton
        self._work = 0
        self._ends: dict[tuple[str, int], set[int]] = {}
        self._named: dict[object, str] = {}
        self._rules: dict[str, Node] = {}
        self._find_ends()

    def _find_ends(self) -> None:
        """Find the states that every rule leads to from every state. Mutates: self"""
        self._ends[ROOT, 0] = set()
        has_grown = True
        while has_grown:
            before = len(self._ends), sum(map(len, self._ends.values()))
            for (name, state), known in list(self._ends.items()):
                known |= self._after(self._given[name], {state})
            has_grown = before != (len(self._ends), sum(map(len, self._ends.values())))

    def _spend(self) -> None:
        """Count a part. Raises: InvalidConstraint beyond the limit. Mutates: self"""
        self._work += 1
        if self._work > MAX_WORK:
            raise InvalidConstraint("the grammar is too large for what ends its texts")

    def _after(self, node: Node, states: set[int]) -> set[int]:
        """Return the states after any text of a part, from any of these states. Mutates: self"""
        self._spend()
        match node:
            case Chars(found):
                return {end for state in states for end in self._automaton.steps(state, found)}
            case Rule(name):
                ends = set().union(*(self._ends.setdefault((name, at), set()) for at in states))
                return {self._automaton.after(name, end) for end in ends}
            case Or(parts):
                return set().union(*(self._after(part, states) for part in parts))
            case Cat(parts):
                for part in parts:
                    states = self._after(part, states)
                return states
            case Many(part, minimum, maximum):
                return self._after_many(part, minimum, maximum, states)
        raise InvalidConstraint("a grammar has no anchors")

    def _after_many(
        self, part: Node, minimum: int, maximum: int | None, states: set[int]
    ) -> set[int]:
        for _ in range(minimum):
            states = self._after(part, states)
        found, count = set(states), minimum
        while states and (maximum is None or count < maximum):
            states = self._after(part, states) - found
            found |= states
            count += 1
        return found

    def rules(self) -> dict[str, Node] | None:
        """Return the rules, None if no text is left."""
        roots = self.ways(Rule(ROOT), 0)
        for (name, state), ends in self._ends.items():
            for end, node in self.ways(self._given[name], state).items() if ends else ():
                self._rules[_pair(name, state, end)] = node
        return usable({**self._rules, ROOT: _or(list(roots.values()))}) if roots else None

    def ways(self, node: Node, state: int) -> _Ways:
        """Return the states that a part leads to from a state. Mutates: self"""
        self._spend()
        match node:
            case Chars(found):
                return {
                    end: Chars(part) for end, part in self._automaton.steps(state, found).items()
                }
            case Rule(name):
                ends = sorted(self._ends[name, state])
                after = self._automaton.after
                return _merged([(after(name, e), Rule(_pair(name, state, e))) for e in ends])
            case Or(parts):
                return _merged([pair for part in parts for pair in self.ways(part, state).items()])
            case Cat(parts):
                return self._in_order(parts, state)
            case Many():
                return self._many(node, state)
        raise InvalidConstraint("a grammar has no anchors")

    def _in_order(self, parts: Sequence[Node], state: int) -> _Ways:
        """Return the ways of parts in sequence: those that lead to one state alone, then others."""
        lead: Node = NOTHING
        while parts:
            first, rest = parts[0], parts[1:]
            if isinstance(first, Cat):
                parts = (*first.parts, *rest)
                continue
            if isinstance(first, Many) and set(self.ways(first.part, state)) - {state}:
                return self._led(lead, self._repeated(first, rest, state))
            ways = self.ways(first, state)
            if len(ways) != 1 and isinstance(first, Or):
                each = (self._in_order((part, *rest), state).items() for part in first.parts)
                return self._led(lead, _merged([pair for pairs in each for pair in pairs]))
            if len(ways) != 1:
                return self._led(lead, self._branched(ways, rest))
            [(state, node)] = ways.items()
            lead, parts = _cat(lead, node), rest
        return {state: lead}

    def _branched(self, ways: _Ways, rest: Sequence[Node]) -> _Ways:
        """Return the ways of a part with these ways and of the parts after it. Mutates: self"""
        found: list[tuple[int, Node]] = []
        for at, node in ways.items():
            following = self._in_order(rest, at)
            found += [(end, _cat(node, self._rule(more))) for end, more in following.items()]
        return _merged(found)

    def _led(self, lead: Node, ways: _Ways) -> _Ways:
        lead = self._rule(lead) if len(ways) > 1 else lead
        return {end: _cat(lead, node) for end, node in ways.items()}

    def _rule(self, node: Node) -> Node:
        """Return a reference to a part that is used more than once. Mutates: self"""
        if isinstance(node, Rule | Chars) or node == NOTHING:
            return node
        name = self._named.setdefault(node, f"part-{len(self._named)}")
        self._rules[name] = node
        return Rule(name)

    def _many(self, many: Many, state: int) -> _Ways:
        once = self.ways(many.part, state)
        if set(once) - {state}:
            return self._repeated(many, (), state)
        found: _Ways = {end: Many(node, many.least, many.most) for end, node in once.items()}
        return found or ({} if many.least else {state: NOTHING})

    def _repeated(self, many: Many, rest: Sequence[Node], state: int) -> _Ways:
        """Return the ways of a repeated part that leads to several states, and of the parts after
        it. Mutates: self. Raises: InvalidConstraint"""
        if max(many.least, many.most or 0) > MAX_COUNT:
            raise InvalidConstraint(
                f"a part that may hold what ends a text is repeated more than {MAX_COUNT} times"
            )
        left = None if many.most is None else many.most - many.least
        if many.least:
            more = () if left == 0 else (Many(many.part, 0, left),)
            return self._in_order((*(many.part,) * many.least, *more, *rest), state)
        ends = self._after(Cat((many, *rest)), {state})
        return {end: self._loop(many.part, left, tuple(rest), state, end) for end in sorted(ends)}

    def _loop(
        self, part: Node, left: int | None, rest: tuple[Node, ...], state: int, end: int
    ) -> Node:
        """Return up to `left` times a part and then the rest, between two states. Mutates: self"""
        key = part, left, rest, state, end
        if key in self._named:
            return Rule(self._named[key])
        self._named[key] = name = f"loop-{len(self._named)}"
        over = self._in_order(rest, state)
        ways = [over[end]] if end in over else []
        fewer = None if left is None else left - 1
        for at, node in self.ways(part, state).items() if left != 0 else ():
            if end in self._after(Cat((Many(part, 0, fewer), *rest)), {at}):
                ways.append(_cat(node, self._loop(part, fewer, rest, at, end)))
        self._rules[name] = _or(ways)
        return Rule(name)


def _pair(name: str, state: int, end: int) -> str:
    return f"{name}-{state}-{end}"


def _merged(pairs: Sequence[tuple[int, Node]]) -> _Ways:
    found: dict[int, list[Node]] = {}
    for end, node in pairs:
        found.setdefault(end, []).append(node)
    return {end: _or(nodes) for end, nodes in found.items()}


def _or(nodes: Sequence[Node]) -> Node:
    return nodes[0] if len(nodes) == 1 else Or(tuple(nodes))


def _cat(one: Node, other: Node) -> Node:
    return other if one == NOTHING else one if other == NOTHING else Cat((one, other))
