"""StageLink and HandOnEnd: one rank's connections to the pipeline stages before and after it.

Hidden states are received before the forward pass and sent after it, so that the pass itself can be
recorded or captured. The last stage draws tokens; the others get them before a row's next step.
"""

from __future__ import annotations

import torch

from dovetail.errors import BrokenPlugin
from dovetail.interfaces.data.spec import RunSpec
from dovetail.interfaces.data.step import StepResult
from dovetail.interfaces.executor import Preparation
from dovetail.interfaces.structured_output import CompiledConstraint
from dovetail.layers.dtypes import dtype_of
from dovetail.layers.stages import stage_of
from dovetail.parallel.groups import stage_after, stage_before
from dovetail.runner.load.loader import LoadedModel
from dovetail.runner.rows.batch import Expected, StepInputs
from dovetail.runner.step.allocated import Allocated
from dovetail.runner.step.part import Ending, RunnerPart
from dovetail.runner.step.step_reader import BegunStep, Computed


class StageLink(RunnerPart):
    """The connection to the stage before, of a run with several stages."""

    def __init__(self, run: RunSpec, device: torch.device) -> None:
        self._rank, self._dtype, self._device = run.rank, dtype_of(run.model.dtype), device
        self._plugin = run.model_plugin
        self._num_tokens = max(run.max_step_tokens, *(run.graph_sizes or (0,)))
        self._inbox: torch.Tensor | None = None

    def attach(self, loaded: LoadedModel) -> None:
        """Connect a model to the received hidden states. Mutates: self. Raises: BrokenPlugin for a
        model without a Stage"""
        stage = stage_of(loaded.module)
        if stage is None:
            raise BrokenPlugin(
                f"the model plugin {self._plugin.name} claims pipeline_parallel and has no Stage.",
                where="--pipeline-parallel-size",
                fix="use 1, or mend the plugin (see dovetail.layers.stages).",
            )
        if not self._rank.is_first_stage:
            shape = (self._num_tokens, stage.width)
            self._inbox = torch.zeros(shape, dtype=self._dtype, device=self._device)
        stage.inbox = self._inbox

    def begin(self, inputs: StepInputs) -> None:
        """Wait for the hidden states of a step's tokens. Mutates: the inbox"""
        if self._inbox is not None:
            stage_before().receive(self._inbox[: len(inputs.token_ids)])


class HandOnEnd(Ending):
    """The end of all stages but the last: hidden states go to the next stage, and the tokens that
    the last stage draws come back later."""

    prepares = (CompiledConstraint,)

    def prepare(self, item: Preparation) -> None:
        """Ignore a constraint: the last stage uses it."""

    def allocate(self, storage: Allocated) -> None:
        """Await tokens for the rows of a batch. Mutates: self"""
        self._batch = storage.batch
        self._steps: dict[int, Expected] = {}

    def end(self, step: BegunStep, computed: Computed) -> None:
        """Send a step's hidden states to the next stage; nothing is drawn here. Mutates: step,
        self"""
        stage_after().send(computed.hidden)
        self._steps[step.step_id] = self._batch.awaiting(step.inputs.rows[step.inputs.samples])
        step.rows = ()

    def learn(self, result: StepResult) -> None:
        """Append the drawn tokens to rows that still hold the same request. Mutates: self, rows"""
        expected = self._steps.pop(result.step_id, None)
        if expected is None:  # a step without rows draws nothing
            return
        alive = set(expected.rows[self._batch.is_alive(expected)].tolist())
        for row in result.rows:
            if row.row in alive and row.token_ids:
                self._batch.extend(row.row, row.token_ids)

    def make_up(self, step_id: int) -> None:
        """Append token 0 for the draws of an artificial step. Mutates: self, rows"""
        expected = self._steps.pop(step_id, None)
        for row in () if expected is None else expected.rows.tolist():
            self._batch.extend(row, (0,))
