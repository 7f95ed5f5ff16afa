"""The stages of a step on its way through a runner, and StepReader, which waits for its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch

from dovetail.interfaces.data.step import RowResult, StepResult
from dovetail.layers.context import StepAdapters
from dovetail.runner.device import Moment
from dovetail.runner.rows.batch import StepInputs


@dataclass(slots=True, kw_only=True)
class StepPass:
    """A forward pass to run. Rows with the indices `sampling` sample, after the tokens `after`
    (None: all, or none). `second_text` marks tokens of second texts.

    Shapes: sampling, after [S]; second_text [T]
    """

    inputs: StepInputs
    sampling: np.ndarray
    after: np.ndarray | None
    second_text: torch.Tensor | None
    adapters: StepAdapters | None
    has_media: bool

    @property
    def is_plain(self) -> bool:
        """Return whether layers need no more than tokens and low-rank adapters."""
        return not self.has_media and (self.adapters is None or self.adapters.is_low_rank)


@dataclass(slots=True, kw_only=True)
class Computed:
    """The model's outputs of a step. `drawn_after` selects the tokens to sample after (None: all);
    `drawn_rows` are their rows, set if steps run ahead. `is_divided`: they were computed in two
    halves.

    Shapes: hidden [T, E]; drawn_after, drawn_rows [S] on the device
    """

    hidden: torch.Tensor
    drawn_after: torch.Tensor | None = None
    drawn_rows: torch.Tensor | None = None
    is_divided: bool = False


@dataclass(slots=True, kw_only=True)
class BegunStep:
    """A step whose results are not read yet. `finish` waits for the results of its rows, `rows` are
    those that are known; `aligned` are results that replace others, by index. Rows with the indices
    `sampling` sample. Shapes: sampling [S]"""

    step_id: int
    inputs: StepInputs
    sampling: np.ndarray
    begun: Moment
    computed: Moment
    finish: Callable[[], tuple[RowResult, ...]] = tuple
    rows: tuple[RowResult, ...] | None = None
    aligned: Mapping[int, RowResult] = field(default_factory=dict)
    ended: Moment | None = None
    is_divided: bool = False

    def collect(self) -> tuple[RowResult, ...]:
        """Return the rows' results; wait for them the first time. Mutates: as `finish`, self"""
        if self.rows is None:
            self.rows = self.finish()
            if self.aligned:
                self.rows = tuple(self.aligned.get(i, row) for i, row in enumerate(self.rows))
        return self.rows


class StepReader:
    """Reads steps in order."""

    def __init__(self) -> None:
        self._last_ended: Moment | None = None

    def forget_last(self) -> None:
        """Ignore idle time before the next step. Mutates: self"""
        self._last_ended = None

    @torch.inference_mode()
    def read(self, step: BegunStep) -> StepResult:
        """Wait for a step's results and return them. Mutates: self, step, rows, sampling state"""
        assert step.ended is not None, "a step is read once it has begun"
        rows = step.collect()
        step.ended.wait()
        last, self._last_ended = self._last_ended, step.ended
        return StepResult(
            step_id=step.step_id,
            rows=rows,
            forward_s=step.computed.seconds_since(step.begun),
            sample_s=step.ended.seconds_since(step.computed),
            idle_s=0.0 if last is None else max(0.0, step.begun.seconds_since(last)),
            is_divided=step.is_divided,
        )
