"""What the hybrid families share: layers that attend between layers of a Mamba mixer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import torch
from torch import nn

from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.layers.decoder import FULL, DecoderConfig, DecoderLayer, DecoderModel
from dovetail.layers.mamba2 import Mamba2Mixer
from dovetail.layers.rotary import Rope
from dovetail_plugins.model_types._hybrid import MIXER, mamba2_sizes


def jamba_names(usual: WeightMap) -> WeightMap:
    """Return the names of Jamba's checkpoints, and of Bamba's."""
    last = tuple((f"{trunk}final_layernorm.", "model.norm.") for trunk in ("model.", ""))
    renames = (
        (".feed_forward.", ".mlp."),
        (".pre_ff_layernorm.", ".post_attention_layernorm."),
        (".router.", ".gate."),
    )
    return replace(usual, prefixes=(*usual.prefixes, *last), renames=renames)


class HybridLayer(DecoderLayer):
    """One layer: a mixer or attention, and a feed-forward part, each behind a norm and added to its
    input."""

    mlp_name: ClassVar[str] = "feed_forward"
    """The feed-forward part in the checkpoint."""

    def __init__(self, context: BuildContext, name: str, config: DecoderConfig, layer: int) -> None:
        nn.Module.__init__(self)
        self.layer_type = config.layer_types[layer]
        if self.layer_type == MIXER:
            self.mamba = self.build_mixer(context, f"{name}.mamba")
        else:
            self.self_attn = self.build_attention(context, f"{name}.self_attn", config, layer)
        self.mlp = self.build_mlp(context, f"{name}.{self.mlp_name}", config, layer)
        self.build_norms(context, config)

    def build_mixer(self, context: BuildContext, name: str) -> nn.Module:
        """Return the layer's mixer: a module of (x, residual), both [T, E]."""
        return Mamba2Mixer(context, name, mamba2_sizes(context.model.hf_config))

    def forward(self, x: torch.Tensor, ropes: Mapping[str, Rope]) -> torch.Tensor:
        """Shapes: x [T, E] -> [T, E]"""
        normed = self.input_layernorm(x)
        if self.layer_type == MIXER:
            x = self.mamba(normed, x)
        else:
            x = self.self_attn(normed, ropes.get(self.layer_type), x)
        out: torch.Tensor = self.mlp(self.post_attention_layernorm(x), x)
        return out


class HybridModel(DecoderModel):
    """The layers; only those that attend are rotated."""

    def build_rotaries(self, context: BuildContext, layer_types: set[str]) -> nn.ModuleDict:
        """Return the table of the layers that attend."""
        return super().build_rotaries(context, layer_types & {FULL})


class UnrotatedModel(DecoderModel):
    """The layers; mixers alone know the order of tokens."""

    def build_rotaries(self, context: BuildContext, layer_types: set[str]) -> nn.ModuleDict:
        """Return no table."""
        return nn.ModuleDict()
