"""Qwen2-MoE: Qwen2 with experts, and one gated expert that every token shares.

Source: Yang et al. 2024, section 2.2.2.
"""

from __future__ import annotations

import torch
from torch import nn

from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import BuildContext
from dovetail.interfaces.plugin import Info
from dovetail.layers.decoder import (
    DecoderConfig,
    DecoderForCausalLM,
    DecoderLayer,
    GatedMLP,
    usual_config,
)
from dovetail.layers.linear import ReplicatedLinear
from dovetail_plugins.layers.moe import MoE
from dovetail_plugins.models._moe import is_sparse, num_experts, softmax_rule
from dovetail_plugins.models._qwen import qwen_window_layers


class GatedSharedMoE(MoE):
    """Picked experts plus a shared one, which a sigmoid of the input weighs. `renormalizes` None:
    as config.json says."""

    def __init__(
        self,
        context: BuildContext,
        name: str,
        config: DecoderConfig,
        *,
        renormalizes: bool | None = None,
    ) -> None:
        settings = context.model.hf_config
        super().__init__(
            context,
            name,
            num_experts=num_experts(settings),
            rule=softmax_rule(settings, renormalizes=renormalizes),
            inner=int(settings["moe_intermediate_size"]),
            act=config.hidden_act,
        )
        inner = int(settings["shared_expert_intermediate_size"])
        self.shared_expert = GatedMLP(
            context, f"{name}.shared_expert", inner=inner, act=config.hidden_act
        )
        self.shared_expert_gate = ReplicatedLinear(
            context, f"{name}.shared_expert_gate", context.model.hidden_size, 1
        )

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """Shapes: x, residual [T, E] -> [T, E]"""
        shared, scores = self.shared_expert(x), self.shared_expert_gate(x)
        return self.routed(x, residual, shared, scores)


class Qwen2MoeLayer(DecoderLayer):
    """A layer of experts, or with one MLP if config.json says so."""

    def build_mlp(
        self, context: BuildContext, name: str, config: DecoderConfig, layer: int
    ) -> nn.Module:
        """Return the layer's feed-forward part."""
        if is_sparse(context.model.hf_config, layer):
            return GatedSharedMoE(context, name, config)
        return super().build_mlp(context, name, config, layer)


class Qwen2MoeForCausalLM(DecoderForCausalLM):
    """Qwen2-MoE with a head."""

    info = Info(summary="Qwen2-MoE (mixture of experts)", source="https://arxiv.org/abs/2407.10671")
    layer_class = Qwen2MoeLayer

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the config: biases on q, k, v unless config.json says no."""
        has_bias = bool(model.hf_config.get("qkv_bias", True))
        windows = qwen_window_layers(model, alternates=True)
        return usual_config(model, has_qkv_bias=has_bias, has_out_bias=False, **windows)
