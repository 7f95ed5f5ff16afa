"""Nemotron-H: each layer is one thing behind a norm: a Mamba 2 mixer, attention or an MLP.

Nothing is rotated; the mixers know the order. The MLPs are down(relu(up(x)) squared).
Source: NVIDIA, Nemotron-H, 2025 (arXiv 2504.03624).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.spec import ModelSpec
from dovetail.layers.decoder import (
    DecoderAttention,
    DecoderConfig,
    DecoderForCausalLM,
    DecoderLayer,
    DecoderModel,
    PlainMLP,
    usual_config,
)
from dovetail.layers.mamba2 import Mamba2Mixer
from dovetail.layers.rotary import Rope
from dovetail_plugins.model_types.nemotron_h import ATTENTION, MIXER, layer_types, mixer_sizes


class NemotronHLayer(DecoderLayer):
    """One layer: a mixer, attention or an MLP, added to its input."""

    def __init__(self, context: BuildContext, name: str, config: DecoderConfig, layer: int) -> None:
        nn.Module.__init__(self)
        self.kind, name = config.layer_types[layer], f"{name}.mixer"
        settings = context.model.hf_config
        self.norm = config.build_norm(context)
        if self.kind == MIXER:
            self.mixer: nn.Module = Mamba2Mixer(context, name, mixer_sizes(settings))
        elif self.kind == ATTENTION:
            self.mixer = DecoderAttention(context, name, config, layer)
        else:
            inner, act = int(settings["intermediate_size"]), config.hidden_act
            self.mixer = PlainMLP(context, name, inner=inner, act=act, bias=config.has_mlp_bias)

    def forward(self, x: torch.Tensor, ropes: Mapping[str, Rope]) -> torch.Tensor:
        """Shapes: x [T, E] -> [T, E]"""
        inner = self.norm(x)
        if self.kind == ATTENTION:
            out: torch.Tensor = self.mixer(inner, None, x)
        else:
            out = self.mixer(inner, x)
        return out


class NemotronHModel(DecoderModel):
    """Embedding, layers and the last norm; nothing is rotated."""

    def build_rotaries(self, context: BuildContext, layer_types: set[str]) -> nn.ModuleDict:
        """Return no table."""
        return nn.ModuleDict()


class NemotronHForCausalLM(DecoderForCausalLM):
    """Nemotron-H with its head."""

    info = Info(summary="Nemotron-H", source="https://arxiv.org/abs/2504.03624")
    model_class = NemotronHModel
    layer_class = NemotronHLayer

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the config with each layer's kind. Raises: ConfigError for one not supported."""
        config, kinds = model.hf_config, layer_types(model.hf_config)
        return usual_config(
            model,
            layer_types=kinds,
            norm_eps=float(config["layer_norm_epsilon"]),
            hidden_act=config["mlp_hidden_act"],
            is_gated=False,
            has_qkv_bias=False,
            has_out_bias=False,
        )

    def weight_map(self) -> WeightMap:
        """Return the names: Nemotron-H's own for the trunk, the embedding and the last norm."""
        usual = super().weight_map()
        own = (("embeddings.", "embed_tokens."), ("norm_f.", "norm."), ("", ""))
        return WeightMap(
            prefixes=tuple(
                (f"{trunk}.{old}", f"model.{new}")
                for trunk in ("backbone", "model")
                for old, new in own
            ),
            fused=usual.fused,
            tied=usual.tied,
        )
