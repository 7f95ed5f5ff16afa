"""Structured output with outlines-core: a constraint becomes one regular expression, and that an
index over the vocabulary.

The index is compiled in the killable process and crosses as the library's own bytes. A regular
expression cannot nest without limit: a recursive schema is refused, and values that no schema
describes nest to MAX_DEPTH. Source: https://github.com/dottxt-ai/outlines-core.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dovetail.interfaces.data.constraint import Constraint
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.structured_output import (
    InvalidConstraint,
    LoadedConstraint,
    Matcher,
    StructuredOutputBackend,
    Vocabulary,
)
from dovetail_grammars import json_grammar
from dovetail_grammars.regex import without, written
from dovetail_plugins.structured_output._constraint_rules import rules_of

MAX_DEPTH = 1
"""Each level makes the expression four times as long, and its index larger still."""
MAX_REGEX_CHARS = 60_000
MAX_MASKS = 256
NUM_BYTES_PER_EDGE = 12
START, END = "\U0010fffe", "\U0010ffff"
"""Sentinels around a text, visible only to the library. An index loses transitions from states
where a text may end, so only END, which the end tokens write, ends one. The library also looks for
matches that begin later, in so many ways that an index takes minutes: START allows only one.
"""
MARKS = ((0x100000, 0x10FFFF),)
"""The characters whose first byte is that of the marks; they are left out of texts."""


class Outlines(StructuredOutputBackend):
    """Holds the library's vocabulary; an artifact is an index."""

    info = Info(
        summary="outlines-core: JSON schemas without recursion, regular expressions",
        source="https://github.com/dottxt-ai/outlines-core",
        requires=("outlines_core",),
        extra="structured-output",
    )
    capabilities = frozenset({"json", "regex", "concat", "whitespace"})
    auto_rank = 1
    keywords = json_grammar.KEYWORDS

    def __init__(self, options: Any, vocabulary: Vocabulary) -> None:
        from outlines_core import Vocabulary as Words

        self.vocabulary = vocabulary
        ids: dict[bytes, list[int]] = {}
        for token_id, text in enumerate(vocabulary.tokens):
            if text and END.encode()[0] not in text:
                ids.setdefault(text, []).append(token_id)
        marks = {START.encode(): [vocabulary.size + 1], END.encode(): list(vocabulary.eos_ids)}
        self._words = Words(vocabulary.size, ids | marks)

    def compile(self, constraint: Constraint) -> bytes:
        """Return the index. Raises: InvalidConstraint"""
        from outlines_core import Index

        rules = rules_of(constraint, self.vocabulary.special, MAX_DEPTH)
        regex = written(without(rules[json_grammar.ROOT], MARKS))
        if len(regex) > MAX_REGEX_CHARS:
            raise InvalidConstraint("the constraint is too long as a regular expression")
        try:
            index = Index(f"{START}(?:{regex}){END}", self._words)
        except (ValueError, RuntimeError) as error:
            raise InvalidConstraint(f"no index can be compiled: {str(error)[:300]}") from error
        # The library exposes its bytes here; nothing is pickled.
        _, (data,) = index.__reduce__()
        return bytes(data)

    def load(self, artifact: bytes) -> LoadedConstraint:
        """Return the compiled index."""
        from outlines_core import Index

        return _Loaded(Index.from_binary(artifact), len(artifact), self.vocabulary)


class _Loaded:
    """An index, and the masks of the states that answers have reached."""

    def __init__(self, index: Any, num_bytes: int, vocabulary: Vocabulary) -> None:
        self.index = index
        self.eos_ids = vocabulary.eos_ids
        self.num_bytes = NUM_BYTES_PER_EDGE * num_bytes + MAX_MASKS * 4 * vocabulary.mask_words
        self._num_words = vocabulary.mask_words
        self._masks: dict[int, np.ndarray] = {}
        self.end_mask = self._mask_of(vocabulary.eos_ids)
        self.first = index.get_next_state(index.get_initial_state(), vocabulary.size + 1)

    def matcher(self) -> Matcher:
        """Return a matcher at the beginning."""
        return _Matcher(self)

    def mask(self, state: int) -> np.ndarray:
        """Return the mask of a state."""
        found = self._masks.get(state)
        if found is None:
            found = self._mask_of(self.index.get_allowed_tokens(state) or ())
            if len(self._masks) >= MAX_MASKS:
                self._masks.pop(next(iter(self._masks)))
            self._masks[state] = found
        return found

    def _mask_of(self, token_ids: Sequence[int]) -> np.ndarray:
        ids = np.array(token_ids, dtype=np.int64)
        mask = np.zeros(self._num_words, dtype=np.uint32)
        np.bitwise_or.at(mask, ids // 32, np.uint32(1) << (ids % 32).astype(np.uint32))
        return mask


class _Matcher:
    def __init__(self, loaded: _Loaded) -> None:
        self._loaded = loaded
        self._states = [loaded.first]

    def accept(self, token_id: int) -> bool:
        """Advance by a token if the constraint allows it."""
        following = self._loaded.index.get_next_state(self._states[-1], token_id)
        if following is None:
            return False
        if token_id in self._loaded.eos_ids:
            return True
        self._states.append(following)
        return True

    def fill(self, mask: np.ndarray) -> None:
        """Set the bits of tokens that may follow. Mutates: mask"""
        mask |= self._loaded.mask(self._states[-1])

    def is_complete(self) -> bool:
        """Return whether only the end may follow."""
        return bool((self._loaded.mask(self._states[-1]) == self._loaded.end_mask).all())

    def forced(self) -> Sequence[int]:
        """Return nothing: this backend does not look for forced tokens."""
        return ()

    def rollback(self, num_tokens: int) -> None:
        """Take back the last accepted tokens."""
        del self._states[len(self._states) - num_tokens :]
