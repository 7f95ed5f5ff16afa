"""The classifier of pooled hidden states: one matrix, or a layer and a matrix."""

from __future__ import annotations

import torch
from torch import nn

from dovetail.config.checkpoint.labels import labels
from dovetail.interfaces.model import BuildContext
from dovetail.layers.activation import activation
from dovetail.layers.linear import ReplicatedLinear


def class_linear(context: BuildContext, name: str) -> ReplicatedLinear:
    """Return the classifier matrix, whole on every rank."""
    model = context.model
    return ReplicatedLinear(
        context, name, model.hidden_size, len(labels(model.hf_config)), bias=True
    )


class DenseClasses(nn.Module):
    """out(norm(act(dense(x)))), most families without the norm: the classes of a prompt."""

    def __init__(
        self,
        context: BuildContext,
        *,
        act: str = "tanh",
        bias: bool = True,
        norm: nn.Module | None = None,
    ) -> None:
        super().__init__()
        size = context.model.hidden_size
        self.dense = ReplicatedLinear(context, "head.dense", size, size, bias=bias)
        self.act = activation(act)
        self.norm = norm
        self.out = class_linear(context, "head.out")

    def forward(self, pooled: torch.Tensor) -> torch.Tensor:
        """Shapes: pooled [S, E] -> [S, C]"""
        x = self.act(self.dense(pooled))
        return self.out(x if self.norm is None else self.norm(x))
