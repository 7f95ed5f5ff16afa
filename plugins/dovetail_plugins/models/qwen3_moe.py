"""Qwen3-MoE: Qwen3 with experts in most layers. Source: Yang et al. 2025."""

from __future__ import annotations

from torch import nn

from dovetail.interfaces.model import BuildContext
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.spec import ModelSpec
from dovetail.layers.moe import MoE
from dovetail.layers import decoder as _decoder
from dovetail.layers.decoder import (
    MLP,
    Attention,
    DecoderForCausalLM,
    DecoderModel,
    Style,
    plain_style,
    windowed_everywhere,
)
from dovetail_plugins.models._moe import is_sparse, num_experts

__all__ = ["MLP", "Attention", "Block", "Qwen3MoeForCausalLM", "Qwen3MoeModel"]


class Block(_decoder.Block):
    """A block of experts, or of one MLP where the config says so."""

    def build_mlp(self, context: BuildContext, name: str, style: Style, layer: int) -> nn.Module:
        """Return the layer's feed-forward part."""
        config = context.model.hf_config
        if not is_sparse(config, layer):
            return super().build_mlp(context, name, style, layer)
        return MoE(
            context,
            name,
            num_experts=num_experts(config),
            num_picked=int(config.get("num_experts_per_tok", 8)),
            inner=int(config["moe_intermediate_size"]),
            act=style.act,
            renormalizes=bool(config.get("norm_topk_prob", False)),
        )


class Qwen3MoeModel(DecoderModel):
    """The plain decoder over blocks of experts."""


class Qwen3MoeForCausalLM(DecoderForCausalLM):
    """Qwen3-MoE with a head."""

    info = Info(summary="Qwen3-MoE (mixture of experts)", source="https://arxiv.org/abs/2505.09388")
    trunk = Qwen3MoeModel
    block = Block

    @classmethod
    def style(cls, model: ModelSpec) -> Style:
        """Return the style: norms on the heads, one window for all layers or none."""
        window = windowed_everywhere(model) if model.hf_config.get("use_sliding_window") else {}
        return plain_style(model, norms_heads=True, **window)
