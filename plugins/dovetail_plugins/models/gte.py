"""GTE's encoders: BERT with rotated heads and gated inner layers.

Source: Zhang et al. 2024.
"""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import BuildContext
from dovetail.interfaces.plugin import Info
from dovetail.layers import decoder
from dovetail.layers.attention.rotary import Rotary, rope_settings
from dovetail.layers.linear import GatedLinear
from dovetail.layers.linear.placement import Placement
from dovetail_plugins.layers.encoder import ONE_KIND, EncoderConfig, EncoderLayer, usual_encoder
from dovetail_plugins.models.bert import BertModel

RENAMES = (
    ("embeddings.word_embeddings.", "embeddings.words."),
    ("embeddings.token_type_embeddings.", "embeddings.types."),
    ("embeddings.LayerNorm.", "embeddings.norm."),
    ("encoder.layer.", "layers."),
    (".self_attn.", ".attention."),
    (".mlp.", "."),
    (".attn_ln.", ".attention_norm."),
    (".mlp_ln.", ".output_norm."),
    (".post_attention_layernorm.", ".attention_norm."),
    (".post_mlp_layernorm.", ".output_norm."),
)
"""The names used by its first code, and by transformers."""
FUSED = {**decoder.FUSED, "up_gate_proj": ("gate_up_proj", "up_gate")}
USUAL = {
    "position_embedding_type": "rope",
    "layer_norm_type": "layer_norm",
    "logn_attention_scale": False,
}
"""Fields of its first code -> the value that is supported."""


class UpGateLinear(GatedLinear):
    """A gated matrix whose checkpoint may have both halves in one tensor, up before gate."""

    def place(self, leaf: str, part: str | None) -> list[Placement] | None:
        """Return the target of a checkpoint tensor (see WeightHolder)."""
        if part != "up_gate":
            return super().place(leaf, part)
        joined = super().place(leaf, None)
        return None if joined is None else [_of_other_half(one) for one in joined]


def _of_other_half(placement: Placement) -> Placement:
    """Return a placement that takes the same of the tensor's other half."""
    if not placement.cuts:
        return placement
    *others, cut = placement.cuts
    start = (cut.start + cut.full // 2) % cut.full
    return replace(placement, cuts=(*others, replace(cut, start=start)))


class GteLayer(EncoderLayer):
    """A layer of GTE."""

    gated_class = UpGateLinear


class GteModel(BertModel):
    """GTE's encoder, for vectors of prompts, their classes, or classes of their tokens."""

    info = Info(summary="GTE (NewModel)", source="https://arxiv.org/abs/2407.19669")
    prefixes = ("new.", "gte.")
    renames = RENAMES
    fused = FUSED
    layer_class = GteLayer

    @classmethod
    def encoder_config(cls, model: ModelSpec) -> EncoderConfig:
        """Return how it differs from BERT. Raises: ConfigError for unsupported settings"""
        facts = model.hf_config
        found = [
            f"{field} {facts[field]}"
            for field, usual in USUAL.items()
            if facts.get(field) not in (usual, None)
        ]
        if found:
            raise ConfigError(f"{', '.join(found)}: not supported.", where="config.json")
        return usual_encoder(
            model, num_positions=0, is_gated=True, is_rotary=True, has_up_bias=False
        )

    def build_rotaries(self, context: BuildContext) -> nn.ModuleDict:
        """Return the rotation of all layers."""
        settings = rope_settings(context, theta=160_000.0)
        return nn.ModuleDict({ONE_KIND: Rotary(settings, context.device)})
