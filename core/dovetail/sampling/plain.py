"""PlainDraws: penalties, argmax, filters and draws in torch operations, on any device.

Gives the same tokens as the native kernels on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set

import numpy as np
import torch

from dovetail.interfaces.acceptance import Acceptance
from dovetail.interfaces.logits import OWN_STEPS, PIPELINE
from dovetail.sampling import rows as bits
from dovetail.sampling.acceptance import settle
from dovetail.sampling.rows import RowParams
from dovetail.sampling.step import DrawStep
from dovetail_kernels.sample.definition import uniforms
from dovetail_kernels.sample.draw import draw
from dovetail_kernels.sample.filters import filter_top
from dovetail_kernels.sample.penalties import Penalties

Shape = Callable[[str, torch.Tensor, Sequence[int]], None]
"""Runs the processors of a stage over logits whose row i is the step's row indices[i]."""
SHAPING = PIPELINE[PIPELINE.index("temperature") + 1 : PIPELINE.index("draw")]
FILTERS = frozenset(SHAPING).intersection(OWN_STEPS)


class PlainDraws:
    """Draws with torch operations, one step of the pipeline after the other."""

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
        if "before_temperature" in step.stages:
            shape("before_temperature", work, range(len(step.row_list)))
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
            if step.union & bits.FILTERED:
                self._filter(part, step.rows[indices[random]], FILTERS)
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
        lowered = self._shape(logits, indices, step, shape)
        uniform = uniforms(tables.seed[rows], step.positions[indices])
        token_ids = draw(logits, torch.from_numpy(uniform).to(logits.device))
        if step.proposals:
            self._settle(logits, token_ids, indices, step)
        if keeps_processed:
            logits.add_(best * inverse + lowered)
        return token_ids.tolist(), best.squeeze(1).tolist()

    def _shape(
        self, logits: torch.Tensor, indices: np.ndarray, step: DrawStep, shape: Shape
    ) -> torch.Tensor | float:
        """Run all between the temperature and the draw; return by how much processors lowered the
        maxima. Row i of logits is the step's row indices[i].

        The filters are one operation, which processors divide. Before top-p, top-k is repeated: so
        a row's tokens do not depend on other rows' processors.
        Mutates: logits, step.faults
        """
        rows, numbers = step.rows[indices], indices.tolist()
        lowered: torch.Tensor | float = 0.0
        due: set[str] = set()
        for name in SHAPING:
            if name in FILTERS and step.union & bits.FILTERED:
                due.add(name)
            elif name in step.stages:
                self._filter(logits, rows, due)
                due = due & {"top_k"} if name == "before_top_p" else set()
                shape(name, logits, numbers)
                lowered = lowered + _repair(logits, numbers, step)
        self._filter(logits, rows, due)
        return lowered

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

    def _filter(self, logits: torch.Tensor, rows: np.ndarray, names: Set[str]) -> None:
        """Set what these filters remove to -inf. Mutates: logits"""
        if names:
            tables, none = self._params.tables, np.zeros(len(rows))
            top_k = tables.top_k[rows] if "top_k" in names else none.astype(np.int64)
            top_p = tables.top_p[rows] if "top_p" in names else none + 1.0
            min_p = tables.least[rows] if "min_p" in names else none.astype(np.float32) - np.inf
            filter_top(logits, top_k, top_p, min_p)


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
