"""gpt-oss: experts in every layer, attention with sinks, and a window in every other layer.

A checkpoint holds all experts of a layer in one tensor, gate and up row by row: in bfloat16 with
inputs first ("gate_up_proj" [X, E, 2F]), or in MXFP4 with outputs first ("gate_up_proj_blocks").
Source: OpenAI, gpt-oss-120b and gpt-oss-20b model card, 2025, section 2.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.activation import clamped_gate
from dovetail.layers.attention.rotary import Rope
from dovetail.layers.decoder import (
    FULL,
    SLIDING,
    DecoderAttention,
    DecoderConfig,
    DecoderForCausalLM,
    DecoderLayer,
    usual_config,
)
from dovetail_plugins.layers.attention.sinks import Sinks
from dovetail_plugins.layers.moe import MoE
from dovetail_plugins.model_types.gpt_oss import INPUTS_FIRST
from dovetail_plugins.models._moe import num_experts, softmax_rule


class GptOssAttention(DecoderAttention):
    """The decoder's attention with sinks."""

    def __init__(self, context: BuildContext, name: str, config: DecoderConfig, layer: int) -> None:
        super().__init__(context, name, config, layer)
        self.head_sinks = Sinks(context)

    def forward(
        self, x: torch.Tensor, rope: Rope | None, residual: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Shapes: x, residual [T, E] -> [T, E]"""
        q, k, v = self.rotate(self.qkv_proj(x), rope)
        return self.o_proj(self.attn(q, k, v, self.head_sinks.weight), residual)


class GptOssLayer(DecoderLayer):
    """A layer of attention with sinks, and experts."""

    def build_attention(
        self, context: BuildContext, name: str, config: DecoderConfig, layer: int
    ) -> GptOssAttention:
        """Return the layer's attention."""
        return GptOssAttention(context, name, config, layer)

    def build_mlp(self, context: BuildContext, name: str, config: DecoderConfig, layer: int) -> MoE:
        """Return the layer's router and experts, all with biases; weights are a softmax of the
        picked experts' scores."""
        settings = context.model.hf_config
        return MoE(
            context,
            name,
            num_experts=num_experts(settings),
            rule=softmax_rule(settings, renormalizes=True),
            inner=int(settings["intermediate_size"]),
            act=clamped_gate(float(settings["swiglu_alpha"]), float(settings["swiglu_limit"])),
            alternates=True,
            bias=True,
            gate="router",
        )


class GptOssForCausalLM(DecoderForCausalLM):
    """gpt-oss with a head."""

    info = Info(
        summary="gpt-oss (mixture of experts, attention sinks)",
        source="https://arxiv.org/abs/2508.10925",
    )
    layer_class = GptOssLayer

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the usual config with the kinds of the layers."""
        config = model.hf_config
        turns = (SLIDING, FULL) * model.num_layers
        return usual_config(
            model,
            layer_types=tuple(config.get("layer_types") or turns[: model.num_layers]),
            window_tokens=config.get("sliding_window"),
        )

    def weight_map(self) -> WeightMap:
        """Return the names."""
        return replace(
            super().weight_map(),
            renames=(
                (".self_attn.sinks", ".self_attn.head_sinks.weight"),
                (".mlp.router.", ".mlp.gate."),
            ),
            transposed=INPUTS_FIRST,
        )
