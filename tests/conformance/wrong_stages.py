"""Plugins that break a promise about the stages of a pipeline each."""

from __future__ import annotations

import torch

from dovetail.interfaces.data.step import StepPlan, StepResult
from dovetail_plugins.communicators.gloo import GlooCommunicator
from dovetail_plugins.executors.mp import MpExecutor
from dovetail_plugins.models import phi3
from dovetail_plugins.schedulers.continuous import ContinuousScheduler


class SecretiveExecutor(MpExecutor):
    """Tells the first stages nothing."""

    def _pass_on(self, result: StepResult) -> None:
        """Keep the result."""


class TwistingCommunicator(GlooCommunicator):
    """Sends the numbers in another order."""

    def send(self, x: torch.Tensor) -> None:
        """Send what is last first."""
        super().send(x.flip(0))


class PatientScheduler(ContinuousScheduler):
    """Waits for each result before the next plan."""

    def plan(self) -> StepPlan:
        """Return an empty plan while a step is under way."""
        if self._pending_steps:
            return StepPlan(step_id=0, rows=())
        return super().plan()


class Phi3ForCausalLM(phi3.Phi3ForCausalLM):
    """Its later stages forget where they began."""

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return the hidden states, of a later stage doubled."""
        hidden = super().forward(token_ids, positions)
        return hidden if self.model.stage.is_first else hidden * 2
