"""DraftRows: how far a worker drafter has come in each row, and what it waits for there.

Positions and numbers alone, but for the hidden states of tokens that the drafter has yet to see.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from dovetail.runner.batch import AHEAD_TOKENS, UNKNOWN, Batch, StepInputs


class DraftRows:
    """The first `computed[row]` positions are in the drafter's cache. `limits[row]` is how far it
    could have come after the last step: so many tokens have all that it needs.

    `shift` 1: position i needs the token i + 1. With `keeps` the hidden states of positions that
    wait are kept.
    """

    def __init__(self, batch: Batch, max_drafts: int, *, shift: int, keeps: bool) -> None:
        count = batch.num_rows
        self._batch = batch
        self._shift = shift
        self._keeps = keeps
        self.computed = np.zeros(count, dtype=np.int64)
        self.limits = np.zeros(count, dtype=np.int64)
        self._drafts = np.zeros((count, max_drafts), dtype=np.int64)
        self._drafted_from = np.zeros(count, dtype=np.int64)
        self._num_drafted = np.zeros(count, dtype=np.int64)
        self._kept: dict[int, list[torch.Tensor]] = {}

    def begin(self, row: int, num_cached: int) -> None:
        """Note that a request took a row, with so many tokens in the cache. Mutates: self"""
        self.computed[row] = self.limits[row] = num_cached
        self._num_drafted[row] = 0
        self._kept.pop(row, None)

    def known(self, rows: np.ndarray) -> np.ndarray:
        """Return how many tokens of the rows the host knows. Shapes: [R]"""
        lengths = self._batch.lengths[rows]
        last = np.maximum(lengths[:, None] - 1 - np.arange(AHEAD_TOKENS), 0)
        unknown = (self._batch.tokens[rows[:, None], last] == UNKNOWN).sum(axis=1)
        found: np.ndarray = lengths - unknown
        return found

    def reach(self, inputs: StepInputs, known: np.ndarray) -> np.ndarray:
        """Return, and note, how far the drafter can come after a step. Shapes: [R]"""
        limits = np.minimum(inputs.seq_lens, known - self._shift)
        self.limits[inputs.rows] = limits
        return limits

    def settle(self, rows: np.ndarray) -> None:
        """Count as computed those of the last drafts that came true. Mutates: self"""
        if self._shift:
            return  # what was computed of drafts is not what the model's states make of them
        for row in rows[self._num_drafted[rows] > 0].tolist():
            first, count = int(self._drafted_from[row]), int(self._num_drafted[row])
            end = min(first + count, int(self._batch.lengths[row]) - 1)
            drawn = self._batch.tokens[row, first:end]
            differs = np.flatnonzero(drawn != self._drafts[row, : len(drawn)])
            num_true = int(differs[0]) if differs.size else len(drawn)
            self.computed[row] = max(int(self.computed[row]), first + num_true)
            self._num_drafted[row] = 0

    def note_drafts(
        self, rows: np.ndarray, first: np.ndarray, drafts: Sequence[np.ndarray]
    ) -> None:
        """Remember drafts of the tokens from `first` on, the last of which is not computed.
        Shapes: rows, first [R], drafts[i] up to [R]. Mutates: self"""
        for row, start, drafted in zip(rows.tolist(), first.tolist(), drafts, strict=True):
            self._drafted_from[row] = start
            self._num_drafted[row] = len(drafted) - 1
            self._drafts[row, : len(drafted)] = drafted

    def keep(self, row: int, states: torch.Tensor) -> None:
        """Keep the states of the next positions that wait. Shapes: [N, E]. Mutates: self"""
        if self._keeps and len(states):
            self._kept.setdefault(row, []).append(states.clone())

    def kept(self, row: int) -> list[torch.Tensor]:
        """Return the states of the positions that wait, from the first on. Mutates: self"""
        return self._kept.pop(row, [])
