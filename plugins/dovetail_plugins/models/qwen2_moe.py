"""Qwen2-MoE: Qwen2 with experts, and one gated expert that every token shares.

Source: Yang et al. 2024, section 2.2.2.
"""

from __future__ import annotations

import torch
from torch import nn

from dovetail.interfaces.model import BuildContext
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.spec import ModelSpec
from dovetail.layers.linear import ReplicatedLinear
from dovetail.layers.moe import MoE
from dovetail.layers import decoder as _decoder
from dovetail.layers.decoder import (
    MLP,
    Attention,
    DecoderForCausalLM,
    DecoderModel,
    Style,
    plain_style,
    windowed_by_switch,
)
from dovetail_plugins.models._moe import is_sparse, num_experts

__all__ = ["MLP", "Attention", "Block", "Qwen2MoeForCausalLM", "Qwen2MoeModel"]


class SharedMoE(MoE):
    """Picked experts plus a shared one, which a sigmoid of the input weighs."""

    def __init__(self, context: BuildContext, name: str, style: Style) -> None:
        config = context.model.hf_config
        super().__init__(
            context,
            name,
            num_experts=num_experts(config),
            num_picked=int(config.get("num_experts_per_tok", 4)),
            inner=int(config["moe_intermediate_size"]),
            act=style.act,
            renormalizes=bool(config.get("norm_topk_prob", False)),
        )
        inner = int(config["shared_expert_intermediate_size"])
        self.shared_expert = MLP(context, f"{name}.shared_expert", inner=inner, act=style.act)
        self.shared_expert_gate = ReplicatedLinear(
            context, f"{name}.shared_expert_gate", context.model.hidden_size, 1
        )

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """Shapes: x, residual [T, E] -> [T, E]"""
        shared = self.shared_expert_gate(x).sigmoid() * self.shared_expert(x)
        return super().forward(x, shared if residual is None else residual + shared)


class Block(_decoder.Block):
    """A block of experts, or of one MLP where the config says so."""

    def build_mlp(self, context: BuildContext, name: str, style: Style, layer: int) -> nn.Module:
        """Return the layer's feed-forward part."""
        if is_sparse(context.model.hf_config, layer):
            return SharedMoE(context, name, style)
        return super().build_mlp(context, name, style, layer)


class Qwen2MoeModel(DecoderModel):
    """The plain decoder over blocks of experts."""


class Qwen2MoeForCausalLM(DecoderForCausalLM):
    """Qwen2-MoE with a head."""

    info = Info(summary="Qwen2-MoE (mixture of experts)", source="https://arxiv.org/abs/2407.10671")
    trunk = Qwen2MoeModel
    block = Block

    @classmethod
    def style(cls, model: ModelSpec) -> Style:
        """Return the style: biases on q, k, v unless the config says no."""
        has_bias = bool(model.hf_config.get("qkv_bias", True))
        return plain_style(
            model, has_qkv_bias=has_bias, has_out_bias=False, **windowed_by_switch(model)
        )
