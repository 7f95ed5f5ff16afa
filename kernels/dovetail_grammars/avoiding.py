"""avoiding(rules, words): the texts of a grammar that contain none of these words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from dovetail_grammars.errors import InvalidConstraint
from dovetail_grammars.gbnf_reader import inlined
from dovetail_grammars.json_grammar import ROOT
from dovetail_grammars.product import Product
from dovetail_grammars.regex import Node, Ranges, outside, union


def avoiding(rules: Mapping[str, Node], words: Sequence[str]) -> dict[str, Node]:
    """Return the rules without these words. Raises: InvalidConstraint if no text is left"""
    whole = inlined(rules)
    found = Product(rules if whole is None else {ROOT: whole}, _Words(words)).rules()
    if found is None:
        raise InvalidConstraint("every text of the grammar contains the text that ends it")
    return found


class _Words:
    """A state is the longest beginning of a word that the text ends with.

    Source: Aho, Corasick 1975.
    """

    def __init__(self, words: Sequence[str]) -> None:
        # A word that contains another one is found with it.
        self._words = [word for word in words if not any(w in word for w in words if w != word)]
        heads = {word[:size] for word in self._words for size in range(len(word))} | {""}
        self._heads = sorted(heads, key=lambda head: (len(head), head))
        self._numbers = {head: number for number, head in enumerate(self._heads)}
        self._letters = sorted({ord(letter) for word in self._words for letter in word})
        self._steps: dict[tuple[int, Ranges], dict[int, Ranges]] = {}

    def steps(self, state: int, found: Ranges) -> dict[int, Ranges]:
        """Return the states after a character of a set, and the characters that lead there."""
        key = state, found
        if key not in self._steps:
            self._steps[key] = dict(self._divided(state, found))
        return self._steps[key]

    def after(self, name: str, state: int) -> int:
        """Return the same state: rules end nothing."""
        return state

    def _divided(self, state: int, found: Ranges) -> Iterator[tuple[int, Ranges]]:
        targets: dict[int, list[tuple[int, int]]] = {}
        known = [code for code in self._letters if any(a <= code <= b for a, b in found)]
        rest = outside(union([*outside(found), *((code, code) for code in known)]))
        if rest:
            targets[0] = list(rest)
        for code in known:
            text = self._heads[state] + chr(code)
            if not any(text.endswith(word) for word in self._words):
                tails = (text[at:] for at in range(len(text) + 1))
                longest = next(self._numbers[tail] for tail in tails if tail in self._numbers)
                targets.setdefault(longest, []).append((code, code))
        for target, pairs in targets.items():
            yield target, union(pairs)
