"""Decoder layers of two types: some attend, the others mix a row's tokens through a state (gated
delta rule, Mamba, short convolutions). A family says what its mixers are and how checkpoints name
them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import nn

from dovetail.interfaces.model import BuildContext
from dovetail.layers.attention.rotary import Rope
from dovetail.layers.decoder import FULL, SLIDING, DecoderConfig, DecoderLayer, DecoderModel

LINEAR = "linear_attention"
"""The type of layers that mix by a state, as config.json's `layer_types` has it."""


class HybridLayer(DecoderLayer):
    """One layer: a mixer or attention, and a feed-forward part. A norm precedes the mixer, and
    another the feed-forward part; an attention layer is whatever else the family's layer derives
    from."""

    mixer_type: ClassVar[str] = LINEAR
    """The type of layers with a mixer."""
    mixer_name: ClassVar[str] = "linear_attn"
    """The mixer in the checkpoint."""

    def __init__(self, context: BuildContext, name: str, config: DecoderConfig, layer: int) -> None:
        if config.layer_types[layer] != self.mixer_type:
            super().__init__(context, name, config, layer)
            return
        nn.Module.__init__(self)
        self.layer_type = self.mixer_type
        mixer = self.build_mixer(context, f"{name}.{self.mixer_name}")
        self.add_module(self.mixer_name, mixer)
        self.mlp = self.build_mlp(context, f"{name}.{self.mlp_name}", config, layer)
        DecoderLayer.build_norms(self, context, config)

    def build_mixer(self, context: BuildContext, name: str) -> nn.Module:
        """Return the layer's mixer: a module of (x, residual), both [T, E]."""
        raise NotImplementedError

    @property
    def mixer(self) -> nn.Module:
        """The layer's mixer, under whichever name."""
        found: nn.Module = getattr(self, self.mixer_name)
        return found

    def forward(self, x: torch.Tensor, ropes: Mapping[str, Rope]) -> torch.Tensor:
        """Shapes: x [T, E] -> [T, E]"""
        if self.layer_type != self.mixer_type:
            return super().forward(x, ropes)
        x = self.mixer(self.input_layernorm(x), x)
        out: torch.Tensor = self.mlp(self.post_attention_layernorm(x), x)
        return out


class HybridModel(DecoderModel):
    """The layers; only those that attend are rotated."""

    def build_rotaries(self, context: BuildContext, layer_types: set[str]) -> nn.ModuleDict:
        """Return the tables of the layers that attend."""
        return super().build_rotaries(context, layer_types & {FULL, SLIDING})


class UnrotatedModel(DecoderModel):
    """The layers; only mixers know the order of tokens."""

    def build_rotaries(self, context: BuildContext, layer_types: set[str]) -> nn.ModuleDict:
        """Return no table."""
        return nn.ModuleDict()
