"""NativeBackend: everything from the penalties to the logprobs in one native call on a CPU."""

from __future__ import annotations

import numpy as np
import torch

from dovetail.sampling import features as bits
from dovetail.sampling.backend import SamplingBackend, SamplingState
from dovetail.sampling.logprobs import listed
from dovetail.sampling.pending import DoneDraws
from dovetail.sampling.plain import processed
from dovetail.sampling.step import Draws, DrawStep
from dovetail_kernels.sample.definition import MAX_VOCAB
from dovetail_kernels.sample.native import Logprobs, NativeSampler


class NativeBackend(SamplingBackend):
    """Takes steps on a CPU without proposals or processors after the penalties."""

    def __init__(self, state: SamplingState) -> None:
        super().__init__(state)
        self._native = NativeSampler(self._rows.tables)

    def can_take(self, logits: torch.Tensor, step: DrawStep) -> bool:
        """Return whether the native kernels can do all of the step."""
        return _can_draw(logits) and not step.proposals and not step.union & bits.SHAPED

    def draw(self, logits: torch.Tensor, step: DrawStep) -> DoneDraws:
        """Draw a token for each row. Mutates: logits, when they are float32; step.faults; self"""
        work, top = logits.float().contiguous(), None
        shown = self._raw(work, step)
        if step.union & bits.PROCESSED:
            step.blame_all(work.amax(dim=1).tolist(), is_changed=False)
            self._chain.run_early(work, step)
        if shown is None and step.union & bits.LOGPROBS:
            if self._logprobs.tells_processed:
                shown = processed(work, step, self._rows, self._penalties)
            else:
                top = self._largest_top(step, work.shape[1])
        own = self._call(work, step, top)
        draws = self._rows.finish(step, self._native.tokens[: len(step.row_list)].tolist())
        if shown is not None:
            self._logprobs.add(shown, step, draws)
        elif own is not None:
            self._add_own(own, step, draws)
        return DoneDraws(draws, logits.device)

    def draw_lines(
        self, logits: torch.Tensor, rows: np.ndarray, positions: np.ndarray
    ) -> list[int] | None:
        """Return a token for each line of logits. None: not all are finite, or not on a CPU.

        Shapes: logits [S, V], rows and positions [S] -> [S]
        """
        if not _can_draw(logits):
            return None
        self._native(logits.float().contiguous(), rows, positions)
        count = len(rows)
        tokens: list[int] = self._native.tokens[:count].tolist()
        return tokens if np.isfinite(self._native.best[:count]).all() else None

    def _raw(self, work: torch.Tensor, step: DrawStep) -> torch.Tensor | None:
        """Return the raw logits that logprobs are computed from after the draw. None: there are no
        such logprobs, or the call computes them."""
        is_later = step.union & (bits.PROCESSED | bits.MANY_LOGPROBS) or self._logprobs.tells_logits
        return self._logprobs.raw(work, step, changing=bits.PROCESSED) if is_later else None

    def _largest_top(self, step: DrawStep, vocab: int) -> int:
        """Return the maximum number of top tokens of any row, at most the vocabulary. Mutates:
        rows"""
        num_top = self._rows.tables.num_top
        top = max(0, int(num_top[step.rows].max()))
        if top > vocab:
            np.minimum(num_top, vocab, out=num_top)
        return min(top, vocab)

    def _call(self, work: torch.Tensor, step: DrawStep, top: int | None) -> Logprobs | None:
        """Penalise, draw, and compute logprobs unless `top` is None. Mutates: self, step.faults"""
        if step.union & bits.PENALISED:
            self._penalties.make_room(step.rows)
        native, count = self._native, len(step.row_list)
        found = native(work, step.rows, step.positions, logprobs_top=top)
        if not np.isfinite(native.best[:count]).all():
            step.blame_drawn(native.best[:count].tolist(), native.raw_best[:count].tolist())
        return found

    def _add_own(self, found: Logprobs, step: DrawStep, draws: Draws) -> None:
        """Add the logprobs that the call has computed. Mutates: draws"""
        asking = step.asking
        indices = asking.tolist()
        sizes = self._rows.tables.num_top[step.rows[asking]].tolist()
        token_ids = [draws.token_ids[i] for i in indices]
        draws.add_logprobs(indices, listed(found, indices, token_ids, sizes))


def _can_draw(logits: torch.Tensor) -> bool:
    return logits.device.type == "cpu" and logits.shape[1] <= MAX_VOCAB
