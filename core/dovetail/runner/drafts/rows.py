"""DraftRows: a drafter model's progress in each row, and what it still has to compute.

Only positions and numbers, plus the hidden states of tokens that the drafter has yet to see.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.runner.rows.batch import AHEAD_TOKENS, UNKNOWN, Batch, StepInputs


class DraftRows:
    """The first `computed[row]` positions are in the drafter's cache. It can compute up to
    `limits[row]`: so many tokens have all the inputs it needs after the last step.

    `skipped[row]` blocks at the start are not read: the drafter began after them, or within the
    next one. `shift` 1: position i needs token i + 1. With `keeps` the hidden states of waiting
    positions are stored. `is_ahead`: there may be tokens that the host does not know yet.
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
        """Register a row's new request, with `num_cached` tokens in the cache. Mutates: self"""
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
        """Return the number of waiting positions whose states are stored."""
        return sum(end - first for _, first, end in self._kept.get(row, ()))

    def has_ended(self, row: int, token_ids: Sequence[int]) -> bool:
        """Return whether one of the tokens that a row drew ends its request."""
        return not self._ends[row].isdisjoint(token_ids)

    def until_end(self, row: int, drafts: list[int]) -> list[int]:
        """Return drafts up to the first one that would end the row's request."""
        ends = self._ends[row]
        if ends.isdisjoint(drafts):
            return drafts
        return drafts[: 1 + next(i for i, token_id in enumerate(drafts) if token_id in ends)]

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
        """Return, and store, how far the drafter can compute after a step. Shapes: [R]"""
        limits = np.minimum(inputs.seq_lens, known - self._shift)
        self.limits[inputs.rows] = limits
        return limits

    def settle(self, inputs: StepInputs) -> None:
        """Count accepted drafts of the last step as computed. Rows whose drafts the step verified
        have grown by that many; for others, drafts are compared with the row's tokens.
        Mutates: self"""
        rows = inputs.rows
        is_of_step = self._drafted_from[rows] == inputs.starts + 1
        self._settle(rows, is_of_step & (inputs.counts > 1))

    def settle_ended(self, rows: np.ndarray) -> None:
        """Do the same for rows that end. Mutates: self"""
        self._settle(rows, np.zeros(len(rows), dtype=bool))

    def _settle(self, rows: np.ndarray, are_verified: np.ndarray) -> None:
        """Count drafts as computed; `are_verified`: a row's length shows how many were accepted.
        Shapes: [R] twice. Mutates: self"""
        if self._shift:
            return  # states computed from drafts differ from the model's own
        counts, first = self._num_drafted[rows], self._drafted_from[rows]
        num_true = np.minimum(counts, self._batch.lengths[rows] - 1 - first)
        is_other = (counts > 0) & ~are_verified
        if is_other.any():
            num_true[is_other] = self._num_true(rows[is_other], first[is_other], num_true[is_other])
        reach = np.where(counts > 0, first + num_true, 0)
        self.computed[rows] = np.maximum(self.computed[rows], reach)
        self._num_drafted[rows] = 0

    def _num_true(self, rows: np.ndarray, first: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Return how many leading drafts of each row, out of `counts`, are now its tokens.
        Shapes: all [R]"""
        nth = np.arange(int(counts.max(initial=0)))
        last = first + np.maximum(counts - 1, 0)
        places = np.minimum(first[:, None] + nth, last[:, None])
        is_true = self._batch.tokens[rows[:, None], places] == self._drafts[rows, : len(nth)]
        is_true &= nth < counts[:, None]
        found: np.ndarray = np.logical_and.accumulate(is_true, axis=1).sum(axis=1)
        return found

    def note_drafts(
        self,
        rows: np.ndarray,
        first: np.ndarray,
        drafts: Sequence[Sequence[int]],
        computed: Sequence[int],
    ) -> None:
        """Remember drafts of the tokens from `first` on; the first `computed[i]` are computed.
        Shapes: rows, first, computed [R], drafts[i] up to [R]. Mutates: self"""
        self._drafted_from[rows] = first
        counts = [min(len(own), limit) for own, limit in zip(drafts, computed, strict=True)]
        self._num_drafted[rows] = counts
        for row, drafted in zip(rows.tolist(), drafts, strict=True):
            self._drafts[row, : len(drafted)] = drafted

    def keep(self, row: int, states: torch.Tensor, first: int, end: int) -> None:
        """Store the states of the next waiting positions: rows `first` to `end` of a tensor that
        must not change. Shapes: [N, E]. Mutates: self"""
        if self._keeps and end > first:
            self._kept.setdefault(row, []).append((states, first, end))

    def kept(self, row: int) -> list[torch.Tensor]:
        """Return and drop the stored states of the waiting positions, in order. Mutates: self"""
        return [states[first:end] for states, first, end in self._kept.pop(row, [])]


def _ends_of(sampling: SamplingParams) -> frozenset[int]:
    """Return the tokens that end a request at any position."""
    if sampling.min_tokens:
        return frozenset()
    return frozenset(
        (*(() if sampling.ignore_eos else sampling.eos_token_ids), *sampling.stop_token_ids)
    )
