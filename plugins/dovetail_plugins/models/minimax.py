"""MiniMax-Text-01 and MiniMax-M1: lightning attention in most layers, softmax attention in the
others, experts in all.

The residual is the output of a norm, not its input:

    h = alpha n + beta attention(n), n = input_layernorm(x)
    x = alpha n + beta experts(n), n = post_attention_layernorm(h)

Source: MiniMax, MiniMax-01: Scaling Foundation Models with Lightning Attention, 2025 (arXiv
2501.08313).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.attention.rotary import Rope
from dovetail.layers.decoder import FULL, SLIDING, DecoderConfig, usual_config
from dovetail_plugins.layers.mixers.hybrid import HybridModel
from dovetail_plugins.layers.mixers.lightning import (
    BY_HEAD,
    LightningAttention,
    LightningSizes,
    lightning_slopes,
)
from dovetail_plugins.layers.product import Scale
from dovetail_plugins.model_types.minimax import LINEAR, layer_types
from dovetail_plugins.models.mixtral import MixtralForCausalLM, MixtralLayer


class MiniMaxLayer(MixtralLayer):
    """One layer: lightning or softmax attention, and experts."""

    def __init__(self, context: BuildContext, name: str, config: DecoderConfig, layer: int) -> None:
        super().__init__(context, name, config, layer)
        settings = context.model.hf_config
        kind = "linear_attn" if self.layer_type == LINEAR else "full_attn"
        self.attn_weights, self.mlp_weights = (
            _Weights(
                context,
                float(settings[f"{word}_alpha_factor"]),
                float(settings[f"{word}_beta_factor"]),
            )
            for word in (kind, "mlp")
        )

    def build_attention(
        self, context: BuildContext, name: str, config: DecoderConfig, layer: int
    ) -> nn.Module:
        """Return the layer's attention."""
        if config.layer_types[layer] != LINEAR:
            return super().build_attention(context, name, config, layer)
        model = context.model
        sizes = LightningSizes(
            heads=model.num_heads,
            head=model.head_size,
            slopes=lightning_slopes(model.num_heads, layer, model.num_layers),
            act=config.hidden_act,
        )
        return LightningAttention(context, name, sizes)

    def forward(self, x: torch.Tensor, ropes: Mapping[str, Rope]) -> torch.Tensor:
        """Shapes: x [T, E] -> [T, E]"""
        rope = ropes.get(self.rope)
        x = self.attn_weights(self.self_attn, self.input_layernorm(x), rope)
        out: torch.Tensor = self.mlp_weights(self.mlp, self.post_attention_layernorm(x))
        return out


class _Weights(nn.Module):
    """alpha x + beta branch(x), as beta (alpha / beta x + branch(x)): only products, which recorded
    steps support."""

    def __init__(self, context: BuildContext, alpha: float, beta: float) -> None:
        super().__init__()
        size = context.model.hidden_size
        self.before = Scale(context, [(size, alpha / beta if beta else alpha)])
        self.behind = Scale(context, [(size, beta)])
        self.is_idle = beta == 0

    def forward(self, branch: nn.Module, x: torch.Tensor, *more: Any) -> torch.Tensor:
        """Shapes: x [T, E] -> [T, E]"""
        residual = self.before(x)
        if self.is_idle:
            return residual
        out: torch.Tensor = self.behind(branch(x, *more, residual))
        return out


def _refuse_others(config: Mapping[str, Any]) -> None:
    """Refuse layers that no published checkpoint has. Raises: ConfigError"""
    for field, wanted in (("postnorm", True), ("shared_intermediate_size", 0)):
        if config.get(field, wanted) != wanted:
            raise ConfigError(
                f"{field} = {config[field]} is not supported.",
                where="config.json",
                fix=f"use a checkpoint with {field} = {wanted}.",
            )


class MiniMaxForCausalLM(MixtralForCausalLM):
    """MiniMax-Text-01 with its head."""

    info = Info(
        summary="MiniMax-Text-01 and MiniMax-M1 (lightning attention)",
        source="https://arxiv.org/abs/2501.08313",
    )
    model_class = HybridModel
    layer_class = MiniMaxLayer

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the usual config; layers with softmax attention slide if config.json gives a
        window. Raises: ConfigError for layers that no published checkpoint has."""
        config = model.hf_config
        _refuse_others(config)
        window = config.get("sliding_window") or None
        full = SLIDING if window else FULL
        kinds = (LINEAR if kind == LINEAR else full for kind in layer_types(config))
        return usual_config(
            model,
            layer_types=tuple(kinds),
            window_tokens=window,
            rope_theta=1000000.0,
            rotary_share=int(config.get("rotary_dim") or model.head_size) / model.head_size,
        )

    def weight_map(self) -> WeightMap:
        """Return Mixtral's names; lightning attention has one matrix of all heads. The checkpoint's
        slope tensors are ignored, since they follow from config.json."""
        usual = super().weight_map()
        slopes = (".slope_rate", ".query_decay", ".key_decay", ".diagonal_decay")
        return replace(
            usual,
            fused={**usual.fused, "qkv_proj": ("qkv_proj", BY_HEAD)},
            ignored=(*usual.ignored, *slopes),
        )
