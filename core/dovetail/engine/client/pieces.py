"""Prompts longer than the context: cut into pieces, whose vectors become one again.

Each piece is embedded as a prompt of its own, between the special tokens that stand around a text.
The vector of the whole is the mean of theirs, weighted by their numbers of tokens, and scaled to
length 1 where theirs are. Format: the chunked processing of vLLM.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dovetail.interfaces.step import Pooled

Tokens = Sequence[int]


def pieces(
    ids: tuple[int, ...], most: int, before: Tokens = (), after: Tokens = ()
) -> tuple[tuple[int, ...], ...]:
    """Return a prompt's tokens in pieces of at most `most`. Where `before` and `after` stand around
    the prompt they stand around each piece."""
    if len(ids) <= most:
        return (ids,)
    before, after = tuple(before), tuple(after)
    is_framed = ids[: len(before)] == before and ids[len(ids) - len(after) :] == after
    room = most - len(before) - len(after)
    if not is_framed or room < 1:
        before, after, room = (), (), most
    inner = ids[len(before) : len(ids) - len(after)]
    return tuple(
        (*before, *inner[start : start + room], *after) for start in range(0, len(inner), room)
    )


class PieceVectors:
    """The vectors of a prompt's pieces on their way. `lengths` are the pieces' numbers of tokens;
    `is_normalized`: the vectors have length 1."""

    def __init__(self, lengths: Sequence[int], *, is_normalized: bool) -> None:
        self._lengths = np.array(lengths, dtype=np.float64)
        self._is_normalized = is_normalized
        self._sum: np.ndarray | None = None
        self._num_missing = len(lengths)

    def take(self, index: int, pooled: Pooled) -> Pooled | None:
        """Return the vector of the whole once the last piece has come. Mutates: self"""
        vector = np.frombuffer(pooled.data, dtype=np.float32).astype(np.float64)
        weighted = vector * self._lengths[index]
        self._sum = weighted if self._sum is None else self._sum + weighted
        self._num_missing -= 1
        if self._num_missing:
            return None
        mean = self._sum / self._lengths.sum()
        length = float(np.linalg.norm(mean))
        if self._is_normalized and length > 0:
            mean = mean / length
        return Pooled(shape=pooled.shape, data=mean.astype(np.float32).tobytes())
