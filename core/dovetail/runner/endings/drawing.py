"""DrawingEnd: draws tokens from the hidden states of a step, and verifies its drafts.

The tokens drawn on an asynchronous device stay there for the next step; the host reads them later.
A fault of one row is reported in that row's result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import torch

from dovetail import registry
from dovetail.interfaces.acceptance import DraftProbabilities
from dovetail.interfaces.data.spec import RunSpec
from dovetail.interfaces.data.step import NewRow, RowResult, RowStep, StepPlan
from dovetail.interfaces.logits import LogitsProcessor
from dovetail.layers.dtypes import dtype_of
from dovetail.runner.device import DeviceCalls
from dovetail.runner.drafts import verify
from dovetail.runner.endings.processors import chosen_processors
from dovetail.runner.endings.prompt_logprobs import PromptFinish, PromptLogprobs
from dovetail.runner.endings.results import row_results, verified_results
from dovetail.runner.load.loader import LoadedModel
from dovetail.runner.rows.batch import Expected, StepInputs
from dovetail.runner.rows.tensors import DeviceTensors
from dovetail.runner.step.allocated import Allocated
from dovetail.runner.step.part import Ending
from dovetail.runner.step.step_reader import BegunStep, Computed
from dovetail.sampling.sampler import Draws, PendingDraws, Sampler
from dovetail.structured_output.cache import ConstraintCache
from dovetail.structured_output.mask_processor import ConstraintProcessor


class DrawingEnd(Ending):
    """The end of a run that generates, on the last stage. `forcing` knows the tokens that leave a
    row no choice, which follow a draw without one of their own (None: there are none);
    `draft_probabilities` None: drafts are not sampled. `cache` is that of constraints."""

    forcing: ConstraintProcessor | None = None
    cache: ConstraintCache | None = None
    draft_probabilities: DraftProbabilities | None = None
    sampler: Sampler

    def __init__(self, run: RunSpec, device: torch.device, calls: DeviceCalls) -> None:
        self._run = run
        self._device = device
        self._runs_ahead = calls.runs_ahead

    def start(self) -> None:
        """Report a faulty logits processor before the weights are read. Raises: BrokenPlugin"""
        self.processors()

    def attach(self, loaded: LoadedModel) -> None:
        """Draw from a model's logits from now on. Mutates: self"""
        self._model = loaded.model

    def processors(self) -> Mapping[str, LogitsProcessor]:
        """Return the logits processors that the run selected. Raises: BrokenPlugin"""
        return chosen_processors(self._run, self._device, self.cache)

    def allocate(self, storage: Allocated) -> None:
        """Create the sampling state. Mutates: self"""
        run, self._batch, self._draft_states = self._run, storage.batch, storage.draft_states
        tells_logits = run.logprobs_scale == "logits"
        self.sampler = Sampler(
            run.max_rows,
            storage.processors,
            tells_processed=run.logprobs_stage == "processed",
            tells_logits=tells_logits,
            acceptance=None if run.acceptance is None else registry.make(run.acceptance),
            vocab_size=run.model.vocab_size,
        )
        self._prompt_logprobs = PromptLogprobs(tells_logits=tells_logits)
        self._ahead: DeviceTensors | None = None
        if run.async_steps and isinstance(storage.step_tensors, DeviceTensors):
            self._ahead = storage.step_tensors

    def warm_up(self) -> None:
        """Compile the kernels of a device that later draws may need."""
        if self._runs_ahead:
            hidden = torch.zeros(1, self._run.model.hidden_size, device=self._device)
            self.sampler.warm_up(self._model.logits(hidden.to(dtype_of(self._run.model.dtype))))

    def free_row(self, row: int) -> None:
        """Forget a row; unknown rows are ignored. Mutates: self"""
        self.sampler.remove_row(row)
        self._prompt_logprobs.free_row(row)

    def add_row(self, new: NewRow) -> None:
        """Start a row. Mutates: self"""
        self._prompt_logprobs.add_row(new)
        self.sampler.add_row(self._batch.row_tokens(new), new.seed)

    def mark_failed(self, row: int, fault: str) -> None:
        """Remember a row's first fault: all its later draws are invalid. Mutates: self"""
        self.sampler.mark_failed(row, fault)

    def must_know(self, plan: StepPlan) -> bool:
        """Return whether a row of the step has a processor or drafts."""
        rows = np.array([step.row for step in plan.rows], dtype=np.int64)
        return self.sampler.has_processors(rows) or super().must_know(plan)

    def reads_all(self, inputs: StepInputs) -> bool:
        """Return whether some row of a step requests prompt logprobs."""
        return self._prompt_logprobs.asks(inputs)

    def end(self, step: BegunStep, computed: Computed) -> None:
        """Start to draw a step's tokens. Mutates: step, rows, sampling state"""
        inputs, sampling = step.inputs, step.sampling
        prompt = self._prompt_logprobs.begin(self._batch, inputs, computed.hidden, self._logits)
        if inputs.drafted and sampling.size:
            step.rows = self._verified(step, computed, prompt)
        elif sampling.size:
            rows = inputs.rows[sampling]
            pending = self._draw(computed, rows)
            drawn = pending, self._batch.expect(rows), prompt
            step.finish = partial(self._drawn, inputs.steps, sampling, *drawn)
        else:
            step.finish = lambda: row_results(inputs.steps, [], Draws(token_ids=[]), *prompt())

    def _logits(self, hidden: torch.Tensor, row: int | np.ndarray) -> torch.Tensor:
        """Return logits as the rows' parts change them, for one row or one row per line.

        Shapes: hidden [S, E], row [S] -> [S, V], or more if adapters add tokens
        """
        with self.around_vectors(row, len(hidden)):
            return self._model.logits(hidden)

    def _draw(self, computed: Computed, rows: np.ndarray) -> PendingDraws:
        """Start to draw a token for each row, and leave it on the device for the next step.

        Shapes: rows [S]. Mutates: sampling state
        """
        logits = partial(self._logits, _drawn_from(computed), rows)
        positions = self._batch.lengths[rows] - self._batch.num_prompt[rows]
        pending = self.sampler.begin(logits(), rows, positions, logits)
        if self._ahead is not None:
            assert computed.drawn_rows is not None
            self._ahead.last_tokens.index_copy_(0, computed.drawn_rows, pending.tokens)
        return pending

    def _drawn(
        self,
        steps: Sequence[RowStep],
        sampling: np.ndarray,
        pending: PendingDraws,
        expected: Expected,
        prompt: PromptFinish,
    ) -> tuple[RowResult, ...]:
        """Read the draws and assemble every row's result. Mutates: rows, sampling state"""
        prompt_logprobs, faults = prompt()
        draws = pending.collect()
        self._batch.fill(expected, draws.token_ids)
        forced = self._force(expected.rows, draws)
        if len(sampling) == len(steps) and not (
            draws.faults or draws.logprobs or prompt_logprobs or faults or forced
        ):
            return tuple(
                RowResult(row=one.row, token_ids=(token_id,))
                for one, token_id in zip(steps, draws.token_ids, strict=True)
            )
        return row_results(steps, sampling.tolist(), draws, prompt_logprobs, faults, forced)

    def _force(self, rows: np.ndarray, draws: Draws) -> dict[int, tuple[int, ...]]:
        """Add the tokens that are forced on rows; return them by index of the draw.

        Mutates: rows, sampling state
        """
        if self.forcing is None:
            return {}
        drew = {row: i for i, row in enumerate(rows.tolist()) if i not in draws.faults}
        forced = {}
        for row, token_ids in self.forcing.forced(tuple(drew)).items():
            self._batch.extend(row, token_ids)
            self.sampler.note(row, token_ids)
            forced[drew[row]] = tuple(token_ids)
        return forced

    def _verified(
        self, step: BegunStep, computed: Computed, prompt: PromptFinish
    ) -> tuple[RowResult, ...]:
        """Draw for as long as drafts are accepted, and assemble the results. Mutates: self"""
        inputs, sampling = step.inputs, step.sampling
        logits = partial(self._logits, _drawn_from(computed), verify.drawn_rows(inputs, sampling))
        draws = verify.verify_drafts(
            self.sampler, self._batch, inputs, sampling, logits, self.draft_probabilities
        )
        if self._draft_states.are_laid:
            self._draft_states.settle(verify.accepted(sampling, draws))
        return verified_results(inputs.steps, sampling.tolist(), draws, *prompt())

    def release(self) -> Sequence[torch.Tensor]:
        """Drop the rows and their sampling state. Mutates: self"""
        self.draft_probabilities, self._ahead = None, None
        del self.sampler, self._batch, self._draft_states
        return ()


def _drawn_from(computed: Computed) -> torch.Tensor:
    """Return the hidden states to sample after. Shapes: [S, E]"""
    return (
        computed.hidden if computed.drawn_after is None else computed.hidden[computed.drawn_after]
    )
