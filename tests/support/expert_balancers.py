"""An ExpertBalancer over one layer, without a runner."""

from __future__ import annotations

from typing import cast

from msgspec.structs import replace as replaced
from torch import nn

from dovetail.interfaces.data.spec import ExpertBalanceSpec
from dovetail.interfaces.model import Model
from dovetail.layers.moe.experts import Experts
from dovetail.runner.experts.balancer import ExpertBalancer
from dovetail.runner.load.loader import LoadedModel
from dovetail_testing.tiny.transformer import tiny_run


def balancer_of(layer: Experts, spec: ExpertBalanceSpec | None) -> ExpertBalancer:
    """Return the balancer of a model with one layer, at work."""
    made = ExpertBalancer(replaced(tiny_run(), expert_balance=spec))
    module = cast(Model, nn.ModuleList([layer]))
    made.attach(LoadedModel(model=module, build_s=0, weights_s=0))
    made.open()
    return made
