"""TokenIndex: the tokens of a vocabulary by their bytes, and those that may end an item."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

_ELSEWHERE = re.compile(rb'[,\]} \n\r\t]|".*"', re.DOTALL)
_IN_STRING = re.compile(rb'".*[,\]}]', re.DOTALL)
_IN_MEMBER = re.compile(rb'".*[\]}]|".*,.*"', re.DOTALL)
_IN_ROOMY = re.compile(rb'".*,.*".*"', re.DOTALL)
_ROOMY = re.compile(rb'".*"', re.DOTALL)
_SPANS = re.compile(rb"\[.*,", re.DOTALL)


class TokenIndex:
    """Shared by all constraints on one vocabulary.

    The tokens that may end an item or start the next one: within a string that is an item, within
    one that is part of an item (`in_member`), or elsewhere. The `roomy` sets are for lists of
    arbitrary strings, in which another item is always possible.
    """

    def __init__(
        self, tokens: Sequence[bytes], special: Mapping[str, int], eos_ids: Iterable[int]
    ) -> None:
        """`tokens` are the bytes of each id, `special` the ids of special tokens by their texts,
        `eos_ids` those that end an answer."""
        named = {i: text.encode() for text, i in special.items()}
        self.texts = [named.get(i, text) for i, text in enumerate(tokens)]
        order = sorted((text, i) for i, text in enumerate(self.texts) if text)
        self._sorted = [text for text, _ in order]
        self._ids = [i for _, i in order]
        self.eos_ids = frozenset(eos_ids)
        self.elsewhere = self._like(_ELSEWHERE)
        self.in_string = self._like(_IN_STRING)
        self.in_member = self._like(_IN_MEMBER)
        self.in_roomy = self._like(_IN_ROOMY)
        self.roomy = self._like(_ROOMY)
        self.spans = self._like(_SPANS)

    def _like(self, pattern: re.Pattern[bytes]) -> np.ndarray:
        """Return which tokens match the pattern. Shapes: [V] bool"""
        return np.array([pattern.search(text) is not None for text in self.texts])

    def beginning(self, text: bytes) -> Sequence[int]:
        """Return the tokens that start with a text."""
        first = bisect_left(self._sorted, text)
        last = bisect_left(self._sorted, text + b"\xff" * 64) if text else len(self._sorted)
        return self._ids[first:last]

    def within(self, text: bytes) -> Iterator[int]:
        """Yield the tokens that are prefixes of a text."""
        for size in range(1, len(text) + 1):
            at = bisect_left(self._sorted, text[:size])
            if at == len(self._sorted):
                return
            while at < len(self._sorted) and self._sorted[at] == text[:size]:
                yield self._ids[at]
                at += 1
