"""PlainDraws: penalties, argmax, filters and draws in torch operations, on any device.

Gives the same tokens as the native kernels on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from dovetail.interfaces.acceptance import Acceptance
from dovetail.sampling import rows as bits
from dovetail.sampling.acceptance import settle
from dovetail.sampling.rows import RowParams
from dovetail.sampling.step import DrawStep
from dovetail_kernels.sample.definition import uniforms
from dovetail_kernels.sample.draw import draw
from dovetail_kernels.sample.filters import filter_top
from dovetail_kernels.sample.penalties import Penalties

Shape = Callable[[torch.Tensor, list[int]], None]
"""Runs the filter processors over logits whose row i is the step's row indices[i]."""


class PlainDraws:
    """Draws with torch operations. `shape` is called for steps that have rows with processors."""

    def __init__(
        self, params: RowParams, penalties: Penalties, acceptance: Acceptance | None = None
    ) -> None:
        self._params = params
        self._penalties = penalties
        self._acceptance = acceptance

    def pick(
        self, work: torch.Tensor, step: DrawStep, shape: Shape, *, keeps_processed: bool = False
    ) -> list[int]:
        """Return each row's token and record it; fault rows that are not finite.

        `keeps_processed`: `work` then holds the logits that were drawn from.
        Mutates: work, step.faults, penalties
        """
        if step.union & bits.PENALISED:
            self._penalties.apply(work, step.row_list)
        token_ids, tops = self._draw_all(work, step, shape, keeps_processed)
        is_changed = bool(step.union & (bits.PROCESSED | bits.PENALISED))
        for i, top in enumerate(tops):
            step.blame(i, top, is_changed=is_changed)
        if step.union & bits.PENALISED:
            self._penalties.record(step.row_list, token_ids)
        return token_ids

    def processed(self, logits: torch.Tensor, indices: np.ndarray, step: DrawStep) -> torch.Tensor:
        """Return the logits that rows without filter processors draw from, without drawing.

        Row i of logits is the step's row indices[i]. Mutates: logits
        """
        if step.union & bits.PENALISED:
            self._penalties.apply(logits, step.rows[indices].tolist())
        random = np.flatnonzero(step.features[indices] & bits.RANDOM)
        if random.size:
            at = torch.from_numpy(random).to(logits.device)
            part = logits[at]
            best, inverse = self._scale(part, step.rows[indices[random]])
            self._filter(part, step.rows[indices[random]], step)
            logits[at] = part.add_(best * inverse)
        return logits

    def _draw_all(
        self, work: torch.Tensor, step: DrawStep, shape: Shape, keeps_processed: bool
    ) -> tuple[list[int], list[float]]:
        """Return each row's token and its largest logit. Mutates: work, step.faults"""
        random = np.flatnonzero(step.features & bits.RANDOM)
        if random.size == 0:
            return _best(work)
        if random.size == len(step.row_list):
            return self._draw(work, random, step, shape, keeps_processed)
        ids, tops = _best(work)
        at = torch.from_numpy(random).to(work.device)
        part = work[at]
        drawn = self._draw(part, random, step, shape, keeps_processed)
        if keeps_processed:
            work[at] = part
        for i, token_id, top in zip(random.tolist(), *drawn, strict=True):
            ids[i], tops[i] = token_id, top
        return ids, tops

    def _draw(
        self,
        logits: torch.Tensor,
        indices: np.ndarray,
        step: DrawStep,
        shape: Shape,
        keeps_processed: bool,
    ) -> tuple[list[int], list[float]]:
        """Draw for rows that are not greedy. Row i of logits is the step's row indices[i].

        Mutates: logits, step.faults
        """
        rows, tables = step.rows[indices], self._params.tables
        best, inverse = self._scale(logits, rows)
        shaped_best = None
        if step.union & bits.SHAPED:
            shape(logits, indices.tolist())
            shaped_best = _repair(logits, indices.tolist(), step)
        self._filter(logits, rows, step)
        uniform = uniforms(tables.seed[rows], step.positions[indices])
        token_ids = draw(logits, torch.from_numpy(uniform).to(logits.device))
        if step.proposals:
            self._settle(logits, token_ids, indices, step)
        if keeps_processed:
            logits.add_(best * inverse + (0.0 if shaped_best is None else shaped_best))
        return token_ids.tolist(), best.squeeze(1).tolist()

    def _settle(
        self, logits: torch.Tensor, drawn: torch.Tensor, indices: np.ndarray, step: DrawStep
    ) -> None:
        """Replace draws by accepted drafts, or by the tokens for rejected ones.

        Row i of logits is the step's row indices[i]. Mutates: drawn
        """
        assert self._acceptance is not None, "who proposes drafts has said how to accept them"
        for proposals in step.proposals:
            rows = step.rows[proposals.indices]
            at = torch.from_numpy(np.searchsorted(indices, proposals.indices)).to(logits.device)
            seeds, positions = self._params.tables.seed[rows], step.positions[proposals.indices]
            drawn[at] = settle(self._acceptance, logits[at], proposals, drawn[at], seeds, positions)

    def _scale(self, logits: torch.Tensor, rows: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """Make row maxima 0 and divide by the temperature; return the old maxima and the factors.
        Shapes: logits [S, V], rows [S] -> [S, 1] twice. Mutates: logits"""
        factors = self._params.tables.inverse_temperature[rows]
        inverse = torch.from_numpy(factors).to(logits.device).unsqueeze(1)
        best = logits.amax(dim=1, keepdim=True)
        # Rows that are not finite would spread NaN into the searches; their token is invalid.
        logits.sub_(best).masked_fill_((best - best) != 0, 0.0)
        logits.mul_(inverse)
        return best, inverse

    def _filter(self, logits: torch.Tensor, rows: np.ndarray, step: DrawStep) -> None:
        """Set what min-p, top-k and top-p remove to -inf. Mutates: logits"""
        tables = self._params.tables
        if step.union & bits.FILTERED:
            filter_top(logits, tables.top_k[rows], tables.top_p[rows], tables.least[rows])


def _repair(logits: torch.Tensor, indices: list[int], step: DrawStep) -> torch.Tensor:
    """Make row maxima 0 again after filters, and fault rows that have no finite maximum.

    Returns the old maxima. Faulty rows may hold anything; they are zeroed so that the draw stays
    within bounds.
    Mutates: logits, step.faults
    """
    tops = logits.amax(dim=1, keepdim=True)
    logits.sub_(tops)
    for i, top in enumerate(tops.squeeze(1).tolist()):
        step.blame(indices[i], top, is_changed=True)
        if indices[i] in step.faults:
            logits[i] = 0.0
    return tops


def _best(logits: torch.Tensor) -> tuple[list[int], list[float]]:
    """Return the first most likely token of each row and its logit. Shapes: [S, V] -> [S], [S]"""
    if logits.device.type != "cpu":
        values, ids = logits.max(dim=1)
        return ids.tolist(), values.tolist()
    # numpy's argmax is vectorised; torch's takes up to twenty times as long on a CPU.
    return logits.numpy().argmax(axis=1).tolist(), logits.amax(dim=1).tolist()
