"""ModernBERT: pre-norm, gated inner layers, and local attention in most layers.

A local layer's tokens see half a window to either side and have a separate rotary base.
Source: Warner et al. 2024.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import nn

from dovetail.config.checkpoint.context_length import window_tokens
from dovetail.config.checkpoint.rope import rope_of
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.attention.rotary import RopeSettings, Rotary, rope_settings
from dovetail.layers.decoder import FULL, SLIDING
from dovetail_plugins.layers.class_head import DenseClasses
from dovetail_plugins.layers.encoder import (
    EncoderConfig,
    EncoderLayer,
    EncoderModel,
    encoder_norm,
    usual_encoder,
)

RENAMES = (
    ("embeddings.tok_embeddings.", "embeddings.words."),
    (".attn.Wqkv.", ".attention.qkv_proj."),
    (".attn.Wo.", ".attention.o_proj."),
    (".attn_norm.", ".attention_norm."),
    (".mlp.Wi.", ".gate_up_proj."),
    (".mlp.Wo.", ".down_proj."),
    (".mlp_norm.", ".output_norm."),
    ("classifier.", "head.out."),
)
THETAS = {FULL: ("global_rope_theta", 160_000.0), SLIDING: ("local_rope_theta", 10_000.0)}
"""Kind of layer -> the older name of its base, and the default value."""


def layer_types(model: ModelSpec) -> tuple[str, ...]:
    """Return the kind of each layer, in either spelling of the config."""
    facts = model.hf_config
    if facts.get("layer_types"):
        return tuple(facts["layer_types"])
    every = int(facts.get("global_attn_every_n_layers") or 3)
    return tuple(SLIDING if i % every else FULL for i in range(model.num_layers))


def settings_of(context: BuildContext, kind: str) -> RopeSettings:
    """Return the rotary settings of a kind of layer, in either spelling of the config."""
    config, (name, usual) = context.model.hf_config, THETAS[kind]
    if isinstance(rope_of(config).get(kind), Mapping):
        return rope_settings(context, theta=usual, kind=kind)
    return replace(rope_settings(context), theta=float(config.get(name) or usual))


class ModernBertLayer(EncoderLayer):
    """A layer with norms before attention and MLP; the first one's input is normed already."""

    def first_norm(self, context: BuildContext, config: EncoderConfig, layer: int) -> nn.Module:
        """Return the norm before attention."""
        return encoder_norm(context, config) if layer else nn.Identity()


class ModernBertModel(EncoderModel):
    """ModernBERT, for vectors of prompts, their classes, or classes of their tokens."""

    info = Info(summary="ModernBERT", source="https://arxiv.org/abs/2412.13663")
    layer_class = ModernBertLayer

    @classmethod
    def encoder_config(cls, model: ModelSpec) -> EncoderConfig:
        """Return how it differs from BERT."""
        facts = model.hf_config
        window = window_tokens(facts)
        return usual_encoder(
            model,
            num_positions=0,
            num_types=0,
            hidden_act=facts["hidden_activation"],
            norm_eps=float(facts["norm_eps"]),
            is_gated=True,
            is_rotary=True,
            has_norms_before=True,
            has_norm_bias=facts["norm_bias"],
            has_qkv_bias=facts["attention_bias"],
            has_out_bias=facts["attention_bias"],
            has_up_bias=facts["mlp_bias"],
            has_down_bias=facts["mlp_bias"],
            layer_types=layer_types(model),
            windows={} if window is None else {SLIDING: window},
        )

    def build_rotaries(self, context: BuildContext) -> nn.ModuleDict:
        """Return the rotations of full and of local layers."""
        kinds = sorted(set(layer_types(context.model)))
        return nn.ModuleDict(
            {kind: Rotary(settings_of(context, kind), context.device) for kind in kinds}
        )

    def build_head(self, context: BuildContext) -> nn.Module:
        """Return the classifier, the same for prompts and tokens."""
        facts = context.model.hf_config
        return DenseClasses(
            context,
            act=facts["classifier_activation"],
            bias=facts["classifier_bias"],
            norm=encoder_norm(context, self.encoder_config(context.model)),
        )

    def weight_map(self) -> WeightMap:
        """Return the names; checkpoints of whole models begin with "model."."""
        of_head = () if self.head is not None else ("head.", "classifier.")
        unused: tuple[str, ...] = ("decoder.", "dense_2.", "dense_3.", *of_head)
        return WeightMap(prefixes=(("model.", ""),), renames=RENAMES, ignored=unused)
