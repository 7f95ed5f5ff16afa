"""DeviceBackend: a step's draws as kernels on a device, started without waiting and read once.

The row parameters are uploaded in one copy, and the draws come back in one or two, with one event.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial

import numpy as np
import torch

from dovetail.sampling import features as bits
from dovetail.sampling.backend import SamplingBackend, SamplingState
from dovetail.sampling.logprobs import ToldLogprobs, read, tell
from dovetail.sampling.pending import EnqueuedDraws
from dovetail.sampling.step import Draws, DrawStep
from dovetail_kernels.host_copy import HostCopy
from dovetail_kernels.logprobs.reference import floats
from dovetail_kernels.sample import OP
from dovetail_kernels.sample.definition import MAX_VOCAB
from dovetail_kernels.sample.device import SampledTokens, draw, settings_of, warm_up
from dovetail_kernels.sample.seen import SeenTokens, on_device

TRITON = "triton"


def draws_on(device_type: str) -> bool:
    """Return whether the kernels run on this device type."""
    return OP.runs(TRITON, device_type, torch.float32)


class DeviceBackend(SamplingBackend):
    """Takes steps without processors after the penalties, and without proposals. Steps may start
    before earlier ones are collected. `vocab_size` is as in Sampler."""

    def __init__(
        self, state: SamplingState, device_types: Collection[str], vocab_size: int | None
    ) -> None:
        super().__init__(state)
        self._device_types = device_types
        self._vocab_size = vocab_size
        self._seen = SeenTokens(self._penalties, len(self._rows.features))
        self._under_way: list[EnqueuedDraws] = []

    def can_take(self, logits: torch.Tensor, step: DrawStep) -> bool:
        """Return whether device kernels can do all of the step."""
        if not self._supports(logits) or step.proposals or step.union & bits.SHAPED:
            return False
        is_wide = self._vocab_size is not None and logits.shape[1] > self._vocab_size
        if is_wide and step.union & bits.PENALISED:
            return False  # a row's seen tokens are counted in lines of one width
        has_named = not self._rows.named.keys().isdisjoint(step.row_list)
        return not has_named and not self._logprobs.are_processed(step)

    def draw(self, logits: torch.Tensor, step: DrawStep) -> EnqueuedDraws:
        """Start to draw a token for each row. Mutates: logits, self, step.faults"""
        asking, picked, later = step.asking, None, []
        if 0 < asking.size < len(step.row_list):
            picked = on_device(asking, logits.device)
        shown, shown_rows = logits, picked
        if step.union & bits.PROCESSED:
            if asking.size and logits.dtype == torch.float32:  # processors change them in place
                shown, shown_rows = (logits.clone() if picked is None else logits[picked]), None
            logits = logits.float()
            later.append(logits.amax(dim=1))
            self._chain.run_early(logits, step)
        drawn = self._launch(logits, step)
        logprobs = None
        if asking.size:
            tokens = drawn.tokens if picked is None else drawn.tokens[picked]
            num_top = self._rows.num_logprobs[step.rows[asking]].tolist()
            logprobs = tell(shown, tokens, num_top, shown_rows)
            later.append(logprobs.numbers)
        finish = partial(self._finish, step, self._rows.turns[step.rows], logprobs)
        pending = EnqueuedDraws(drawn.tokens, HostCopy([drawn.told, *later]), finish)
        self._under_way = [one for one in self._under_way if not one.is_read] + [pending]
        return pending

    def warm_up(self, logits: torch.Tensor) -> None:
        """Compile every kernel variant that steps may need. Shapes: logits [S, V]"""
        if self._supports(logits):
            warm_up(logits)

    def note(self, row: int, token_ids: Sequence[int]) -> None:
        """Count tokens that a row got without a draw. Mutates: self"""
        self._seen.note(row, token_ids)

    def settle(self, rows: Sequence[int]) -> None:
        """Wait for all draws, and tell the host what these rows have seen: torch penalises only
        tokens that the host knows. Mutates: self"""
        for pending in self._under_way:
            pending.collect()
        self._under_way = []
        self._seen.settle(rows)

    def remove_row(self, row: int) -> None:
        """Forget a row; unknown rows are ignored. Mutates: self"""
        self._seen.remove_row(row)

    def _supports(self, logits: torch.Tensor) -> bool:
        """Return whether the kernels support these logits."""
        is_here = logits.device.type in self._device_types
        return is_here and logits.shape[1] <= MAX_VOCAB and logits.stride(1) == 1

    def _launch(self, logits: torch.Tensor, step: DrawStep) -> SampledTokens:
        """Draw one token per row and count it for penalties, without waiting.

        Shapes: logits [S, V]. Mutates: self
        """
        lines, seen = np.full(len(step.rows), -1), None
        if step.union & bits.PENALISED:
            lines = self._seen.lines(step.rows, logits.shape[1], logits.device)
            seen = self._seen.table
        tables, device = self._rows.tables, logits.device
        return draw(logits, settings_of(tables, step.rows, step.positions, lines, seen, device))

    def _finish(
        self,
        step: DrawStep,
        turns: np.ndarray,
        logprobs: ToldLogprobs | None,
        arrays: list[np.ndarray],
    ) -> Draws:
        """Return the draws of a step whose numbers have arrived. Mutates: self, step.faults"""
        is_same = self._rows.turns[step.rows] == turns
        self._rows.recall(step, is_same)
        if step.union & bits.PROCESSED:
            step.blame_all(arrays[1].tolist(), is_changed=False)
        token_ids, tops = arrays[0][:, 0].tolist(), floats(arrays[0][:, 1:])
        is_finite = np.isfinite(tops[:, 0])
        if not is_finite.all():
            step.blame_drawn(tops[:, 0].tolist(), tops[:, 1].tolist())
        if step.union & bits.PENALISED:
            for i in np.flatnonzero(is_same & is_finite).tolist():
                self._seen.tell(step.row_list[i], token_ids[i])
        draws = self._rows.finish(step, token_ids, is_same)
        if logprobs is not None:
            asking, tells_logits = step.asking.tolist(), self._logprobs.tells_logits
            drawn = [token_ids[i] for i in asking]
            draws.add_logprobs(asking, read(logprobs, arrays[-1], drawn, tells_logits=tells_logits))
        return draws
