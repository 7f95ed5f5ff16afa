"""The heads that a decoder is built with, including classification heads."""

from __future__ import annotations

from torch import nn

from dovetail.config.checkpoint.labels import labels
from dovetail.config.rules.model.architectures import PROCESS_REWARD, REWARD
from dovetail.interfaces.data.spec import CLASSES, LOGITS, TOKEN_CLASSES, ModelSpec
from dovetail.interfaces.model import BuildContext
from dovetail.layers.linear import ReplicatedLinear
from dovetail.layers.stages import Stage, made_if

WITH_BIAS = "ForTokenClassification"
"""Class names with this ending have a bias in the classification matrix."""
TWO_LAYERS = (REWARD, PROCESS_REWARD)
"""Class names with these endings have one more layer before the classification matrix."""
NO_CLASSES = (
    "the checkpoint has nothing that tells classes apart: use --convert embed, or a checkpoint "
    "that was trained to classify"
)


def generates(model: ModelSpec) -> bool:
    """Return whether a model is built with an LM head."""
    return model.head == LOGITS


def class_score(
    context: BuildContext,
    stage: Stage,
    *,
    in_size: int | None = None,
    two_layers: tuple[str, ...] = TWO_LAYERS,
) -> nn.Module:
    """Return the `score` head of a decoder, in the layout of its published class; only on the last
    stage of classification models. `two_layers` are endings of class names with two layers."""
    model = context.model
    has_classes = model.head in (CLASSES, TOKEN_CLASSES)

    def make() -> nn.Module:
        size = in_size or model.hidden_size
        if model.architecture.endswith(two_layers):
            return RewardScore(context, size)
        has_bias = model.architecture.endswith(WITH_BIAS)
        return _matrix(context, "score", size, len(labels(model.hf_config)), bias=has_bias)

    return made_if(has_classes and stage.is_last, make)


def _matrix(
    context: BuildContext, name: str, in_size: int, out_size: int, *, bias: bool
) -> ReplicatedLinear:
    """Return a matrix that few checkpoints have, replicated on every rank."""
    made = ReplicatedLinear(context, name, in_size, out_size, bias=bias)
    made.if_missing = NO_CLASSES
    return made


class RewardScore(nn.Sequential):
    """w2 relu(w1 x + b1) + b2: rewards of tokens, or classes of the reasoning steps that they end.

    Source: Yang et al., Qwen2.5-Math, 2024; the names are those of its checkpoints.
    """

    def __init__(self, context: BuildContext, size: int) -> None:
        count = len(labels(context.model.hf_config))
        first = _matrix(context, "score.0", size, size, bias=True)
        super().__init__(first, nn.ReLU(), _matrix(context, "score.2", size, count, bias=True))
