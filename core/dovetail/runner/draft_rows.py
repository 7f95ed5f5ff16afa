"""DraftRows: how far a worker drafter has come in each row, and what it waits for there.

Positions and numbers alone, but for the hidden states of tokens that the drafter has yet to see.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from dovetail.interfaces.sampling_params import SamplingParams
from dovetail.runner.batch import AHEAD_TOKENS, UNKNOWN, Batch, StepInputs


class DraftRows:
    """The first `computed[row]` positions are in the drafter's cache. `limits[row]` is how far it
    could have come after the last step: so many tokens have all that it needs.

    `skipped[row]` blocks at its start are not read: the drafter began behind them, or within the
    next one. `shift` 1: position i needs the token i + 1. With `keeps` the hidden states of
    positions that wait are kept. `is_ahead`: there may be tokens that the host does not know yet.
    """

    def __init__(
        self, batch: Batch, max_drafts: int, *, shift: int, keeps: bool, is_ahead: bool
    ) -> None:
        count = batch.num_rows
        self._batch = batch
        self._shift = shift
        self._keeps = keeps
        self._is_ahead = is_ahead
        self.computed = np.zeros(count, dtype=np.int64)
        self.limits = np.zeros(count, dtype=np.int64)
        self.skipped = np.zeros(count, dtype=np.int64)
        self._drafts = np.zeros((count, max_drafts), dtype=np.int64)
        self._drafted_from = np.zeros(count, dtype=np.int64)
        self._num_drafted = np.zeros(count, dtype=np.int64)
        self._kept: dict[int, list[tuple[torch.Tensor, int, int]]] = {}
        self._ends: dict[int, frozenset[int]] = {}

    def begin(self, row: int, num_cached: int, sampling: SamplingParams) -> None:
        """Note that a request took a row, with so many tokens in the cache. Mutates: self"""
        self._ends[row] = _ends_of(sampling)
        self.computed[row] = self.limits[row] = num_cached
        self.skipped[row] = self._num_drafted[row] = 0
        self._kept.pop(row, None)

    def begin_anew(self, row: int, start: int, block_tokens: int) -> None:
        """Forget all positions of a row before `start`, whose states are gone. Mutates: self"""
        self.computed[row] = self.limits[row] = start
        self.skipped[row] = start // block_tokens
        self._kept.pop(row, None)

    def num_kept(self, row: int) -> int:
        """Return of how many positions that wait the states are kept."""
        return sum(end - first for _, first, end in self._kept.get(row, ()))

    def has_ended(self, row: int, token_ids: Sequence[int]) -> bool:
        """Return whether one of the tokens that a row drew ends its request."""
        return not self._ends[row].isdisjoint(token_ids)

    def until_end(self, row: int, drafts: np.ndarray) -> np.ndarray:
        """Return drafts up to the first one that would end the row's request. Shapes: [D]"""
        ends = self._ends[row]
        for place, token_id in enumerate(drafts.tolist() if ends else ()):
            if token_id in ends:
                return drafts[: place + 1]
        return drafts

    def known(self, rows: np.ndarray) -> np.ndarray:
        """Return how many tokens of the rows the host knows. Shapes: [R]"""
        lengths: np.ndarray = self._batch.lengths[rows]
        if not self._is_ahead:
            return lengths
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
        rows = rows[self._num_drafted[rows] > 0]
        if not rows.size:
            return
        nth = np.arange(int(self._num_drafted[rows].max()))
        first, last = self._drafted_from[rows], self._batch.lengths[rows] - 1
        counts = np.minimum(self._num_drafted[rows], last - first)
        places = np.minimum(first[:, None] + nth, last[:, None])
        is_true = self._batch.tokens[rows[:, None], places] == self._drafts[rows, : len(nth)]
        is_true &= nth < counts[:, None]
        num_true = np.logical_and.accumulate(is_true, axis=1).sum(axis=1)
        self.computed[rows] = np.maximum(self.computed[rows], first + num_true)
        self._num_drafted[rows] = 0

    def note_drafts(
        self, rows: np.ndarray, first: np.ndarray, drafts: Sequence[np.ndarray]
    ) -> None:
        """Remember drafts of the tokens from `first` on, the last of which is not computed.
        Shapes: rows, first [R], drafts[i] up to [R]. Mutates: self"""
        for row, start, drafted in zip(rows.tolist(), first.tolist(), drafts, strict=True):
            self._drafted_from[row] = start
            self._num_drafted[row] = len(drafted) - 1
            self._drafts[row, : len(drafted)] = drafted

    def keep(self, row: int, states: torch.Tensor, first: int, end: int) -> None:
        """Keep the states of the next positions that wait: some lines of a tensor that stays as it
        is. Shapes: [N, E]. Mutates: self"""
        if self._keeps and end > first:
            self._kept.setdefault(row, []).append((states, first, end))

    def kept(self, row: int) -> list[torch.Tensor]:
        """Return the states of the positions that wait, from the first on. Mutates: self"""
        return [states[first:end] for states, first, end in self._kept.pop(row, [])]


def _ends_of(sampling: SamplingParams) -> frozenset[int]:
    """Return the tokens that end a request wherever they come."""
    if sampling.min_tokens:
        return frozenset()
    return frozenset(
        (*(() if sampling.ignore_eos else sampling.eos_token_ids), *sampling.stop_token_ids)
    )
