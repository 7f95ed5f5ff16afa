"""Jamba: layers of a Mamba mixer, some of attention without positions, and experts in every other.

The time steps and the vectors b and c of a mixer are normed.
Source: Lieber et al., Jamba: a hybrid transformer-Mamba language model, 2024 (arXiv 2403.19887).
"""

from __future__ import annotations

import torch
from torch import nn

from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.decoder import DecoderConfig, DecoderForCausalLM, usual_config
from dovetail.layers.norm import RMSNorm
from dovetail_plugins.layers.mixers.hybrid import UnrotatedModel
from dovetail_plugins.layers.mixers.mamba import MambaMixer
from dovetail_plugins.layers.moe import MoE
from dovetail_plugins.model_types.jamba import has_experts, layer_types, mixer_sizes
from dovetail_plugins.models._hybrid import MambaLayer, jamba_names
from dovetail_plugins.models._moe import num_experts, softmax_rule


class JambaMixer(MambaMixer):
    """A mixer whose time steps and vectors b and c are normed."""

    def __init__(self, context: BuildContext, name: str) -> None:
        config = context.model.hf_config
        sizes, eps = mixer_sizes(config), float(config["rms_norm_eps"])
        super().__init__(context, name, sizes)
        self.dt_layernorm = RMSNorm(context, sizes.time_rank, eps=eps)
        self.b_layernorm = RMSNorm(context, sizes.state, eps=eps)
        self.c_layernorm = RMSNorm(context, sizes.state, eps=eps)

    def time_and_inputs(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return each token's time step and vectors. Shapes: x [T, D] -> [T, K], [T, S], [T, S]"""
        dt, b, c = super().time_and_inputs(x)
        return self.dt_layernorm(dt), self.b_layernorm(b), self.c_layernorm(c)


class JambaLayer(MambaLayer):
    """One layer of Jamba."""

    def build_mixer(self, context: BuildContext, name: str) -> nn.Module:
        """Return the layer's mixer."""
        return JambaMixer(context, name)

    def build_mlp(
        self, context: BuildContext, name: str, config: DecoderConfig, layer: int
    ) -> nn.Module:
        """Return the layer's experts, weighted by a softmax over all experts, or its MLP."""
        settings = context.model.hf_config
        if not has_experts(settings, layer):
            return super().build_mlp(context, name, config, layer)
        return MoE(
            context,
            name,
            num_experts=num_experts(settings),
            rule=softmax_rule(settings, renormalizes=False),
            inner=int(settings["intermediate_size"]),
            act=config.hidden_act,
            gate="router",
        )


class JambaForCausalLM(DecoderForCausalLM):
    """Jamba with its head."""

    info = Info(
        summary="Jamba: Mamba, attention, experts", source="https://arxiv.org/abs/2403.19887"
    )
    model_class = UnrotatedModel
    layer_class = JambaLayer

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the usual config; few layers attend."""
        return usual_config(model, layer_types=layer_types(model.hf_config))

    def weight_map(self) -> WeightMap:
        """Return the names."""
        return jamba_names(super().weight_map())
