"""StageLink: one rank's connections to the pipeline stages before and after it.

Hidden states are received before the forward pass and sent after it, so that the pass itself can be
recorded or captured. The last stage draws tokens; the others get them by UnseenDraws before a row's
next step.
"""

from __future__ import annotations

import torch
from torch import nn

from dovetail.errors import BrokenPlugin
from dovetail.interfaces.data.spec import RunSpec
from dovetail.interfaces.data.step import StepResult
from dovetail.layers.dtypes import dtype_of
from dovetail.layers.stages import stage_of
from dovetail.parallel.groups import stage_after, stage_before
from dovetail.runner.rows.batch import Batch, Expected, StepInputs


class StageLink:
    """Without a pipeline, nothing is received or sent."""

    def __init__(self, run: RunSpec, device: torch.device) -> None:
        self._rank, self._dtype, self._device = run.rank, dtype_of(run.model.dtype), device
        self.is_last = run.rank.is_last_stage
        self._plugin = run.model_plugin
        self._num_tokens = max(run.max_step_tokens, *(run.graph_sizes or (0,)))
        self._inbox: torch.Tensor | None = None

    def attach(self, module: nn.Module) -> None:
        """Connect a model to the received hidden states. Mutates: self. Raises: BrokenPlugin for a
        model without a Stage"""
        if self._rank.num_stages == 1:
            return
        stage = stage_of(module)
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

    def receive(self, num_tokens: int) -> None:
        """Wait for the hidden states of a step's tokens. Mutates: the inbox"""
        if self._inbox is not None:
            stage_before().receive(self._inbox[:num_tokens])

    def send(self, hidden: torch.Tensor) -> None:
        """Send the hidden states of a step to the next stage. Shapes: hidden [T, width]"""
        stage_after().send(hidden)


class UnseenDraws:
    """The steps of this stage whose tokens the last stage draws."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._steps: dict[int, Expected] = {}

    def begin(self, step_id: int, inputs: StepInputs) -> None:
        """Note which rows draw in a step. Mutates: self"""
        self._steps[step_id] = self._batch.awaiting(inputs.rows[inputs.samples])

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
