"""Prompts longer than the context: embedded in pieces, with their vectors merged.

Each piece is embedded as its own prompt, with the special tokens around a text. The merged vector
is the mean of the pieces' vectors, weighted by their token counts, and normalized if theirs are.
Format: the chunked processing of vLLM.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dovetail.interfaces.data.step import Pooled

Tokens = Sequence[int]


def pieces(
    ids: tuple[int, ...], max_tokens: int, before: Tokens = (), after: Tokens = ()
) -> tuple[tuple[int, ...], ...]:
    """Split a prompt's tokens into pieces of at most `max_tokens`. If the prompt is enclosed by
    `before` and `after`, so is each piece."""
    if len(ids) <= max_tokens:
        return (ids,)
    before, after = tuple(before), tuple(after)
    is_framed = ids[: len(before)] == before and ids[len(ids) - len(after) :] == after
    room = max_tokens - len(before) - len(after)
    if not is_framed or room < 1:
        before, after, room = (), (), max_tokens
    inner = ids[len(before) : len(ids) - len(after)]
    return tuple(
        (*before, *inner[start : start + room], *after) for start in range(0, len(inner), room)
    )


class PieceVectors:
    """The vectors of a prompt's pieces, until all are there. `lengths` are the pieces' token
    counts; `is_normalized`: the vectors have length 1."""

    def __init__(self, lengths: Sequence[int], *, is_normalized: bool) -> None:
        self._lengths = np.array(lengths, dtype=np.float64)
        self._is_normalized = is_normalized
        self._sum: np.ndarray | None = None
        self._num_missing = len(lengths)

    def take(self, index: int, pooled: Pooled) -> Pooled | None:
        """Add a piece's vector; return the merged vector after the last piece. Mutates: self"""
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
