"""Penalties: repetition, frequency and presence, over the distinct tokens each row has seen.

State is sparse (distinct ids and counts per row), so the cost follows a row's length and not the
vocabulary. Source of the repetition penalty: Keskar et al., "CTRL", 2019. Knows no draw.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from dovetail.interfaces.sampling_params import SamplingParams


def uses_penalties(params: SamplingParams) -> bool:
    """Return whether a request with these params needs a penalty state."""
    return (
        params.repetition_penalty != 1.0
        or params.frequency_penalty != 0.0
        or params.presence_penalty != 0.0
    )


class SeenTokens:
    """Distinct tokens of one row and how often each was drawn (0: stands in the prompt only)."""

    __slots__ = ("counts", "ids", "num_ids", "params", "places")

    def __init__(
        self, params: SamplingParams, prompt_ids: Sequence[int], output_ids: Sequence[int]
    ) -> None:
        self.params = params
        prompt = prompt_ids if params.repetition_penalty != 1.0 else ()
        drawn, counts = np.unique(np.asarray(output_ids, dtype=np.int64), return_counts=True)
        only_prompt = np.setdiff1d(np.asarray(prompt, dtype=np.int64), drawn)
        self.ids = np.concatenate([drawn, only_prompt])
        self.counts = np.concatenate([counts, np.zeros(len(only_prompt))]).astype(np.float32)
        self.num_ids = len(self.ids)
        self.places = {token_id: i for i, token_id in enumerate(self.ids.tolist())}

    def add(self, token_id: int) -> None:
        """Count one drawn token. Mutates: self"""
        place = self.places.setdefault(token_id, self.num_ids)
        if place == self.num_ids:
            self._grow(token_id)
        self.counts[place] += 1.0

    def _grow(self, token_id: int) -> None:
        if self.num_ids == len(self.ids):
            more = max(64, self.num_ids)
            self.ids = np.concatenate([self.ids, np.zeros(more, dtype=np.int64)])
            self.counts = np.concatenate([self.counts, np.zeros(more, dtype=np.float32)])
        self.ids[self.num_ids] = token_id
        self.num_ids += 1


class Penalties:
    """The penalty state of all rows that ask for one."""

    def __init__(self) -> None:
        self._rows: dict[int, SeenTokens] = {}

    def add_row(
        self,
        row: int,
        params: SamplingParams,
        prompt_ids: Sequence[int],
        output_ids: Sequence[int],
    ) -> None:
        """Start a row. `output_ids` are tokens drawn before a preemption. Mutates: self"""
        self._rows[row] = SeenTokens(params, prompt_ids, output_ids)

    def remove_row(self, row: int) -> None:
        """Forget a row; unknown rows are ignored. Mutates: self"""
        self._rows.pop(row, None)

    def record(self, rows: Sequence[int], token_ids: Sequence[int]) -> None:
        """Count the tokens just drawn. Mutates: self"""
        if not self._rows:
            return
        for row, token_id in zip(rows, token_ids, strict=True):
            seen = self._rows.get(row)
            if seen is not None:
                seen.add(token_id)

    def apply(self, logits: torch.Tensor, rows: Sequence[int]) -> None:
        """Penalise the seen tokens of each row that has a state.

        Shapes: logits [S, V] float32, rows [S] row numbers
        Mutates: logits
        """
        found = [(i, self._rows[row]) for i, row in enumerate(rows) if row in self._rows]
        if not found:
            return
        sizes = [seen.num_ids for _, seen in found]
        device = logits.device
        ids = torch.from_numpy(np.concatenate([s.ids[: s.num_ids] for _, s in found])).to(device)
        counts = np.concatenate([s.counts[: s.num_ids] for _, s in found])
        columns = torch.from_numpy(_columns(found, sizes, counts)).to(device)
        index = torch.from_numpy(np.repeat([i for i, _ in found], sizes)).to(device)
        repetition, subtracted = columns[0], columns[1]
        values = logits[index, ids]
        values = torch.where(values > 0, values / repetition, values * repetition)
        logits[index, ids] = values - subtracted


def _columns(
    found: Sequence[tuple[int, SeenTokens]], sizes: Sequence[int], counts: np.ndarray
) -> np.ndarray:
    """Return per seen token the repetition factor and what frequency and presence subtract.

    Shapes: counts [M] -> [2, M] float32
    """
    params = np.array(
        [
            (s.params.repetition_penalty, s.params.frequency_penalty, s.params.presence_penalty)
            for _, s in found
        ],
        dtype=np.float32,
    )
    spread = np.repeat(params, sizes, axis=0)
    subtracted = spread[:, 1] * counts + spread[:, 2] * (counts > 0)
    return np.stack([spread[:, 0], subtracted]).astype(np.float32)
