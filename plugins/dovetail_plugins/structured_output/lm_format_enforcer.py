"""Structured output with lm-format-enforcer: a character parser, walked along a tree of the tokens.

The tree and the walk are the library's, the parser is ours: the library's own schema parser allows
answers that break the schema. All of it is Python: slower than the others, and easy to debug.
Source: https://github.com/noamgat/lm-format-enforcer.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from dovetail.interfaces.data.constraint import Constraint, decode_constraint, encode_constraint
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.structured_output import (
    InvalidConstraint,
    LoadedConstraint,
    Matcher,
    StructuredOutputBackend,
    Vocabulary,
)
from dovetail_grammars import json_grammar, utf8
from dovetail_grammars.gbnf_reader import LANGUAGES
from dovetail_grammars.regex import Cat, Chars, Many, Node, Or, Ranges, Rule
from dovetail_plugins.structured_output._constraint_rules import rules_of

MAX_MASKS = 256
MAX_PLACES = 5_000
"""Parses of one text that may be open at the same time; more are refused."""
MAX_PLACES_KEPT = 10_000

_LETTERS = "".join(map(chr, range(256)))

Frame = tuple[int, int, int | None]
Stack = tuple[Frame, "Stack"] | None
"""The parts that must still be read: the next part's number and the bounds of its repeats, then
the rest. Parts are numbered because trees are slow to compare."""


class LmFormatEnforcer(StructuredOutputBackend):
    """One tree of tokens; an artifact is the constraint itself, which `load` turns into rules."""

    info = Info(
        summary="lm-format-enforcer: JSON schemas, regular expressions, grammars, free text",
        source="https://github.com/noamgat/lm-format-enforcer",
        requires=("lmformatenforcer",),
        extra="structured-output",
    )
    capabilities = frozenset({"json", "regex", "grammar", "concat", "free_text", "whitespace"})
    languages = LANGUAGES
    keywords = json_grammar.KEYWORDS

    def __init__(self, options: Any, vocabulary: Vocabulary) -> None:
        from lmformatenforcer import TokenEnforcerTokenizerData

        self.vocabulary = vocabulary
        # Bytes as characters of the same number: tokens may hold parts of longer characters.
        self.texts = {i: data.decode("latin-1") for i, data in enumerate(vocabulary.tokens) if data}
        words = [(token_id, text, True) for token_id, text in self.texts.items()]
        self.data = TokenEnforcerTokenizerData(words, str, [], False, vocabulary.size)

    def compile(self, constraint: Constraint) -> bytes:
        """Return the encoded constraint if an answer can begin. Raises: InvalidConstraint"""
        artifact = encode_constraint(constraint)
        self.load(artifact)
        return artifact

    def load(self, artifact: bytes) -> LoadedConstraint:
        """Return the rules of a constraint."""
        rules = rules_of(decode_constraint(artifact), self.vocabulary.special)
        in_bytes = {name: utf8.in_bytes(node) for name, node in rules.items()}
        return _Loaded(in_bytes, self, len(artifact))


class _Loaded:
    def __init__(
        self, rules: Mapping[str, Node], backend: LmFormatEnforcer, num_bytes: int
    ) -> None:
        self.rules = rules
        self.backend = backend
        self.num_bytes = 50 * num_bytes + MAX_MASKS * 4 * backend.vocabulary.mask_words
        self._masks: dict[Hashable, np.ndarray] = {}
        self._letters: dict[Ranges, str] = {}
        self.nodes: list[Node] = []
        self._numbers: dict[int, int] = {}
        self.places: dict[frozenset[Stack], TextPosition] = {}
        self.start = _place(self, frozenset([(self.frame(rules[json_grammar.ROOT]), None)]))
        if not self.start.stacks:
            raise InvalidConstraint("nothing meets this constraint")

    def matcher(self) -> Matcher:
        """Return a matcher at the beginning."""
        return _Matcher(self)

    def frame(self, node: Node) -> Frame:
        """Return a part by its number, with the bounds of its repeats."""
        number = self._numbers.setdefault(id(node), len(self.nodes))
        if number == len(self.nodes):
            self.nodes.append(node)
        return (number, node.least, node.most) if isinstance(node, Many) else (number, 0, None)

    def ranges(self, frame: Frame) -> Ranges:
        """Return the set of a part that is one character."""
        node = self.nodes[frame[0]]
        assert isinstance(node, Chars)
        return node.ranges

    def letters_of(self, ranges: Ranges) -> str:
        """Return the letters (bytes) that are in a set."""
        if ranges not in self._letters:
            self._letters[ranges] = "".join(c for c in _LETTERS if _is_in(c, ranges))
        return self._letters[ranges]

    def mask(self, place: TextPosition) -> np.ndarray:
        """Return the mask of a place, end tokens not among it."""
        from lmformatenforcer import TokenEnforcer

        found = self._masks.get(place.stacks)
        if found is None:
            found = np.zeros(self.backend.vocabulary.mask_words, dtype=np.uint32)
            allowed = TokenEnforcer(self.backend.data, place).get_allowed_tokens([])
            ids = np.array(allowed.allowed_tokens, dtype=np.int64)
            np.bitwise_or.at(found, ids // 32, np.uint32(1) << (ids % 32).astype(np.uint32))
            if len(self._masks) >= MAX_MASKS:
                self._masks.pop(next(iter(self._masks)))
            self._masks[place.stacks] = found
        return found


def _is_in(letter: str, ranges: Ranges) -> bool:
    return any(first <= ord(letter) <= last for first, last in ranges)


class TextPosition:
    """A place in a text, as the library's CharacterLevelParser: which characters may follow it."""

    def __init__(self, loaded: _Loaded, stacks: frozenset[Stack]) -> None:
        self.loaded = loaded
        self.stacks = stacks
        self.config: Any = None
        self._following: dict[str, TextPosition] = {}

    def add_character(self, letter: str) -> TextPosition:
        """Return the state after a character."""
        found = self._following.get(letter)
        if found is None:
            ranges = self.loaded.ranges
            heads = [s[1] for s in self.stacks if s and _is_in(letter, ranges(s[0]))]
            found = self._following[letter] = _place(self.loaded, frozenset(heads))
        return found

    @cached_property
    def _letters(self) -> str:
        sets = {self.loaded.ranges(stack[0]) for stack in self.stacks if stack}
        return "".join(map(self.loaded.letters_of, sets))

    def get_allowed_characters(self) -> str:
        """Return the characters that may follow."""
        return self._letters

    def can_end(self) -> bool:
        """Return whether the text may end here."""
        return None in self.stacks

    def shortcut_key(self) -> None:
        """Return nothing: tokens are not precomputed."""

    def cache_key(self) -> Hashable:
        """Return the key by which equal states are recognized."""
        return self.stacks


def _place(loaded: _Loaded, stacks: frozenset[Stack]) -> TextPosition:
    """Return the state for these stacks, unfolded down to single characters."""
    pending, seen, found = list(stacks), set(stacks), set()
    while pending:
        stack = pending.pop()
        if stack is None or isinstance(loaded.nodes[stack[0][0]], Chars):
            found.add(stack)
            continue
        for more in _unfolded(stack[0], stack[1], loaded):
            if more not in seen:
                seen.add(more)
                pending.append(more)
        if len(seen) > MAX_PLACES:
            raise InvalidConstraint("the constraint is too ambiguous")
    if len(loaded.places) > MAX_PLACES_KEPT:
        loaded.places.clear()
    return loaded.places.setdefault(frozenset(found), TextPosition(loaded, frozenset(found)))


def _unfolded(frame: Frame, rest: Stack, loaded: _Loaded) -> list[Stack]:
    """Return the possible expansions of a part, followed by the rest."""
    number, minimum, maximum = frame
    match loaded.nodes[number]:
        case Rule(name):
            return [(loaded.frame(loaded.rules[name]), rest)]
        case Or(parts):
            return [(loaded.frame(part), rest) for part in parts]
        case Cat(parts):
            for part in reversed(parts):
                rest = (loaded.frame(part), rest)
            return [rest]
        case Many(part):
            if maximum == 0:
                return [rest]
            again = (number, max(0, minimum - 1), None if maximum is None else maximum - 1)
            once: Stack = (loaded.frame(part), (again, rest))
            return [once] if minimum else [once, rest]
    raise InvalidConstraint("an anchor is out of place")


class _Matcher:
    def __init__(self, loaded: _Loaded) -> None:
        self._loaded = loaded
        self._places = [loaded.start]
        self._eos_ids = loaded.backend.vocabulary.eos_ids

    def accept(self, token_id: int) -> bool:
        """Advance by a token if the constraint allows it."""
        place = self._places[-1]
        if token_id in self._eos_ids:
            return place.can_end()
        text = self._loaded.backend.texts.get(token_id, "")
        for letter in text:
            place = place.add_character(letter)
        if not text or not place.stacks:
            return False
        self._places.append(place)
        return True

    def fill(self, mask: np.ndarray) -> None:
        """Set the bits of tokens that may follow. Mutates: mask"""
        mask |= self._loaded.mask(self._places[-1])
        if self._places[-1].can_end():
            for token_id in self._eos_ids:
                mask[token_id // 32] |= np.uint32(1) << np.uint32(token_id % 32)

    def is_complete(self) -> bool:
        """Return whether only the end may follow."""
        return self._places[-1].stacks == {None}

    def forced(self) -> Sequence[int]:
        """Return nothing: this backend does not look for forced tokens."""
        return ()

    def rollback(self, num_tokens: int) -> None:
        """Take back the last accepted tokens."""
        del self._places[len(self._places) - num_tokens :]
