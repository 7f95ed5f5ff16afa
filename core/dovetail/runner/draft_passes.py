"""Passes of a drafter over tokens that no plan names: how they are laid, and how recorded."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from dovetail.interfaces.attention import BatchLayout
from dovetail.runner.batch import Batch, StepInputs
from dovetail.runner.recorded import MAX_DRAFTED_ROWS, recorded_rows


class RecordedPass:
    """A RecordedForward of the drafter, whose states lie at a fixed place too."""

    def __init__(self, forward: Callable[..., torch.Tensor], batch: Batch) -> None:
        self._forward = forward
        self._given: torch.Tensor | None = None
        self._recorded = recorded_rows(self._run, batch.tables[:1], MAX_DRAFTED_ROWS, pads=True)

    def run(self, inputs: StepInputs, states: torch.Tensor | None) -> torch.Tensor | None:
        """Return the states after a pass, None of one that is not recorded. Mutates: self"""
        if self._recorded.reason is not None:
            return None
        if states is not None:
            if self._given is None:
                self._given = states.new_zeros(MAX_DRAFTED_ROWS, states.shape[1])
            self._given[: len(states)] = states
        return self._recorded.run(inputs)

    def _run(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        layouts: list[BatchLayout],
        *others: object,
    ) -> torch.Tensor:
        given = None if self._given is None else self._given[: len(token_ids)]
        return self._forward(token_ids, positions, layouts, given)


def laid(rows: np.ndarray, starts: np.ndarray, counts: np.ndarray) -> StepInputs:
    """Return a pass over tokens of rows, without the tokens. Shapes: all [R]"""
    query_start = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum(counts, out=query_start[1:])
    shift = np.repeat(starts - query_start[:-1], counts)
    return StepInputs(
        steps=(),
        rows=rows,
        starts=starts,
        counts=counts,
        samples=np.zeros(len(rows), dtype=bool),
        query_start=query_start,
        token_rows=np.repeat(rows, counts),
        token_ids=np.zeros(0, dtype=np.int64),
        positions=np.arange(query_start[-1]) + shift,
    )


def one_by_one(inputs: StepInputs) -> StepInputs:
    """Return the pass with every token as a row of its own: each sees those before it."""
    count = len(inputs.token_ids)
    if count == len(inputs.rows):
        return inputs
    alone = laid(inputs.token_rows, inputs.positions, np.ones(count, dtype=np.int64))
    alone.token_ids = inputs.token_ids
    return alone


def lines_of(states: torch.Tensor, picked: np.ndarray) -> torch.Tensor:
    """Return the picked lines of states. Shapes: [N, E], [S] -> [S, E]"""
    if len(picked) == len(states):
        return states
    return states[torch.from_numpy(picked).to(states.device)]
