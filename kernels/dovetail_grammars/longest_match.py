"""with_longest(rules, terminals): a terminal takes all that it can, as lexers have it.

What follows a terminal does not begin with a character that would go on with it: after the name
"ab", a "c" would be part of the name. Only one character is checked: checking more could refuse a
text that a lexer accepts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from dovetail_grammars.errors import InvalidConstraint
from dovetail_grammars.gbnf_reader import regular
from dovetail_grammars.lexemes import going_on
from dovetail_grammars.product import Product
from dovetail_grammars.regex import (
    NOTHING,
    Cat,
    Chars,
    Many,
    Node,
    Or,
    Ranges,
    Rule,
    outside,
    union,
)


def with_longest(rules: Mapping[str, Node], terminals: Collection[str]) -> dict[str, Node]:
    """Return the rules with these terminals as long as they can be. Raises: InvalidConstraint"""
    found, ends = dict(rules), dict[str, Ranges]()
    for name in terminals:
        whole = regular(rules, Rule(name))
        parts = _divided(whole) if whole is not None else []
        names = [f"{name}-{number}" for number in range(len(parts))]
        found |= dict(zip(names, (part for part, _ in parts), strict=True))
        found |= {name: Or(tuple(map(Rule, names)))} if names else {}
        ends |= {n: more for n, (_, more) in zip(names, parts, strict=True) if more}
    if not ends:
        return dict(rules)
    longest = Product(found, _Stops(ends)).rules()
    if longest is None:
        raise InvalidConstraint("no text of the grammar has its terminals as long as they can be")
    return longest


def _divided(node: Node) -> list[tuple[Node, Ranges]]:
    """Return a terminal, in two if it ends with a count of characters, which may be full or not;
    each with the characters that would go on with it."""
    match node:
        case Many(Chars(more) as one, minimum, maximum) if maximum and maximum > minimum:
            fewer = Many(one, minimum, maximum - 1) if maximum > 1 else NOTHING
            return [(fewer, more), (Many(one, maximum, maximum), ())]
        case Cat((*lead, last)):
            parts = _divided(last)
            if len(parts) > 1:
                return [(Cat((*lead, part)), more) for part, more in parts]
    return [(node, going_on(node))]


class _Stops:
    """A state is the set of characters that must not follow; none in state 0."""

    def __init__(self, ends: Mapping[str, Ranges]) -> None:
        self._sets: list[Ranges] = [(), *dict.fromkeys(ends.values())]
        self.states = {name: self._sets.index(found) for name, found in ends.items()}

    def steps(self, state: int, found: Ranges) -> Mapping[int, Ranges]:
        """Return the characters of a set that may follow."""
        left = outside(union([*outside(found), *self._sets[state]])) if state else found
        return {0: left} if left else {}

    def after(self, name: str, state: int) -> int:
        """Return the state after the text of a rule."""
        return self.states.get(name, state)
