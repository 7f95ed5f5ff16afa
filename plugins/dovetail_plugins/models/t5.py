"""T5's encoder: RMS norms before what they serve, no biases, positions by attention's biases alone.

mT5 is the same; UMT5 has biases by position in each layer.
Sources: Raffel et al. 2019, Xue et al. 2020, Chung et al. 2023.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from torch import nn

from dovetail.errors import ConfigError
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.spec import CLASSES, ModelSpec
from dovetail.layers.embedding import VocabParallelEmbedding
from dovetail.layers.encoder import (
    Around,
    EncoderAttention,
    EncoderConfig,
    EncoderLayer,
    EncoderModel,
    usual_encoder,
)
from dovetail.layers.position_bias import BucketBias, PositionBias

SHARED_BIAS = (
    ("encoder.block.0.layer.0.SelfAttention.relative_attention_bias.", "position_bias."),
)
"""Where the biases of all layers are stored: in the first."""
RENAMES = (
    ("shared.", "embeddings.words."),
    ("encoder.block.", "layers."),
    ("encoder.final_layer_norm.", "final_norm."),
    (".layer.0.SelfAttention.", ".attention."),
    (".attention.o.", ".attention.o_proj."),
    (".layer.0.layer_norm.", ".attention_norm."),
    (".layer.1.DenseReluDense.wi.", ".up_proj."),
    (".layer.1.DenseReluDense.wo.", ".down_proj."),
    (".layer.1.DenseReluDense.", "."),
    (".layer.1.layer_norm.", ".output_norm."),
    ("classifier.", "head."),
)
FUSED = {
    "q": ("qkv_proj", "q"),
    "k": ("qkv_proj", "k"),
    "v": ("qkv_proj", "v"),
    "wi_0": ("gate_up_proj", "gate"),
    "wi_1": ("gate_up_proj", "up"),
}


class Words(nn.Module):
    """The vectors of token ids, and nothing else."""

    def __init__(self, context: BuildContext) -> None:
        super().__init__()
        model = context.model
        self.words = VocabParallelEmbedding(context, model.vocab_size, model.hidden_size)

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Shapes: token_ids [T] -> [T, E]"""
        return self.words(token_ids)


def _bias(context: BuildContext) -> BucketBias:
    """Return biases by relative position, of buckets that the config counts."""
    facts = context.model.hf_config
    return BucketBias(
        context,
        num_buckets=int(facts["relative_attention_num_buckets"]),
        max_distance=int(facts["relative_attention_max_distance"]),
    )


class T5EncoderModel(EncoderModel):
    """T5's encoder, for vectors of prompts or classes of their tokens."""

    info = Info(summary="T5's and mT5's encoders", source="https://arxiv.org/abs/1910.10683")
    renames: ClassVar[tuple[tuple[str, str], ...]] = (*SHARED_BIAS, *RENAMES)

    @classmethod
    def encoder_config(cls, model: ModelSpec) -> EncoderConfig:
        """Return how it differs from BERT."""
        gated, _, act = str(model.hf_config["feed_forward_proj"]).rpartition("-")
        return usual_encoder(
            model,
            num_positions=0,
            num_types=0,
            hidden_act="gelu_new" if gated and act == "gelu" else act,
            is_gated=bool(gated),
            has_norms_before=True,
            has_rms_norms=True,
            has_qkv_bias=False,
            has_out_bias=False,
            has_up_bias=False,
            has_down_bias=False,
            scale=1.0,
        )

    def build_embeddings(self, context: BuildContext, config: EncoderConfig) -> nn.Module:
        """Return what makes the first states: words alone."""
        return Words(context)

    def build_position_bias(self, context: BuildContext) -> PositionBias | None:
        """Return the biases that all layers share."""
        return _bias(context)

    def build_head(self, context: BuildContext) -> nn.Module:
        """Return what makes classes of tokens. Raises: ConfigError where a decoder makes them"""
        if context.model.head == CLASSES:
            raise ConfigError(
                "T5 tells classes of texts by the last state of its decoder, and only its encoder "
                "is supported.",
                where="config.json: architectures",
                fix="--convert embed for vectors of texts, or a checkpoint that tells classes of "
                "tokens.",
            )
        return super().build_head(context)

    def weight_map(self) -> WeightMap:
        """Return the names."""
        unused = ("decoder.", "lm_head.", "embed_tokens.", "classification_head.")
        return WeightMap(
            prefixes=(("transformer.", ""),),
            renames=self.renames,
            fused=FUSED,
            ignored=unused if self.head is not None else (*unused, "classifier."),
        )


class UMT5Attention(EncoderAttention):
    """Attention with its own biases by position."""

    def __init__(self, context: BuildContext, name: str, config: EncoderConfig, layer: int) -> None:
        super().__init__(context, name, config, layer)
        self.relative_attention_bias = _bias(context)

    def forward(self, x: torch.Tensor, residual: torch.Tensor, around: Around) -> torch.Tensor:
        """Return residual and what attention adds to it. Shapes: x, residual [T, E] -> [T, E]"""
        own = replace(around, bias=self.relative_attention_bias.table)
        return super().forward(x, residual, own)


class UMT5Layer(EncoderLayer):
    """A layer of UMT5."""

    def build_attention(
        self, context: BuildContext, name: str, config: EncoderConfig, layer: int
    ) -> nn.Module:
        """Return the attention among all tokens of a row."""
        return UMT5Attention(context, name, config, layer)


class UMT5EncoderModel(T5EncoderModel):
    """UMT5's encoder: T5's with biases by position in each layer."""

    info = Info(summary="UMT5's encoder", source="https://arxiv.org/abs/2304.09151")
    layer_class = UMT5Layer
    renames = RENAMES

    def build_position_bias(self, context: BuildContext) -> None:
        """Return nothing: no biases are shared."""
