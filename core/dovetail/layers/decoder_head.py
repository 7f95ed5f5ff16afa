"""Which heads a decoder is built with, and what makes numbers of classes of its hidden states."""

from __future__ import annotations

from torch import nn

from dovetail.config.rules.architectures import PROCESS_REWARD, REWARD
from dovetail.interfaces.model import BuildContext
from dovetail.interfaces.spec import ModelSpec
from dovetail.layers.class_head import NO_CLASSES, class_linear
from dovetail.layers.linear import ReplicatedLinear
from dovetail.layers.stages import Stage, made_if

WITH_BIAS = "ForTokenClassification"
"""End of the names of classes whose matrix of classes has a bias."""
TWO_LAYERS = (REWARD, PROCESS_REWARD)
"""Ends of the names of classes that judge by a layer more than a matrix."""


def generates(model: ModelSpec) -> bool:
    """Return whether a model is built with the head that makes logits of the vocabulary."""
    return model.head == "logits"


def class_score(context: BuildContext, stage: Stage, *, in_size: int | None = None) -> nn.Module:
    """Return the `score` of a decoder, of the layout that its class is published in; on the last
    stage of models that are built to tell classes apart."""
    model = context.model
    has_classes = model.head in ("classes", "token_classes")

    def make() -> nn.Module:
        if model.architecture.endswith(TWO_LAYERS):
            return RewardScore(context, "score")
        has_bias = model.architecture.endswith(WITH_BIAS)
        return class_linear(context, "score", bias=has_bias, in_size=in_size)

    return made_if(has_classes and stage.is_last, make)


class RewardScore(nn.Sequential):
    """w2 relu(w1 x + b1) + b2: the rewards of tokens, or what the steps that they end are.

    Source: Yang et al., Qwen2.5-Math, 2024; the names are those of its checkpoints.
    """

    def __init__(self, context: BuildContext, name: str) -> None:
        size = context.model.hidden_size
        first = ReplicatedLinear(context, f"{name}.0", size, size, bias=True)
        first.if_missing = NO_CLASSES
        super().__init__(first, nn.ReLU(), class_linear(context, f"{name}.2"))
