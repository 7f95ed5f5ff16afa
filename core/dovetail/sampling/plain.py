"""PlainBackend: every stage in torch operations, on any device, with all processors and drafts."""

from __future__ import annotations

import numpy as np
import torch

from dovetail.interfaces.acceptance import Acceptance
from dovetail.interfaces.logits import OWN_STEPS, PIPELINE
from dovetail.sampling import features as bits
from dovetail.sampling.acceptance import settle
from dovetail.sampling.backend import SamplingBackend, SamplingState
from dovetail.sampling.pending import DoneDraws
from dovetail.sampling.rows import SamplingRows
from dovetail.sampling.step import DrawStep
from dovetail.sampling.step_logprobs import asking_lines
from dovetail_kernels.sample.definition import uniforms
from dovetail_kernels.sample.draw import best_tokens, draw, scale
from dovetail_kernels.sample.filters import filter_rows
from dovetail_kernels.sample.penalties import Penalties

SHAPING = PIPELINE[PIPELINE.index("temperature") + 1 : PIPELINE.index("draw")]
FILTERS = frozenset(SHAPING).intersection(OWN_STEPS)


class PlainBackend(SamplingBackend):
    """Takes every step, one stage of the pipeline after the other. `acceptance` is as in
    Sampler."""

    def __init__(self, state: SamplingState, acceptance: Acceptance | None = None) -> None:
        super().__init__(state)
        self._acceptance = acceptance

    def can_take(self, logits: torch.Tensor, step: DrawStep) -> bool:
        """Return True."""
        return True

    def draw(self, logits: torch.Tensor, step: DrawStep) -> DoneDraws:
        """Draw a token for each row. Mutates: logits, when they are float32; step.faults; rows,
        penalties"""
        work = logits.float().contiguous()
        changing = bits.PROCESSED | bits.PENALISED | bits.RANDOM
        shown = self._logprobs.raw(work, step, changing)
        if step.union & bits.PROCESSED:
            step.blame_all(work.amax(dim=1).tolist(), is_changed=False)
            self._chain.run_early(work, step)
        keeps_processed = self._logprobs.are_processed(step)
        token_ids = self._pick(work, step, keeps_processed)
        draws = self._rows.finish(step, token_ids)
        if keeps_processed:
            shown = asking_lines(work, step)
        if shown is not None:
            self._logprobs.add(shown, step, draws)
        return DoneDraws(draws, logits.device)

    def _pick(self, work: torch.Tensor, step: DrawStep, keeps_processed: bool) -> list[int]:
        """Return each row's token and record it; fault rows that are not finite.

        `keeps_processed`: `work` then holds the logits that were drawn from.
        Mutates: work, step.faults, penalties
        """
        is_changed = bool(step.union & bits.PROCESSED)
        if step.union & bits.PENALISED:
            step.blame_all(work.amax(dim=1).tolist(), is_changed=is_changed)
            self._penalties.apply(work, step.row_list)
            is_changed = True
        if "before_temperature" in step.stages:
            self._chain.run("before_temperature", work, range(len(step.row_list)), step)
        token_ids, tops = self._draw_all(work, step, keeps_processed)
        step.blame_all(tops, is_changed=is_changed)
        if step.union & bits.PENALISED:
            self._penalties.record(step.row_list, token_ids)
        return token_ids

    def _draw_all(
        self, work: torch.Tensor, step: DrawStep, keeps_processed: bool
    ) -> tuple[list[int], list[float]]:
        """Return each row's token and its largest logit. Mutates: work, step.faults"""
        random = np.flatnonzero(step.features & bits.RANDOM)
        if random.size == 0:
            return best_tokens(work)
        if random.size == len(step.row_list):
            return self._draw(work, random, step, keeps_processed)
        ids, tops = best_tokens(work)
        at = torch.from_numpy(random).to(work.device)
        part = work[at]
        drawn = self._draw(part, random, step, keeps_processed)
        if keeps_processed:
            work[at] = part
        for i, token_id, top in zip(random.tolist(), *drawn, strict=True):
            ids[i], tops[i] = token_id, top
        return ids, tops

    def _draw(
        self, logits: torch.Tensor, indices: np.ndarray, step: DrawStep, keeps_processed: bool
    ) -> tuple[list[int], list[float]]:
        """Draw for rows that are not greedy. Row i of logits is the step's row indices[i].

        Mutates: logits, step.faults
        """
        rows, tables = step.rows[indices], self._rows.tables
        best, inverse = scale(logits, tables.inverse_temperature[rows])
        lowered = self._shape(logits, indices, step)
        uniform = uniforms(tables.seed[rows], step.positions[indices])
        token_ids = draw(logits, torch.from_numpy(uniform).to(logits.device))
        if step.proposals:
            self._settle(logits, token_ids, indices, step)
        if keeps_processed:
            logits.add_(best * inverse + lowered)
        return token_ids.tolist(), best.squeeze(1).tolist()

    def _shape(
        self, logits: torch.Tensor, indices: np.ndarray, step: DrawStep
    ) -> torch.Tensor | float:
        """Run all between the temperature and the draw; return by how much processors lowered the
        maxima. Row i of logits is the step's row indices[i].

        The filters are one operation, which processors divide. Before top-p, top-k is repeated: so
        a row's tokens do not depend on other rows' processors.
        Mutates: logits, step.faults
        """
        rows, numbers = step.rows[indices], indices.tolist()
        tables = self._rows.tables
        lowered: torch.Tensor | float = 0.0
        due: set[str] = set()
        for name in SHAPING:
            if name in FILTERS and step.union & bits.FILTERED:
                due.add(name)
            elif name in step.stages:
                filter_rows(logits, tables, rows, due)
                due = due & {"top_k"} if name == "before_top_p" else set()
                self._chain.run(name, logits, numbers, step)
                lowered = lowered + _repair(logits, numbers, step)
        filter_rows(logits, tables, rows, due)
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
            seeds, positions = self._rows.tables.seed[rows], step.positions[proposals.indices]
            drawn[at] = settle(self._acceptance, logits[at], proposals, drawn[at], seeds, positions)


def processed(
    work: torch.Tensor, step: DrawStep, known: SamplingRows, penalties: Penalties
) -> torch.Tensor:
    """Return the logits that rows which want logprobs draw from, without processors after the
    penalties. Shapes: work [S, V], as it is before the penalties"""
    logits, indices = asking_lines(work, step), step.asking
    if step.union & bits.PENALISED:
        penalties.apply(logits, step.rows[indices].tolist())
    random = np.flatnonzero(step.features[indices] & bits.RANDOM)
    if random.size:
        at = torch.from_numpy(random).to(logits.device)
        part, rows = logits[at], step.rows[indices[random]]
        best, inverse = scale(part, known.tables.inverse_temperature[rows])
        if step.union & bits.FILTERED:
            filter_rows(part, known.tables, rows, FILTERS)
        logits[at] = part.add_(best * inverse)
    return logits


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
