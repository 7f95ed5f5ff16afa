"""Data of one sampler step: the rows that draw, and the results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from dovetail.interfaces.data.step import TokenLogprobs
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


@dataclass(slots=True, kw_only=True)
class DrawStep:
    """The rows that draw in one step. `rows` are row numbers, `positions` the number of tokens
    drawn so far per row. `features` holds each row's bits, `union` their OR; `proposals` are drafts
    of rows that are not greedy; `stages` are those after the penalties that some rows need."""

    rows: np.ndarray
    positions: np.ndarray
    features: np.ndarray
    union: int
    row_list: list[int]
    proposals: Sequence[Proposals] = ()
    stages: frozenset[str] = frozenset()
    faults: dict[int, str] = field(default_factory=dict)

    def blame(self, index: int, top: float, *, is_changed: bool) -> None:
        """Fault a row whose largest logit is not finite, unless it has a fault already.

        `is_changed`: processors or penalties have changed the logits. Mutates: self
        """
        if math.isfinite(top):
            return
        changed = NOTHING_LEFT if top == -math.inf else BROKEN
        self.faults.setdefault(index, changed if is_changed else NOT_FINITE)
