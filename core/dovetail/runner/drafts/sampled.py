"""SampledDrafts: the drafts that a drafter model samples, and their distributions, by row.

Verification reads it in the next step (`interfaces.acceptance.DraftProbabilities`). It has nothing
for greedy rows or rows whose drafts differ from the stored ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from dovetail.sampling.sampler import Sampler


class _Tables(Sequence[torch.Tensor]):
    """The distributions of a row's drafts over a vocabulary, each computed on access."""

    def __init__(self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]], size: int) -> None:
        self._kept = pairs
        self._size = size

    def __len__(self) -> int:
        return len(self._kept)

    def __getitem__(self, place):  # type: ignore[no-untyped-def]
        among, probabilities = self._kept[place]
        return probabilities.new_zeros(self._size).scatter_(0, among, probabilities)


class SampledDrafts:
    """The last drafts of each row. In a step, call `begin` for the rows to draft, then `sample`
    once per further draft."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._size = 0
        self._drafts: dict[int, list[int]] = {}
        self._kept: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}

    def begin(self, rows: np.ndarray) -> None:
        """Drop the earlier drafts of these rows, whichever request they belong to. Shapes: [S].
        Mutates: self"""
        for row in rows.tolist():
            self._drafts.pop(row, None)
            self._kept.pop(row, None)

    def sample(self, logits: torch.Tensor, rows: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Return the next draft of each row; `positions` number its output tokens.

        Shapes: logits [S, V], rows, positions [S] -> [S] int64. Mutates: self
        """
        self._size = logits.shape[1]
        found = self._sampler.draft(logits, rows, positions)
        token_ids: np.ndarray = found.token_ids.cpu().numpy()
        for i, row in enumerate(rows.tolist()):
            if found.is_sampled[i]:
                self._drafts.setdefault(row, []).append(int(token_ids[i]))
                self._kept.setdefault(row, []).append((found.among[i], found.probabilities[i]))
        return token_ids

    def of(self, row: int, drafts: Sequence[int]) -> Sequence[torch.Tensor] | None:
        """Return the distributions that these drafts were sampled from, or None. Shapes: each
        [V]"""
        own = self._drafts.get(row, [])[: len(drafts)]
        if own != list(drafts):
            return None
        return _Tables(self._kept[row], self._size)


def chosen(
    sampled: SampledDrafts | None, logits: torch.Tensor, rows: np.ndarray, positions: np.ndarray
) -> np.ndarray:
    """Return the next draft of each row: sampled, or without `sampled` the most likely token.
    Shapes: logits [S, V], rows, positions [S] -> [S] int64. Mutates: sampled"""
    if sampled is not None:
        return sampled.sample(logits, rows, positions)
    found: np.ndarray = logits.argmax(dim=-1).cpu().numpy()
    return found
