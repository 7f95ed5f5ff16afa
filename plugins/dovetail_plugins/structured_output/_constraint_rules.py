"""rules_of(constraint): a constraint as rules over characters, for backends that read no
grammar language.

Lark grammars are refused, and so are constraints with special tokens, which are not characters.
"""

from __future__ import annotations

from collections.abc import Iterable

from dovetail.interfaces.data.constraint import (
    Choice,
    Concat,
    Constraint,
    FreeText,
    Grammar,
    JsonSchema,
    Literal,
    Regex,
    Repeat,
)
from dovetail.interfaces.structured_output import InvalidConstraint
from dovetail_grammars.avoiding import avoiding
from dovetail_grammars.gbnf_reader import LANGUAGES, read_gbnf
from dovetail_grammars.json_grammar import ROOT, JsonGrammar
from dovetail_grammars.regex import Cat, Chars, Many, Node, Or, Ranges, Rule, literal, outside
from dovetail_grammars.regex_reader import whole


def rules_of(
    constraint: Constraint, special: Iterable[str], depth: int | None = None
) -> dict[str, Node]:
    """Return the rules of a constraint; `rules[ROOT]` is the whole. Raises: InvalidConstraint

    With a depth there is only the rule ROOT, and values nested deeper are left out.
    """
    maker = _Maker(tuple(special), depth)
    root = maker.node(constraint)
    return {**maker.rules, ROOT: root}


class _Maker:
    def __init__(self, special: tuple[str, ...], depth: int | None) -> None:
        self._special = special
        self._depth = depth
        self._num_parts = 0
        self.rules: dict[str, Node] = {}

    def node(self, constraint: Constraint) -> Node:
        match constraint:
            case Literal(text):
                if any(word in text for word in self._special):
                    raise InvalidConstraint(f"{text[:80]!r} contains special tokens")
                return literal(text)
            case Regex(regex):
                return whole(regex)
            case JsonSchema(schema, whitespace):
                rules = JsonGrammar(schema, whitespace, self._depth).rules
                return self._added(rules)
            case FreeText(without, grammar):
                if self._depth is not None:
                    raise InvalidConstraint("free text is not supported")
                return self._added(free_rules(without, grammar))
            case Concat(parts):
                return Cat(tuple(map(self.node, parts)))
            case Choice(parts):
                return Or(tuple(map(self.node, parts)))
            case Repeat(part, minimum, maximum):
                return Many(self.node(part), minimum, maximum)
            case Grammar(text, language) if language in LANGUAGES and self._depth is None:
                return self._added(read_gbnf(text))
        raise InvalidConstraint("grammars of this language are not supported")

    def _added(self, rules: dict[str, Node]) -> Node:
        """Add rules under unique names; return their root."""
        prefix = f"p{self._num_parts}"
        self._num_parts += 1
        if self._depth is not None:
            return rules[ROOT]
        self.rules |= {f"{prefix}{name}": _renamed(node, prefix) for name, node in rules.items()}
        return Rule(f"{prefix}{ROOT}")


def _renamed(node: Node, prefix: str) -> Node:
    match node:
        case Rule(name):
            return Rule(prefix + name)
        case Cat(parts):
            return Cat(tuple(_renamed(part, prefix) for part in parts))
        case Or(parts):
            return Or(tuple(_renamed(part, prefix) for part in parts))
        case Many(part, minimum, maximum):
            return Many(_renamed(part, prefix), minimum, maximum)
    return node


def free_rules(without: tuple[str, ...], grammar: str = "") -> dict[str, Node]:
    """Return text without these words, of this grammar if there is one: one rule for every prefix
    of a word, as in an automaton. Raises: InvalidConstraint"""
    if grammar:
        return avoiding(read_gbnf(grammar), without)
    heads = sorted({word[:size] for word in without for size in range(len(word))} | {""})
    names = {head: f"f{index}" for index, head in enumerate(heads)}
    letters = sorted({letter for word in without for letter in word})
    rules: dict[str, Node] = {}
    for head in heads:
        targets: dict[str, list[tuple[int, int]]] = {}
        for letter in letters:
            text = head + letter
            if any(text.endswith(word) for word in without):
                continue
            longest = next(text[at:] for at in range(len(text) + 1) if text[at:] in names)
            targets.setdefault(longest, []).append((ord(letter), ord(letter)))
        rest: Ranges = outside(tuple((ord(letter), ord(letter)) for letter in letters))
        targets.setdefault("", []).extend(rest)
        parts = [
            Cat((Chars(tuple(sorted(found))), Rule(names[target])))
            for target, found in targets.items()
        ]
        rules[names[head]] = Or((*parts, Cat(())))
    return {**rules, ROOT: Rule(names[""])}
