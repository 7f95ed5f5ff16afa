"""BART and related models: a text encoder like BERT's, and a decoder.

BART has learned positions and post-norm layers; mBART is pre-norm. Pegasus and Marian have
sinusoidal positions; Pegasus is pre-norm.
Sources: Lewis et al. 2019; Liu et al. 2020; Zhang et al. 2019; Junczys-Dowmunt et al. 2018
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import nn

from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.dtypes import dtype_of
from dovetail.layers.embedding import PositionEmbedding, VocabParallelEmbedding
from dovetail.layers.linear.placement import mark_axes
from dovetail.layers.norm import LayerNorm
from dovetail_plugins.layers.cross_decoder import (
    CrossDecoderConfig,
    EncoderDecoder,
    encoder_context,
    of_layers,
)
from dovetail_plugins.layers.encoder import EncoderConfig, EncoderModel

EPS = 1e-5
POSITION_OFFSET = 2
"""Rows of a table of positions before that of the first token."""
ENCODER_LAYER = {
    "self_attn.out_proj": "attention.o_proj",
    "self_attn": "attention",
    "self_attn_layer_norm": "attention_norm",
    "fc1": "up_proj",
    "fc2": "down_proj",
    "final_layer_norm": "output_norm",
}
DECODER_LAYER = {
    "self_attn.out_proj": "self_attn.o_proj",
    "self_attn_layer_norm": "self_norm",
    "encoder_attn.q_proj": "cross_attn.query_proj",
    "encoder_attn.k_proj": "cross_attn.cross_k",
    "encoder_attn.v_proj": "cross_attn.cross_v",
    "encoder_attn.out_proj": "cross_attn.o_proj",
    "encoder_attn_layer_norm": "cross_norm",
    "fc1": "mlp.up_proj",
    "fc2": "mlp.down_proj",
    "final_layer_norm": "mlp_norm",
}
FUSED = {
    **{f"{n}_proj": ("qkv_proj", n) for n in "qkv"},
    "cross_k": ("kv_proj", "k"),
    "cross_v": ("kv_proj", "v"),
}


def waves(count: int, size: int) -> torch.Tensor:
    """Return positions of sines, then cosines. Shapes: [count, size] float64"""
    place = torch.arange(count, dtype=torch.float64).unsqueeze(1)
    rate = 10000.0 ** (torch.arange(0, size, 2, dtype=torch.float64) / size)
    return torch.cat([(place / rate).sin(), (place / rate).cos()], dim=1)


class WordsAndPositions(nn.Module):
    """Words and positions, summed and, in some families, normed."""

    def __init__(
        self, words: VocabParallelEmbedding, positions: nn.Module, norm: nn.Module | None
    ) -> None:
        super().__init__()
        self.words, self.positions, self.norm = words, positions, norm

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Shapes: token_ids, positions [T] -> [T, E]"""
        x = self.positions(positions, self.words(token_ids))
        return x if self.norm is None else self.norm(x)


class BartEncoder(EncoderModel):
    """BART's encoder; it receives its first states."""

    info = Info(summary="BART's encoder", source="https://arxiv.org/abs/1910.13461")
    has_norms_before: ClassVar[bool] = False

    @classmethod
    def encoder_config(cls, model: ModelSpec) -> EncoderConfig:
        """Return how it differs from BERT."""
        facts = model.hf_config
        return EncoderConfig(
            inner_size=int(facts["encoder_ffn_dim"]),
            num_positions=0,
            num_types=0,
            hidden_act=str(facts["activation_function"]),
            norm_eps=EPS,
            has_norms_before=cls.has_norms_before,
        )

    def build_embeddings(self, context: BuildContext, config: EncoderConfig) -> nn.Module:
        """Return a placeholder: the decoder's word table is put there."""
        return nn.Identity()

    def weight_map(self) -> WeightMap:
        """Return no names: the whole model has them."""
        return WeightMap()


class PreNormEncoder(BartEncoder):
    """A pre-norm encoder."""

    has_norms_before = True


class BartForConditionalGeneration(EncoderDecoder):
    """BART: learned positions, post-norm."""

    info = Info(summary="BART", source="https://arxiv.org/abs/1910.13461")
    encoder_class: ClassVar[type[BartEncoder]] = BartEncoder
    has_waves: ClassVar[bool] = False
    norms_input: ClassVar[bool] = True
    """Whether a norm follows the sum of words and positions."""

    def __init__(self, options: Any, context: BuildContext) -> None:
        super().__init__(options, context)
        zeros = torch.zeros(
            1, context.model.vocab_size, dtype=dtype_of(context.model.dtype), device=context.device
        )
        bias = nn.Parameter(zeros, requires_grad=False)
        self.final_logits_bias = mark_axes(bias, output=None, input=None, is_optional=True)

    @classmethod
    def decoder_config(cls, context: BuildContext) -> CrossDecoderConfig:
        """Return how the decoder differs, read from its config."""
        model, facts = context.model, context.model.hf_config
        return CrossDecoderConfig(
            num_layers=int(facts["decoder_layers"]),
            inner_size=int(facts["decoder_ffn_dim"]),
            hidden_act=str(facts["activation_function"]),
            norm_eps=EPS,
            has_norms_before=cls.encoder_class.has_norms_before,
            is_tied=facts.get("tie_word_embeddings") is not False,
            embedding_scale=math.sqrt(model.hidden_size) if facts.get("scale_embedding") else 1.0,
        )

    def build_encoder(
        self, options: Any, context: BuildContext, words: VocabParallelEmbedding
    ) -> nn.Module:
        """Return the encoder, with the table of words that the decoder has."""
        facts = context.model.hf_config
        own = encoder_context(
            context,
            num_layers=int(facts["encoder_layers"]),
            num_heads=int(facts["encoder_attention_heads"]),
        )
        if (
            context.model.hidden_size // int(facts["encoder_attention_heads"])
            != own.model.head_size
        ):
            raise ConfigError(
                "heads of encoder and decoder that differ in size are not supported.",
                where="config.json: encoder_attention_heads",
            )
        encoder = self.encoder_class(options, own)
        encoder.embeddings = self.build_embed(context, words)
        return encoder

    def build_embed(self, context: BuildContext, words: VocabParallelEmbedding) -> nn.Module:
        """Return words and positions."""
        model = context.model
        count, size = int(model.hf_config["max_position_embeddings"]), model.hidden_size
        if self.has_waves:
            positions = PositionEmbedding(context, count, size, table=waves(count, size))
        else:
            positions = PositionEmbedding(context, count, size, offset=POSITION_OFFSET)
        norm = LayerNorm(context, size, eps=EPS) if self.norms_input else None
        return WordsAndPositions(words, positions, norm)

    def weight_map(self) -> WeightMap:
        """Return the names."""
        num_encoder_layers = len(list(self.encoder.get_submodule("layers").children()))
        derived = ("embed_positions.",) if self.has_waves else ()
        return WeightMap(
            prefixes=(("model.", ""),),
            renames=(
                ("shared.", "words."),
                ("encoder.embed_positions.", "encoder.embeddings.positions."),
                ("decoder.embed_positions.", "decoder.embed.positions."),
                ("encoder.layernorm_embedding.", "encoder.embeddings.norm."),
                ("decoder.layernorm_embedding.", "decoder.embed.norm."),
                ("coder.layer_norm.", "coder.final_norm."),
                *of_layers("encoder.layers.", "encoder.layers.", num_encoder_layers,
                           ENCODER_LAYER),
                *of_layers("decoder.layers.", "decoder.layers.", len(self.decoder.layers),
                           DECODER_LAYER),
            ),
            fused=FUSED,
            ignored=derived,
            tied=self.tied_names(),
        )  # fmt: skip

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits of selected tokens. Shapes: hidden [S, E] -> [S, V]"""
        return super().logits(hidden) + self.final_logits_bias


class MBartForConditionalGeneration(BartForConditionalGeneration):
    """mBART: pre-norm."""

    info = Info(summary="mBART", source="https://arxiv.org/abs/2001.08210")
    encoder_class = PreNormEncoder


class PegasusForConditionalGeneration(BartForConditionalGeneration):
    """Pegasus: sinusoidal positions, pre-norm."""

    info = Info(summary="Pegasus", source="https://arxiv.org/abs/1912.08777")
    encoder_class = PreNormEncoder
    has_waves, norms_input = True, False


class MarianMTModel(BartForConditionalGeneration):
    """Marian: sinusoidal positions, post-norm."""

    info = Info(summary="Marian (OPUS-MT)", source="https://arxiv.org/abs/1804.00344")
    has_waves, norms_input = True, False

    def __init__(self, options: Any, context: BuildContext) -> None:
        facts = context.model.hf_config
        if facts.get("share_encoder_decoder_embeddings") is False:
            raise ConfigError(
                "two vocabularies, the encoder's and the decoder's, are not supported.",
                where="config.json: share_encoder_decoder_embeddings",
                fix="use a checkpoint that shares them.",
            )
        super().__init__(options, context)
