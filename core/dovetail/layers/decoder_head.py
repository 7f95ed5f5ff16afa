"""The heads that a decoder is built with, including classification heads."""

from __future__ import annotations

import torch
from torch import nn

from dovetail.config.checkpoint.labels import labels
from dovetail.config.rules.model.architectures import PROCESS_REWARD, REWARD
from dovetail.interfaces.data.spec import CLASSES, LOGITS, TOKEN_CLASSES, ModelSpec
from dovetail.interfaces.model import BuildContext, Model
from dovetail.layers.embedding import VocabParallelEmbedding
from dovetail.layers.linear import ReplicatedLinear
from dovetail.layers.logits import LogitsHead
from dovetail.layers.stages import Stage, made_if

HEAD = "lm_head"
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


def lm_head(
    context: BuildContext,
    stage: Stage,
    *,
    tied: VocabParallelEmbedding | None,
    in_size: int | None = None,
    bias: bool = False,
    soft_cap: float | None = None,
    scale: float = 1.0,
) -> nn.Module:
    """Return the LM head of a decoder; only on the last stage of a model that generates. `tied` is
    the table that is its matrix as well, if there is one."""
    model = context.model

    def make() -> LogitsHead:
        sizes = (model.vocab_size, in_size or model.hidden_size)
        return LogitsHead(
            context, HEAD, *sizes, bias=bias, tied=tied, soft_cap=soft_cap, scale=scale
        )

    return made_if(generates(model) and stage.is_last, make)


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
    matrix = ReplicatedLinear(context, name, in_size, out_size, bias=bias)
    matrix.if_missing = NO_CLASSES
    return matrix


class RewardScore(nn.Sequential):
    """w2 relu(w1 x + b1) + b2: rewards of tokens, or classes of the reasoning steps that they end.

    Source: Yang et al., Qwen2.5-Math, 2024; the names are those of its checkpoints.
    """

    def __init__(self, context: BuildContext, size: int) -> None:
        count = len(labels(context.model.hf_config))
        first = _matrix(context, "score.0", size, size, bias=True)
        super().__init__(first, nn.ReLU(), _matrix(context, "score.2", size, count, bias=True))


class HeadedDecoder(nn.Module, Model):
    """A model with the heads that `lm_head` and `class_score` make."""

    lm_head: nn.Module
    score: nn.Module

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits of selected tokens. Shapes: hidden [S, E] -> [S, V]"""
        found: torch.Tensor = self.lm_head(hidden)
        return found

    def classes(self, pooled: torch.Tensor) -> torch.Tensor:
        """Return the class scores. Shapes: pooled [S, E] -> [S, C]"""
        found: torch.Tensor = self.score(pooled)
        return found
