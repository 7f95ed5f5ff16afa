"""LFM2: most layers are short convolutions between two gates, the others attend.

A convolution layer computes, of the T tokens of a step (E hidden size):

    b, c, x = in_proj(operator_norm(h))                  # [T, E] each
    h = h + out_proj(c * conv(b * x))                    # over the last few inputs of each channel

Source: Liquid AI, LFM2 Technical Report, 2025 (arXiv 2511.23404).
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn

from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.decoder import (
    FUSED,
    DecoderConfig,
    DecoderForCausalLM,
    DecoderLayer,
    DecoderModel,
    usual_config,
)
from dovetail.layers.linear import MergedColumnParallelLinear, RowParallelLinear, even_part
from dovetail.layers.state import State
from dovetail.parallel.groups import tensor_group
from dovetail_plugins.layers.mixers.hybrid import HybridLayer, HybridModel
from dovetail_plugins.layers.mixers.recurrent import ShortConv
from dovetail_plugins.layers.product import Product
from dovetail_plugins.model_types.lfm2 import CONV, inner_size, layer_types


class Lfm2ShortConv(nn.Module):
    """The convolution between two gates. The channels are divided over ranks."""

    def __init__(self, context: BuildContext, name: str) -> None:
        super().__init__()
        config, size = context.model.hf_config, context.model.hidden_size
        bias = bool(config.get("conv_bias", False))
        part = even_part("", size, tensor_group(context.rank), name)
        self.in_proj = MergedColumnParallelLinear(
            context, f"{name}.in_proj", size, dict.fromkeys("bcx", size), bias=bias
        )
        self.conv = ShortConv(context, (part,), int(config["conv_L_cache"]), bias=bias)
        self.out_proj = RowParallelLinear(context, f"{name}.out_proj", size, size, bias=bias)
        self.gate = Product(context)
        self.state = State(name, (self.conv.state_part(),))

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """Shapes: x, residual [T, E] -> [T, E]"""
        before, after, inner = self.in_proj(x).chunk(3, dim=-1)
        parts, rows = self.state.step()
        inner = self.conv(self.gate(inner, before), parts["conv"], rows)
        return self.out_proj(self.gate(inner, after), residual)


class Lfm2Layer(HybridLayer):
    """One layer: a convolution or attention, and an MLP."""

    mixer_type = CONV
    mixer_name = "conv"
    mlp_name = "feed_forward"

    def build_mixer(self, context: BuildContext, name: str) -> nn.Module:
        """Return the layer's convolution."""
        return Lfm2ShortConv(context, name)


class Lfm2ForCausalLM(DecoderForCausalLM):
    """LFM2 with its tied head."""

    info = Info(summary="LFM2: short convolutions", source="https://arxiv.org/abs/2511.23404")
    model_class: ClassVar[type[DecoderModel]] = HybridModel
    layer_class: ClassVar[type[DecoderLayer]] = Lfm2Layer

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the usual config with norms on heads; some layers do not attend."""
        config = model.hf_config
        return usual_config(
            model,
            layer_types=layer_types(config),
            inner_size=inner_size(config),
            has_mlp_bias=False,
            norm_eps=float(config.get("norm_eps", 1e-5)),
            qk_norm=True,
            has_qkv_bias=False,
            has_out_bias=False,
        )

    def weight_map(self) -> WeightMap:
        """Return the names: LFM2 has its own for norms and for the matrices of the MLP."""
        usual = super().weight_map()
        return WeightMap(
            prefixes=(*usual.prefixes, ("embedding_norm.", "model.norm.")),
            renames=(
                ("embedding_norm", "norm"),
                ("self_attn.out_proj", "self_attn.o_proj"),
                ("q_layernorm", "q_norm"),
                ("k_layernorm", "k_norm"),
                ("feed_forward.w2", "feed_forward.down_proj"),
                (".feed_forward.", ".mlp."),
                (".operator_norm.", ".input_layernorm."),
                (".ffn_norm.", ".post_attention_layernorm."),
            ),
            fused={**FUSED, "w1": ("gate_up_proj", "gate"), "w3": ("gate_up_proj", "up")},
            ignored=usual.ignored,
            tied=usual.tied,
        )
