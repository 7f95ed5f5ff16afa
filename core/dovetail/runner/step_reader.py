"""StepReader: waits for the draws of a begun step and assembles the results of its rows.

`model_runner` begins a step without waiting for the device; it is read here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch

from dovetail.interfaces.data.step import RowResult, StepResult
from dovetail.runner.device import Moment
from dovetail.runner.prompt_logprobs import PromptFinish, nothing_told
from dovetail.runner.results import row_results
from dovetail.runner.rows.batch import Batch, Expected, StepInputs
from dovetail.sampling.sampler import Draws, PendingDraws, Sampler
from dovetail.structured_output.mask_processor import ConstraintProcessor


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
    """A step whose draws are not read yet. `rows`: results that need no reading; `prompt` waits for
    prompt logprobs, `pooled` for pooled prompts; `aligned` are results that replace draws, by
    index."""

    step_id: int
    inputs: StepInputs
    begun: Moment
    computed: Moment
    rows: tuple[RowResult, ...] | None = None
    drawn: tuple[np.ndarray, PendingDraws, Expected] | None = None
    prompt: PromptFinish = nothing_told
    pooled: Callable[[], tuple[RowResult, ...]] | None = None
    aligned: Mapping[int, RowResult] = field(default_factory=dict)
    ended: Moment | None = None
    is_divided: bool = False


class StepReader:
    """Reads steps in order. `forcing` knows the tokens that a row's constraint leaves no choice
    about, which follow a draw without one of their own; None: no such tokens."""

    def __init__(self, batch: Batch, sampler: Sampler, forcing: ConstraintProcessor | None) -> None:
        self._batch = batch
        self._sampler = sampler
        self._forcing = forcing
        self._last_ended: Moment | None = None

    def forget_last(self) -> None:
        """Ignore idle time before the next step. Mutates: self"""
        self._last_ended = None

    @torch.inference_mode()
    def read(self, step: BegunStep) -> StepResult:
        """Wait for a step's draws and return its result. Mutates: rows, sampling state"""
        assert step.ended is not None, "a step is read once it has begun"
        self.collect(step)
        assert step.rows is not None, "the step was collected"
        step.ended.wait()
        last, self._last_ended = self._last_ended, step.ended
        return StepResult(
            step_id=step.step_id,
            rows=step.rows,
            forward_s=step.computed.seconds_since(step.begun),
            sample_s=step.ended.seconds_since(step.computed),
            idle_s=0.0 if last is None else max(0.0, step.begun.seconds_since(last)),
            is_divided=step.is_divided,
        )

    def collect(self, step: BegunStep) -> None:
        """Read a step's draws, unless that is done already. Mutates: step, rows, sampling state"""
        if step.rows is None:
            rows = self._results(step) if step.pooled is None else step.pooled()
            step.rows = tuple(step.aligned.get(i, row) for i, row in enumerate(rows))

    def _results(self, step: BegunStep) -> tuple[RowResult, ...]:
        """Read the draws and assemble every row's result. Mutates: rows"""
        steps, (prompt, faults) = step.inputs.steps, step.prompt()
        if step.drawn is None:
            return row_results(steps, [], Draws(token_ids=[]), prompt, faults)
        sampling, pending, expected = step.drawn
        draws = pending.collect()
        self._batch.fill(expected, draws.token_ids)
        forced = self._force(expected.rows, draws)
        if len(sampling) == len(steps) and not (
            draws.faults or draws.logprobs or prompt or faults or forced
        ):
            return tuple(
                RowResult(row=one.row, token_ids=(token_id,))
                for one, token_id in zip(steps, draws.token_ids, strict=True)
            )
        return row_results(steps, sampling.tolist(), draws, prompt, faults, forced)

    def _force(self, rows: np.ndarray, draws: Draws) -> dict[int, tuple[int, ...]]:
        """Add the tokens that constraints force on rows; return them by index of the draw.

        Mutates: rows, sampling state
        """
        if self._forcing is None:
            return {}
        drew = {row: i for i, row in enumerate(rows.tolist()) if i not in draws.faults}
        forced = {}
        for row, token_ids in self._forcing.forced(tuple(drew)).items():
            self._batch.extend(row, token_ids)
            self._sampler.note(row, token_ids)
            forced[drew[row]] = tuple(token_ids)
        return forced
