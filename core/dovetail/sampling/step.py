"""Data of one sampler step: the rows that draw, and the results."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from dovetail.interfaces.data.step import TokenLogprobs
from dovetail.sampling import features as bits
from dovetail.sampling.acceptance import Proposals

NOT_FINITE = "the model's logits are not finite (NaN or infinity)"
NOTHING_LEFT = "no token is left: the bans and allowed ids of this request exclude each other"
BROKEN = "a logits processor left logits that are not finite (NaN or infinity)"


@dataclass(slots=True, kw_only=True)
class Draws:
    """The draws of a step. `token_ids` has one entry per row (0 for a faulty one); `logprobs` and
    `faults` are keyed by index into the step's rows."""

    token_ids: list[int]
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)
    faults: dict[int, str] = field(default_factory=dict)

    def add_logprobs(self, indices: Sequence[int], entries: Sequence[TokenLogprobs]) -> None:
        """Let these rows have the entries, except faulty ones. Mutates: self"""
        pairs = zip(indices, entries, strict=True)
        self.logprobs = {i: one for i, one in pairs if i not in self.faults}


@dataclass(slots=True, kw_only=True)
class DrawStep:
    """The rows that draw in one step. `rows` are row numbers, `positions` the number of tokens
    drawn so far per row. `features` holds each row's bits, `union` their OR; `proposals` are drafts
    of rows that are not greedy; `stages` are those after the penalties that some rows need. With
    `is_apart` processors get one row at a time, because one has raised."""

    rows: np.ndarray
    positions: np.ndarray
    features: np.ndarray
    union: int
    row_list: list[int]
    proposals: Sequence[Proposals] = ()
    stages: frozenset[str] = frozenset()
    is_apart: bool = False
    faults: dict[int, str] = field(default_factory=dict)

    @property
    def asking(self) -> np.ndarray:
        """Return the indices of the rows that want logprobs."""
        return np.flatnonzero(self.features & bits.LOGPROBS)

    def blame(self, index: int, top: float, *, is_changed: bool) -> None:
        """Fault a row whose largest logit is not finite, unless it has a fault already.

        `is_changed`: processors or penalties have changed the logits. Mutates: self
        """
        if math.isfinite(top):
            return
        changed = NOTHING_LEFT if top == -math.inf else BROKEN
        self.faults.setdefault(index, changed if is_changed else NOT_FINITE)

    def blame_all(self, tops: Iterable[float], *, is_changed: bool) -> None:
        """Fault all rows whose largest logits are not finite, as `blame`. Mutates: self"""
        for index, top in enumerate(tops):
            self.blame(index, top, is_changed=is_changed)

    def blame_drawn(self, tops: Sequence[float], raw_tops: Sequence[float]) -> None:
        """Fault rows by their largest logits after and before the penalties. Mutates: self"""
        was_processed = bool(self.union & bits.PROCESSED)
        for index, (top, raw_top) in enumerate(zip(tops, raw_tops, strict=True)):
            self.blame(index, raw_top, is_changed=was_processed)
            self.blame(index, top, is_changed=True)
