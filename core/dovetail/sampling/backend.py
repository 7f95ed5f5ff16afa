"""SamplingBackend: one way to do all of a step's draws, and what every such way works with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from dovetail.sampling.pending import PendingDraws
from dovetail.sampling.processors import ProcessorChain
from dovetail.sampling.rows import SamplingRows
from dovetail.sampling.step import DrawStep
from dovetail.sampling.step_logprobs import StepLogprobs
from dovetail_kernels.sample.penalties import Penalties


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingState:
    """What the backends of a sampler share."""

    rows: SamplingRows
    penalties: Penalties
    chain: ProcessorChain
    logprobs: StepLogprobs


class SamplingBackend(ABC):
    """Draws for whole steps. All backends draw the same tokens from the same logits."""

    def __init__(self, state: SamplingState) -> None:
        self._rows = state.rows
        self._penalties = state.penalties
        self._chain = state.chain
        self._logprobs = state.logprobs

    @abstractmethod
    def can_take(self, logits: torch.Tensor, step: DrawStep) -> bool:
        """Return whether this backend can do all of the step. Shapes: logits [S, V]"""

    @abstractmethod
    def draw(self, logits: torch.Tensor, step: DrawStep) -> PendingDraws:
        """Start to draw a token for each row, from the first stage to the logprobs.

        Shapes: logits [S, V]
        Mutates: logits, when they are float32; step.faults; rows, penalties
        Raises: ProcessorRaised, unless step.is_apart
        """

    def draw_lines(
        self, logits: torch.Tensor, rows: np.ndarray, positions: np.ndarray
    ) -> list[int] | None:
        """Return a token for each line of logits, where one row may have several, by logits, seeds
        and positions alone. None: this backend cannot, or a line is not finite.

        Shapes: logits [S, V], rows and positions [S] -> [S]
        """
        return None

    def warm_up(self, logits: torch.Tensor) -> None:
        """Compile what later steps with such logits may need. Shapes: logits [S, V]"""

    def note(self, row: int, token_ids: Sequence[int]) -> None:
        """Count tokens that a row got without a draw. Mutates: self"""

    def settle(self, rows: Sequence[int]) -> None:
        """Wait for all draws, so that another backend can draw for these rows. Mutates: self"""

    def remove_row(self, row: int) -> None:
        """Forget a row; unknown rows are ignored. Mutates: self"""
