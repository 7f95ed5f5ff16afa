"""Repeats: which tokens would continue a repetition of the end of a row's text, and of what length.

The length of the repetition that ends at each earlier token is stored, and moves on by one token
with every token drawn; a text is read in once, in a time in proportion to its length.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dovetail.interfaces.logits import RowTokens
from dovetail.interfaces.structured_output import Vocabulary

FEWEST = 256


class Breakers:
    """Finds texts in a row's text. `vocabulary` None: there are none."""

    def __init__(self, texts: Sequence[str], vocabulary: Vocabulary | None) -> None:
        self._texts = [text.encode() for text in texts]
        self._tokens: Sequence[bytes] = () if vocabulary is None else vocabulary.tokens
        special = {} if vocabulary is None else vocabulary.special
        self._special = {token_id: text.encode() for text, token_id in special.items()}
        self._num_tail = max((len(text) for text in self._texts), default=1) - 1
        self._tail = b""

    def are_ended_by(self, ids: Sequence[int]) -> np.ndarray:
        """Return in which of the next tokens a breaker ends. Shapes: [N] -> [N]. Mutates: self"""
        found = np.zeros(len(ids), dtype=bool)
        if not self._texts:
            return found
        parts = [self._bytes(token_id) for token_id in ids]
        first = len(self._tail)
        text = b"".join((self._tail, *parts))
        ends = np.cumsum([len(part) for part in parts]) + first
        for one in self._texts:
            at = text.find(one, max(0, first - len(one) + 1))
            while at >= 0:
                found[np.searchsorted(ends, at + len(one))] = True
                at = text.find(one, at + 1)
        self._tail = text[-self._num_tail :] if self._num_tail else b""
        return found

    def _bytes(self, token_id: int) -> bytes:
        known = self._tokens[token_id] if token_id < len(self._tokens) else b""
        return self._special.get(token_id) or known


class Repeats:
    """The repetitions of one row, in its prompt and answer. `window`: how many of the last tokens
    are searched (None: all)."""

    def __init__(self, tokens: RowTokens, breakers: Breakers, window: int | None) -> None:
        self._output_ids, self._breakers, self._window = tokens.output_ids, breakers, window
        text = [int(one) for one in (*tokens.prompt_ids, *tokens.output_ids)]
        self._num_prompt, self._count = len(tokens.prompt_ids), len(text)
        room = 2 * len(text) + FEWEST
        self._ids = np.zeros(room, dtype=np.int64)
        self._ids[: len(text)] = text
        self._is_breaker = np.zeros(room, dtype=bool)
        self._is_breaker[: len(text)] = breakers.are_ended_by(text)
        self._lengths = np.zeros(room, dtype=np.int64)
        self._lengths[: len(text)] = common_ends(text)
        last = np.flatnonzero(self._is_breaker[: len(text)])
        self._num_after = len(text) - 1 - int(last[-1]) if last.size else len(text)

    def continued(self, min_length: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the tokens that would continue repetitions of `min_length` tokens or more, and the
        length of the longest before each. Breakers continue nothing. Shapes: [K], [K]"""
        for token_id in self._output_ids[self._count - self._num_prompt :]:
            self._add(int(token_id))
        count = self._count
        start = 0 if self._window is None else max(0, count - self._window)
        lengths = self._lengths[start : max(count - 1, start)]
        lengths = np.minimum(lengths, np.arange(1, len(lengths) + 1))
        lengths = np.minimum(lengths, self._num_after)
        next_ids = self._ids[start + 1 : start + 1 + len(lengths)]
        is_long = (lengths >= min_length) & ~self._is_breaker[start + 1 : start + 1 + len(lengths)]
        ids, where = np.unique(next_ids[is_long], return_inverse=True)
        longest = np.zeros(len(ids), dtype=np.int64)
        np.maximum.at(longest, where, lengths[is_long])
        return ids, longest

    def _add(self, token_id: int) -> None:
        """Take one more token. Mutates: self"""
        count = self._count
        if count == len(self._ids):
            for name in ("_ids", "_is_breaker", "_lengths"):
                old = getattr(self, name)
                setattr(self, name, np.concatenate([old, np.zeros_like(old)]))
        known, lengths = self._ids[:count], self._lengths[:count]
        before = np.concatenate([np.zeros(1, dtype=np.int64), lengths[:-1]]) if count else lengths
        # Where the text ended with itself, the whole of it: the last entry is never a repetition.
        lengths[:] = np.where(known == token_id, before + 1, 0)
        self._ids[count], self._lengths[count] = token_id, 0
        self._is_breaker[count] = self._breakers.are_ended_by([token_id])[0]
        self._num_after = 0 if self._is_breaker[count] else self._num_after + 1
        self._count = count + 1


def common_ends(ids: Sequence[int]) -> list[int]:
    """Return for each token how many tokens up to it are also the last of the text; 0 for the last.

    It is the Z-function of the reversed text (Gusfield, "Algorithms on strings, trees, and
    sequences", 1997). Shapes: [N] -> [N]
    """
    text = ids[::-1]
    found = [0] * len(text)
    left = right = 0
    for at in range(1, len(text)):
        size = min(right - at, found[at - left]) if at < right else 0
        while at + size < len(text) and text[size] == text[at + size]:
            size += 1
        if at + size > right:
            left, right = at, at + size
        found[at] = size
    return found[::-1]
