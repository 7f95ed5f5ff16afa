"""Penalties: repetition, frequency and presence, over the distinct tokens each row has seen.

State is sparse (distinct ids and counts per row), so the cost depends on a row's length and not on
the vocabulary. It is in arrays that the native kernels read and update; `apply` and `record` do the
same for devices without them. Independent of the draw. Source of the repetition penalty: Keskar et
al., "CTRL", 2019.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch

from dovetail_kernels.sample.native import Tables

MORE_TOKENS = 64
"""Minimum room to add when a row's arrays are full."""


class PenaltyParams(Protocol):
    """A request's penalties; 1, 0 and 0: none."""

    @property
    def repetition_penalty(self) -> float: ...

    @property
    def frequency_penalty(self) -> float: ...

    @property
    def presence_penalty(self) -> float: ...


def uses_penalties(params: PenaltyParams) -> bool:
    """Return whether a request with these params needs a penalty state."""
    return (
        params.repetition_penalty != 1.0
        or params.frequency_penalty != 0.0
        or params.presence_penalty != 0.0
    )


class Penalties:
    """The penalty state of all rows that have penalties.

    A row's arrays hold distinct token ids, and how often each was drawn (0: only in the prompt);
    the first `tables.num_seen[row]` entries are valid.
    """

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._ids: dict[int, np.ndarray] = {}
        self._counts: dict[int, np.ndarray] = {}
        self._room = np.zeros(len(tables.num_seen), dtype=np.int64)

    def add_row(
        self,
        row: int,
        params: PenaltyParams,
        prompt_ids: Sequence[int],
        output_ids: Sequence[int],
    ) -> None:
        """Start a row. `output_ids` are tokens drawn before a preemption. Mutates: self, tables"""
        prompt = prompt_ids if params.repetition_penalty != 1.0 else ()
        drawn, counts = np.unique(np.asarray(output_ids, dtype=np.int64), return_counts=True)
        only_prompt = np.setdiff1d(np.asarray(prompt, dtype=np.int64), drawn)
        tables = self._tables
        tables.repetition[row] = params.repetition_penalty
        tables.frequency[row] = params.frequency_penalty
        tables.presence[row] = params.presence_penalty
        tables.num_seen[row] = len(drawn) + len(only_prompt)
        self._keep(
            row,
            np.concatenate([drawn, only_prompt]).astype(np.int32),
            np.concatenate([counts, np.zeros(len(only_prompt))]).astype(np.float32),
        )

    def remove_row(self, row: int) -> None:
        """Forget a row; unknown rows are ignored. Mutates: self, tables"""
        if self._ids.pop(row, None) is not None:
            del self._counts[row]
            self._tables.num_seen[row] = -1
            self._room[row] = 0

    def has(self, rows: np.ndarray) -> np.ndarray:
        """Return which rows have a state. Shapes: rows [S] -> [S] bool"""
        is_known: np.ndarray = self._tables.num_seen[rows] >= 0
        return is_known

    def seen(self, row: int) -> tuple[np.ndarray, np.ndarray]:
        """Return a row's distinct tokens and how often each was drawn."""
        size = int(self._tables.num_seen[row])
        return self._ids[row][:size], self._counts[row][:size]

    def make_room(self, rows: np.ndarray) -> None:
        """Make room for one more token in every row. Shapes: rows [S]. Mutates: self, tables"""
        is_full = self._tables.num_seen[rows] >= self._room[rows]
        if is_full.any():
            for row in rows[is_full].tolist():
                self._keep(row, self._ids[row], self._counts[row])

    def record(self, rows: Sequence[int], token_ids: Sequence[int]) -> None:
        """Count the tokens just drawn. Mutates: self, tables"""
        for row, token_id in zip(rows, token_ids, strict=True):
            if row not in self._ids:
                continue
            self.make_room(np.array([row]))
            ids, size = self._ids[row], int(self._tables.num_seen[row])
            places = np.flatnonzero(ids[:size] == token_id)
            if places.size:
                self._counts[row][places[0]] += 1.0
                continue
            ids[size], self._counts[row][size] = token_id, 1.0
            self._tables.num_seen[row] = size + 1

    def apply(self, logits: torch.Tensor, rows: Sequence[int]) -> None:
        """Penalise the seen tokens of each row that has a state.

        Shapes: logits [S, V] float32, rows [S] row numbers
        Mutates: logits
        """
        penalized = [(i, row) for i, row in enumerate(rows) if row in self._ids]
        if not penalized:
            return
        numbers = [row for _, row in penalized]
        sizes = self._tables.num_seen[numbers]
        device = logits.device
        parts = zip(numbers, sizes.tolist(), strict=True)
        ids = torch.from_numpy(np.concatenate([self._ids[r][:n] for r, n in parts]))
        ids = ids.to(device=device, dtype=torch.int64)
        columns = torch.from_numpy(self._columns(numbers, sizes)).to(device)
        index = torch.from_numpy(np.repeat([i for i, _ in penalized], sizes)).to(device)
        repetition, subtracted = columns[0], columns[1]
        values = logits[index, ids]
        values = torch.where(values > 0, values / repetition, values * repetition)
        logits[index, ids] = values - subtracted

    def _columns(self, rows: Sequence[int], sizes: np.ndarray) -> np.ndarray:
        """Return per seen token the repetition factor and the other penalties to subtract.

        Shapes: rows [S] with sizes [S] that sum up to M -> [2, M] float32
        """
        parts = zip(rows, sizes.tolist(), strict=True)
        counts = np.concatenate([self._counts[row][:size] for row, size in parts])
        tables = self._tables
        repetition, frequency, presence = (
            np.repeat(one[rows], sizes)
            for one in (tables.repetition, tables.frequency, tables.presence)
        )
        return np.stack([repetition, frequency * counts + presence * (counts > 0)])

    def _keep(self, row: int, ids: np.ndarray, counts: np.ndarray) -> None:
        """Store a row's entries, with room for more. Mutates: self, tables"""
        more = max(MORE_TOKENS, len(ids))
        self._ids[row] = ids = np.concatenate([ids, np.zeros(more, dtype=np.int32)])
        self._counts[row] = counts = np.concatenate([counts, np.zeros(more, dtype=np.float32)])
        self._room[row] = len(ids)
        self._tables.seen_ids[row], self._tables.seen_counts[row] = (
            ids.ctypes.data,
            counts.ctypes.data,
        )
