"""LFM3: LFM2 with norms also after each part, windows in some layers, and a gate for each head.

Source: Liquid AI, LFM3-1.7B, 2026, as transformers has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from msgspec import structs
from torch import nn

from dovetail.config.checkpoint.rope import rope_of
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.attention.rotary import Rope, Rotary, rope_settings
from dovetail.layers.decoder import FULL, SLIDING, DecoderAttention, DecoderConfig, DecoderModel
from dovetail.layers.linear import ColumnParallelLinear
from dovetail_plugins.layers.attention.output_gate import open_heads
from dovetail_plugins.model_types.lfm2 import CONV
from dovetail_plugins.model_types.lfm3 import layer_types
from dovetail_plugins.models._text_part import text_part
from dovetail_plugins.models.lfm2 import Lfm2ForCausalLM, Lfm2Layer

ROPE: dict[str, dict[str, Any]] = {
    SLIDING: {"rope_type": "default", "rope_theta": 1e4},
    FULL: {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.5},
}
"""The rotations of a config.json that states none."""


class Lfm3Attention(DecoderAttention):
    """Attention whose heads' outputs are each multiplied by a sigmoid of the layer's input."""

    def __init__(self, context: BuildContext, name: str, config: DecoderConfig, layer: int) -> None:
        super().__init__(context, name, config, layer)
        self.g_proj: ColumnParallelLinear | None = None
        if context.model.hf_config["use_attention_gate"]:
            model = context.model
            self.g_proj = ColumnParallelLinear(
                context, f"{name}.g_proj", model.hidden_size, model.num_heads
            )

    def forward(
        self, x: torch.Tensor, rope: Rope | None, residual: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Shapes: x, residual [T, E] -> [T, E]"""
        if self.g_proj is None:
            return super().forward(x, rope, residual)
        q, k, v = self.rotate(self.qkv_proj(x), rope)
        return self.o_proj(open_heads(self.attn(q, k, v), self.g_proj(x)), residual)


class Lfm3Layer(Lfm2Layer):
    """One layer: a convolution or attention, and an MLP, with norms before and after."""

    def __init__(self, context: BuildContext, name: str, config: DecoderConfig, layer: int) -> None:
        super().__init__(context, name, config, layer)
        self.is_sandwich = bool(context.model.hf_config["use_sandwich_norm"])
        if self.is_sandwich:
            self.post_operator_norm = config.build_norm(context)
            self.post_ffn_norm = config.build_norm(context)

    def build_attention(
        self, context: BuildContext, name: str, config: DecoderConfig, layer: int
    ) -> nn.Module:
        """Return the layer's attention."""
        return Lfm3Attention(context, name, config, layer)

    def forward(self, x: torch.Tensor, ropes: Mapping[str, Rope]) -> torch.Tensor:
        """Shapes: x [T, E] -> [T, E]"""
        if not self.is_sandwich:
            return super().forward(x, ropes)
        inner = self.input_layernorm(x)
        is_mixer = self.layer_type == self.mixer_type
        mixed = self.mixer(inner) if is_mixer else self.self_attn(inner, ropes[self.rope])
        x = self.post_operator_norm(mixed, residual=x)
        fed = self.mlp(self.post_attention_layernorm(x))
        out: torch.Tensor = self.post_ffn_norm(fed, residual=x)
        return out


class Lfm3Model(DecoderModel):
    """The layers, with a rotary table for the sliding ones and one for the full ones."""

    def build_rotaries(self, context: BuildContext, layer_types: set[str]) -> nn.ModuleDict:
        """Return a rotary table for each kind of layer that attends."""
        model = context.model
        stated = rope_of(model.hf_config) or ROPE
        config = {**model.hf_config, "rope_parameters": stated}
        context = replace(context, model=structs.replace(model, hf_config=config))
        kinds = sorted(layer_types - {CONV})
        return nn.ModuleDict(
            {kind: Rotary(rope_settings(context, kind=kind), context.device) for kind in kinds}
        )


class Lfm3ForCausalLM(Lfm2ForCausalLM):
    """LFM3 with its tied head."""

    info = Info(
        summary="LFM3: short convolutions, windows", source="https://huggingface.co/LiquidAI"
    )
    model_class = Lfm3Model
    layer_class = Lfm3Layer

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return LFM2's config with windows."""
        config = model.hf_config
        return replace(
            super().decoder_config(model),
            layer_types=layer_types(config),
            window_tokens=config.get("sliding_window") or None,
            has_qkv_bias=bool(config["attention_bias"]),
            has_out_bias=bool(config["attention_bias"]),
            inner_size=None,
        )

    def weight_map(self) -> WeightMap:
        """Return the names: checkpoints call the matrix of the heads' gates like an MLP's."""
        usual = super().weight_map()
        gates = (".self_attn.gate_proj.", ".self_attn.g_proj.")
        return replace(usual, renames=(gates, *usual.renames))


class Lfm3VlForConditionalGeneration(Lfm3ForCausalLM):
    """The text part of LFM3-VL with its head."""

    info = Info(summary="the text part of LFM3-VL", source="https://huggingface.co/LiquidAI")

    def weight_map(self) -> WeightMap:
        """Return the names, without the vision part."""
        return text_part(super().weight_map())
