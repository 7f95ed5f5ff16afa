"""PlainDraws: penalties, best tokens, filters and draws in torch operations, on any device.

Gives the same tokens as the native kernels on a CPU. Knows no fault but logits that are not finite.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from dovetail.sampling import rows as bits
from dovetail.sampling.draw import draw
from dovetail.sampling.filters import filter_top
from dovetail.sampling.penalties import Penalties
from dovetail.sampling.rows import RowParams
from dovetail.sampling.step import DrawStep
from dovetail_kernels.sample.definition import uniforms

Shape = Callable[[torch.Tensor, list[int]], None]
"""Runs the filter processors over logits whose row i is the step's row indices[i]."""


class PlainDraws:
    """Draws by torch operations. `shape` is called for steps with rows that have processors."""

    def __init__(self, params: RowParams, penalties: Penalties) -> None:
        self._params = params
        self._penalties = penalties

    def pick(self, work: torch.Tensor, step: DrawStep, shape: Shape) -> list[int]:
        """Return each row's token and record it; rows that are not finite are faulted.

        Mutates: work, step.faults, penalties
        """
        if step.union & bits.PENALISED:
            self._penalties.apply(work, step.row_list)
        token_ids, tops = self._draw_all(work, step, shape)
        is_changed = bool(step.union & (bits.PROCESSED | bits.PENALISED))
        for i, top in enumerate(tops):
            step.blame(i, top, is_changed=is_changed)
        if step.union & bits.PENALISED:
            self._penalties.record(step.row_list, token_ids)
        return token_ids

    def _draw_all(
        self, work: torch.Tensor, step: DrawStep, shape: Shape
    ) -> tuple[list[int], list[float]]:
        """Return each row's token and its largest logit. Mutates: work, step.faults"""
        random = np.flatnonzero(step.features & bits.RANDOM)
        if random.size == 0:
            return _best(work)
        if random.size == len(step.row_list):
            return self._draw(work, random, step, shape)
        ids, tops = _best(work)
        part = work[torch.from_numpy(random).to(work.device)]
        for i, token_id, top in zip(
            random.tolist(), *self._draw(part, random, step, shape), strict=True
        ):
            ids[i], tops[i] = token_id, top
        return ids, tops

    def _draw(
        self, logits: torch.Tensor, indices: np.ndarray, step: DrawStep, shape: Shape
    ) -> tuple[list[int], list[float]]:
        """Draw for rows that are not greedy. Row i of logits is the step's row indices[i].

        Mutates: logits, step.faults
        """
        device, rows, tables = logits.device, step.rows[indices], self._params.tables
        best = logits.amax(dim=1, keepdim=True)
        # Rows that are not finite would spread NaN into the searches; their token is void anyway.
        logits.sub_(best).masked_fill_((best - best) != 0, 0.0)
        logits.mul_(torch.from_numpy(tables.inverse_temperature[rows]).to(device).unsqueeze(1))
        if step.union & bits.SHAPED:
            shape(logits, indices.tolist())
            _repair(logits, indices.tolist(), step)
        if step.union & bits.FILTERED:
            filter_top(logits, tables.top_k[rows], tables.top_p[rows], tables.least[rows])
        uniform = uniforms(tables.seed[rows], step.positions[indices])
        token_ids = draw(logits, torch.from_numpy(uniform).to(device))
        return token_ids.tolist(), best.squeeze(1).tolist()


def _repair(logits: torch.Tensor, indices: list[int], step: DrawStep) -> None:
    """Make row maxima 0 again after filters, and fault rows that have no finite maximum.

    Faulty rows may hold anything; they are flattened so that the draw stays within bounds.
    Mutates: logits, step.faults
    """
    tops = logits.amax(dim=1, keepdim=True)
    logits.sub_(tops)
    for i, top in enumerate(tops.squeeze(1).tolist()):
        step.blame(indices[i], top, is_changed=True)
        if indices[i] in step.faults:
            logits[i] = 0.0


def _best(logits: torch.Tensor) -> tuple[list[int], list[float]]:
    """Return the first most likely token of each row and its logit. Shapes: [S, V] -> [S], [S]"""
    if logits.device.type != "cpu":
        values, ids = logits.max(dim=1)
        return ids.tolist(), values.tolist()
    # numpy's argmax is vectorised; torch's takes up to twenty times as long on a CPU.
    return logits.numpy().argmax(axis=1).tolist(), logits.amax(dim=1).tolist()
