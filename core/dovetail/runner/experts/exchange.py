"""ExpertExchange: a runner's part in the token exchange of engines that share experts."""

from __future__ import annotations

import torch

from dovetail.interfaces.data.spec import RunSpec
from dovetail.interfaces.data.step import StepPlan
from dovetail.layers.moe.experts import Experts, help_others
from dovetail.parallel.engines import exchange
from dovetail.runner.load.loader import LoadedModel
from dovetail.runner.step.part import RunnerPart


class ExpertExchange(RunnerPart):
    """Announces each pass of the model, and helps the other engines in steps without rows."""

    def __init__(self, run: RunSpec, device: torch.device) -> None:
        self._model = run.model
        self._device = device

    def attach(self, loaded: LoadedModel) -> None:
        """Note a model's experts. Mutates: self"""
        self._experts = [m for m in loaded.module.modules() if isinstance(m, Experts)]
        found = exchange()
        assert found is not None, "a process joins the engines before it loads a model"
        self._exchange = found

    def before_pass(self, token_ids: torch.Tensor) -> None:
        """Begin a pass of the exchange. Shapes: token_ids [T]. Mutates: the exchange"""
        self._exchange.begin_step(len(token_ids))

    def idle(self, plan: StepPlan) -> None:
        """Compute what the other engines need. Mutates: the exchange"""
        self._exchange.begin_step(0)
        help_others(self._experts, self._model, self._device)
