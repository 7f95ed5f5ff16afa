"""Llama 4, text: layers that attend in chunks, and some with full attention and no positions.

In the latter, queries are scaled up with their position; in the others, heads are normed, without
weights. Sigmoid-routed weights multiply the experts' inputs; there is also a shared expert.
Source: Meta AI, "The Llama 4 herd", 2025.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.decoder import (
    CHUNKED,
    FULL,
    DecoderAttention,
    DecoderConfig,
    DecoderForCausalLM,
    DecoderLayer,
    DecoderModel,
    GatedMLP,
    usual_config,
)
from dovetail.layers.linear.placement import mark_axes
from dovetail.layers.norm import RMSNorm
from dovetail_plugins.layers.attention.query_scale import PositionScale, QueryScale
from dovetail_plugins.layers.routing import RoutingRule
from dovetail_plugins.models._moe import SharedMoE, num_experts

TEMPERED = "tempered"
"""Names the table of the layers without positions."""
MULTIMODAL = (("language_model.model.", "model."), ("language_model.lm_head.", "lm_head."))
SEEING = ("vision_model.", "multi_modal_projector.")
"""Name prefixes of the image parts of a multimodal checkpoint."""


class UnitRMSNorm(RMSNorm):
    """x / rms(x): its weight is 1, and no checkpoint has it."""

    def __init__(self, context: BuildContext, size: int, *, eps: float) -> None:
        super().__init__(context, size, eps=eps)
        self.weight.data.fill_(1.0)
        mark_axes(self.weight, output=0, input=None, is_optional=True)


def is_rotated(model: ModelSpec, layer: int) -> bool:
    """Return whether a layer counts positions."""
    config = model.hf_config
    listed = config.get("no_rope_layers")  # 1: with positions
    return bool(listed[layer] if listed else (layer + 1) % int(config["no_rope_layer_interval"]))


class Llama4MoE(SharedMoE):
    """Experts that read weighed inputs, and a shared one."""

    def __init__(self, context: BuildContext, name: str, config: DecoderConfig) -> None:
        settings = context.model.hf_config
        inner = int(settings["intermediate_size"])
        rule = RoutingRule(
            num_picked=int(settings["num_experts_per_tok"]), scoring="sigmoid", weighs_inputs=True
        )
        super().__init__(
            context,
            name,
            act=config.hidden_act,
            inner=inner,
            num_experts=num_experts(settings),
            rule=rule,
            gate="router",
            shared="shared_expert",
            shared_inner=inner,
        )


class Llama4Layer(DecoderLayer):
    """A layer of experts or of one MLP, with or without positions."""

    def __init__(self, context: BuildContext, name: str, config: DecoderConfig, layer: int) -> None:
        model = context.model
        rotated = is_rotated(model, layer)
        super().__init__(context, name, replace(config, qk_norm=config.qk_norm and rotated), layer)
        if rotated:
            return
        self.rope = TEMPERED
        attention = self.self_attn
        assert isinstance(attention, DecoderAttention)
        attention.rotate = QueryScale(
            context,
            num_heads=attention.qkv_proj.num_heads,
            num_kv_heads=attention.qkv_proj.num_kv_heads,
            head_size=model.head_size,
        )

    def build_mlp(
        self, context: BuildContext, name: str, config: DecoderConfig, layer: int
    ) -> nn.Module:
        """Return the layer's feed-forward part."""
        settings = context.model.hf_config
        name = name.replace(".mlp", ".feed_forward")
        listed, step = settings.get("moe_layers"), int(settings["interleave_moe_layer_step"])
        is_sparse = layer in listed if listed is not None else (layer + 1) % step == 0
        if is_sparse:
            return Llama4MoE(context, name, config)
        inner = int(settings["intermediate_size_mlp"])
        return GatedMLP(context, name, inner=inner, act=config.hidden_act)


class Llama4Model(DecoderModel):
    """The decoder with query factors in addition to the rotary table."""

    def build_rotaries(self, context: BuildContext, layer_types: set[str]) -> nn.ModuleDict:
        """Return the rotary table of all layer types, and the query factors if there are any."""
        tables = super().build_rotaries(context, layer_types)
        factors = query_factors(context)
        if (factors != 1).any():
            tables[TEMPERED] = PositionScale(factors, context.model.head_size, context.device)
        return tables


def query_factors(context: BuildContext) -> torch.Tensor:
    """Return the query factor for each position in layers without rotary positions; all 1 if no
    position is far enough. Shapes: -> [positions served], on the CPU"""
    config = context.model.hf_config
    length = context.max_tokens or context.model.max_position_tokens
    if not config["attn_temperature_tuning"]:
        return torch.ones(length, device="cpu")
    steps = ((torch.arange(length, device="cpu") + 1.0) / float(config["floor_scale"])).floor()
    return steps.log1p() * float(config["attn_scale"]) + 1.0


class Llama4ForCausalLM(DecoderForCausalLM):
    """Llama 4's text model with a head."""

    info = Info(
        summary="Llama 4, text (mixture of experts)",
        source="https://ai.meta.com/blog/llama-4-multimodal-intelligence/",
    )
    model_class = Llama4Model
    layer_class = Llama4Layer

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the config: layers with positions attend in chunks, unless layers are listed."""
        config: dict[str, Any] = model.hf_config
        derived = [CHUNKED if is_rotated(model, i) else FULL for i in range(model.num_layers)]
        return usual_config(
            model,
            layer_types=tuple(config.get("layer_types") or derived),
            chunk_tokens=config.get("attention_chunk_size"),
            qk_norm=bool(config["use_qk_norm"]),
            head_norm=_norm_of_each,
            is_interleaved=True,
            rope_theta=5e5,
        )

    def weight_map(self) -> WeightMap:
        """Return the names: experts are stored [in, out]; what sees images is left out."""
        usual = super().weight_map()
        return replace(
            usual,
            prefixes=(*MULTIMODAL, *usual.prefixes),
            renames=(
                (".feed_forward.", ".mlp."),
                (".router.", ".gate."),
                (".shared_expert.", ".shared_experts."),
            ),
            transposed=("experts.gate_up_proj", "experts.down_proj"),
            ignored=(*usual.ignored, *SEEING),
        )


def _norm_of_each(context: BuildContext, part: object, size: int, *, eps: float) -> UnitRMSNorm:
    """Return a norm of each head, for all of any rank."""
    return UnitRMSNorm(context, size, eps=eps)
