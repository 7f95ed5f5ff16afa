"""T5's encoder: RMS norms before what they serve, no biases, positions by attention's biases alone.

Source: Raffel et al. 2019.
"""

from __future__ import annotations

import torch
from torch import nn

from dovetail.errors import ConfigError
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.spec import ModelSpec
from dovetail.layers.embedding import VocabParallelEmbedding
from dovetail.layers.encoder import EncoderConfig, EncoderModel, usual_encoder
from dovetail.layers.position_bias import BucketBias, PositionBias

RENAMES = (
    ("shared.", "embeddings.words."),
    ("encoder.block.0.layer.0.SelfAttention.relative_attention_bias.", "position_bias."),
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


class T5EncoderModel(EncoderModel):
    """T5's encoder, for vectors of prompts or classes of their tokens."""

    info = Info(summary="T5's encoder", source="https://arxiv.org/abs/1910.10683")

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

    def build_position_bias(self, context: BuildContext) -> PositionBias:
        """Return the biases that all layers share."""
        facts = context.model.hf_config
        return BucketBias(
            context,
            num_buckets=int(facts["relative_attention_num_buckets"]),
            max_distance=int(facts["relative_attention_max_distance"]),
        )

    def build_head(self, context: BuildContext) -> nn.Module:
        """Return what makes classes of tokens. Raises: ConfigError where a decoder makes them"""
        if context.model.head == "classes":
            raise ConfigError(
                "T5 tells classes of texts through its decoder, which is not supported.",
                where="config.json: architectures",
                fix="--convert embed for vectors.",
            )
        return super().build_head(context)

    def weight_map(self) -> WeightMap:
        """Return the names."""
        unused = ("decoder.", "lm_head.", "embed_tokens.")
        return WeightMap(
            prefixes=(("transformer.", ""),),
            renames=RENAMES,
            fused=FUSED,
            ignored=unused if self.head is not None else (*unused, "classifier."),
        )
