"""T5: pre-norm with RMS norms, no biases, positions only by attention's biases.

The encoder alone computes embeddings; with its decoder it reads the prompt. mT5 is the same; UMT5
has biases by position in each layer.
Sources: Raffel et al. 2019, Xue et al. 2020, Chung et al. 2023.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import nn

from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import CLASSES, ModelSpec
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.embedding import VocabParallelEmbedding
from dovetail_plugins.layers.attention.position_bias import BucketBias, PositionBias
from dovetail_plugins.layers.cross_decoder import (
    CrossDecoderConfig,
    CrossDecoderLayer,
    EncoderDecoder,
    encoder_context,
    of_layers,
)
from dovetail_plugins.layers.encoder import (
    Around,
    EncoderAttention,
    EncoderConfig,
    EncoderLayer,
    EncoderModel,
    usual_encoder,
)
from dovetail_plugins.model_types.t5 import num_decoder_layers
from dovetail_plugins.models.bert import OWN_FUSED

SHARED_BIAS = (
    ("encoder.block.0.layer.0.SelfAttention.relative_attention_bias.", "position_bias."),
)
"""The layer that stores the biases of all layers: the first."""
OWN_BIAS = (("layers.0.attention.relative_attention_bias.", "position_bias."),)
"""The same by the names here, which GGUF files are read by."""
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
    **OWN_FUSED,
    "q": ("qkv_proj", "q"),
    "k": ("qkv_proj", "k"),
    "v": ("qkv_proj", "v"),
    "wi_0": ("gate_up_proj", "gate"),
    "wi_1": ("gate_up_proj", "up"),
}
HALVES = {f"{half}_proj": ("gate_up_proj", half) for half in ("gate", "up")}
"""The names here of the halves of a gated inner layer."""


class TokenVectors(nn.Module):
    """Only the vectors of token ids."""

    def __init__(self, context: BuildContext) -> None:
        super().__init__()
        model = context.model
        self.words = VocabParallelEmbedding(context, model.vocab_size, model.hidden_size)

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Shapes: token_ids [T] -> [T, E]"""
        return self.words(token_ids)


def _bias(context: BuildContext, *, is_causal: bool = False) -> BucketBias:
    """Return biases by relative position, of buckets that the config counts."""
    facts = context.model.hf_config
    return BucketBias(
        context,
        num_buckets=int(facts["relative_attention_num_buckets"]),
        max_distance=int(facts["relative_attention_max_distance"]),
        is_causal=is_causal,
    )


def _inner(model: ModelSpec) -> tuple[bool, str]:
    """Return whether the inner layer is gated, and its activation."""
    gated, _, act = str(model.hf_config["feed_forward_proj"]).rpartition("-")
    return bool(gated), "gelu_new" if gated and act == "gelu" else act


class T5EncoderModel(EncoderModel):
    """T5's encoder, for vectors of prompts or classes of their tokens."""

    info = Info(summary="T5's and mT5's encoders", source="https://arxiv.org/abs/1910.10683")
    renames: ClassVar[tuple[tuple[str, str], ...]] = (*SHARED_BIAS, *OWN_BIAS, *RENAMES)

    @classmethod
    def encoder_config(cls, model: ModelSpec) -> EncoderConfig:
        """Return how it differs from BERT."""
        is_gated, act = _inner(model)
        return usual_encoder(
            model,
            num_positions=0,
            num_types=0,
            hidden_act=act,
            is_gated=is_gated,
            has_norms_before=True,
            has_rms_norms=True,
            has_qkv_bias=False,
            has_out_bias=False,
            has_up_bias=False,
            has_down_bias=False,
            scale=1.0,
        )

    def build_embeddings(self, context: BuildContext, config: EncoderConfig) -> nn.Module:
        """Return the module of the first states: only words."""
        return TokenVectors(context)

    def build_position_bias(self, context: BuildContext) -> PositionBias | None:
        """Return the biases that all layers share."""
        return _bias(context)

    def build_head(self, context: BuildContext) -> nn.Module:
        """Return the token classifier. Raises: ConfigError if a decoder computes the classes"""
        if context.model.head == CLASSES:
            raise ConfigError(
                "T5 tells classes of texts by the last state of its decoder, which is supported "
                "for generating alone.",
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
            fused={**FUSED, **(HALVES if self.layers[0].is_gated else {})},
            ignored=unused if self.head is not None else (*unused, "classifier."),
        )


class UMT5Attention(EncoderAttention):
    """Attention with its own biases by position."""

    def __init__(self, context: BuildContext, name: str, config: EncoderConfig, layer: int) -> None:
        super().__init__(context, name, config, layer)
        self.relative_attention_bias = _bias(context)

    def forward(self, x: torch.Tensor, residual: torch.Tensor, around: Around) -> torch.Tensor:
        """Return residual plus attention's output. Shapes: x, residual [T, E] -> [T, E]"""
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


ENCODER_LAYER = {
    "layer.0.SelfAttention.o": "attention.o_proj",
    "layer.0.SelfAttention": "attention",
    "layer.0.layer_norm": "attention_norm",
    "layer.1.DenseReluDense.wi": "up_proj",
    "layer.1.DenseReluDense.wi_0": "wi_0",
    "layer.1.DenseReluDense.wi_1": "wi_1",
    "layer.1.DenseReluDense.wo": "down_proj",
    "layer.1.layer_norm": "output_norm",
}
DECODER_LAYER = {
    "layer.0.SelfAttention.o": "self_attn.o_proj",
    "layer.0.SelfAttention": "self_attn",
    "layer.0.layer_norm": "self_norm",
    "layer.1.EncDecAttention.q": "cross_attn.query_proj",
    "layer.1.EncDecAttention.k": "cross_attn.cross_k",
    "layer.1.EncDecAttention.v": "cross_attn.cross_v",
    "layer.1.EncDecAttention.o": "cross_attn.o_proj",
    "layer.1.layer_norm": "cross_norm",
    "layer.2.DenseReluDense.wi": "mlp.up_proj",
    "layer.2.DenseReluDense.wi_0": "mlp.wi_0",
    "layer.2.DenseReluDense.wi_1": "mlp.wi_1",
    "layer.2.DenseReluDense.wo": "mlp.down_proj",
    "layer.2.layer_norm": "mlp_norm",
}
OWN_ATTENTION = ("encoder.layers.0.attention.", "decoder.layers.0.self_attn.")
"""The modules here in whose names a GGUF file has the biases that layers share."""
FUSED_CROSS = {"cross_k": ("kv_proj", "k"), "cross_v": ("kv_proj", "v")}


class SharedWords(nn.Module):
    """A table of words that encoder and decoder share."""

    def __init__(self, words: VocabParallelEmbedding) -> None:
        super().__init__()
        self.words = words

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Shapes: token_ids [T] -> [T, E]"""
        return self.words(token_ids)


class T5ForConditionalGeneration(EncoderDecoder):
    """T5: a text encoder and a decoder."""

    info = Info(summary="T5 and FLAN-T5", source="https://arxiv.org/abs/1910.10683")
    encoder_class: ClassVar[type[T5EncoderModel]] = T5EncoderModel
    scales_logits: ClassVar[bool] = True
    """Whether hidden states are multiplied before a head that shares the table of words."""

    @classmethod
    def decoder_config(cls, context: BuildContext) -> CrossDecoderConfig:
        """Return how the decoder differs, read from its config."""
        model, facts = context.model, context.model.hf_config
        is_gated, act = _inner(model)
        is_tied = facts.get("tie_word_embeddings") is not False
        scales = cls.scales_logits and facts.get("scale_decoder_outputs", is_tied)
        return CrossDecoderConfig(
            num_layers=num_decoder_layers(facts),
            inner_size=int(facts["intermediate_size"]),
            hidden_act=act,
            norm_eps=float(facts["layer_norm_eps"]),
            is_gated=is_gated,
            has_norms_before=True,
            has_rms_norms=True,
            has_bias=False,
            scale=1.0,
            is_tied=is_tied,
            logit_scale=model.hidden_size**-0.5 if scales else 1.0,
        )

    def build_encoder(
        self, options: Any, context: BuildContext, words: VocabParallelEmbedding
    ) -> nn.Module:
        """Return T5's encoder, with the table of words that the decoder has."""
        facts = context.model.hf_config
        own = encoder_context(
            context, num_layers=int(facts["num_layers"]), num_heads=int(facts["num_heads"])
        )
        encoder = self.encoder_class(options, own)
        encoder.embeddings = self.build_embed(context, words)
        return encoder

    def build_embed(self, context: BuildContext, words: VocabParallelEmbedding) -> nn.Module:
        """Return the table of words."""
        return SharedWords(words)

    def build_position_bias(self, context: BuildContext) -> nn.Module | None:
        """Return the biases that the decoder's layers share."""
        return _bias(context, is_causal=True)

    def weight_map(self) -> WeightMap:
        """Return the names."""
        num_encoder_layers = len(list(self.encoder.get_submodule("layers").children()))
        stem, leaf = "block.0.layer.0.SelfAttention.", "relative_attention_bias."
        olds = (f"encoder.{stem}", f"decoder.{stem}", *OWN_ATTENTION)
        shared = tuple((f"{old}{leaf}", f"{old[:7]}.position_bias.") for old in olds)
        has_own = self.decoder.position_bias is None
        return WeightMap(
            renames=(
                ("shared.", "words."),
                *(() if has_own else shared),
                *of_layers("encoder.block.", "encoder.layers.", num_encoder_layers,
                           ENCODER_LAYER),
                *of_layers("decoder.block.", "decoder.layers.", len(self.decoder.layers),
                           DECODER_LAYER),
                (".final_layer_norm.", ".final_norm."),
            ),
            fused={**FUSED, **FUSED_CROSS, **(HALVES if self.config.is_gated else {})},
            tied=self.tied_names(),
        )  # fmt: skip


class MT5ForConditionalGeneration(T5ForConditionalGeneration):
    """mT5: hidden states go to the head unscaled."""

    info = Info(summary="mT5", source="https://arxiv.org/abs/2010.11934")
    scales_logits = False


class UMT5DecoderLayer(CrossDecoderLayer):
    """A layer of UMT5's decoder, with its own biases by position."""

    def __init__(self, context: BuildContext, name: str, config: CrossDecoderConfig) -> None:
        super().__init__(context, name, config)
        self.self_attn.relative_attention_bias = self._own = _bias(context, is_causal=True)

    def own_bias(self, shared: torch.Tensor | None) -> torch.Tensor | None:
        """Return the layer's biases."""
        return self._own.table


class UMT5ForConditionalGeneration(T5ForConditionalGeneration):
    """UMT5: biases by position in each layer."""

    info = Info(summary="UMT5", source="https://arxiv.org/abs/2304.09151")
    encoder_class = UMT5EncoderModel
    layer_class = UMT5DecoderLayer

    def build_position_bias(self, context: BuildContext) -> None:
        """Return nothing: no biases are shared."""
