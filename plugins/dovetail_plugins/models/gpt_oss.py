"""gpt-oss: experts in every layer, attention with sinks, and a window in every other layer.

A checkpoint holds all experts of a layer in one tensor, gate and up row by row: in bfloat16 with
inputs first ("gate_up_proj" [X, E, 2F]), or in MXFP4 with outputs first ("gate_up_proj_blocks").
Source: OpenAI, gpt-oss-120b and gpt-oss-20b model card, 2025, section 2.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.spec import ModelSpec
from dovetail.layers.activation import clamped_gate
from dovetail.layers.decoder import (
    FULL,
    SLIDING,
    DecoderAttention,
    DecoderConfig,
    DecoderForCausalLM,
    DecoderLayer,
    usual_config,
)
from dovetail.layers.experts import Experts
from dovetail.layers.linear import ReplicatedLinear
from dovetail.layers.native_routing import native_routing
from dovetail.layers.opaque import is_traced
from dovetail.layers.rotary import Rope
from dovetail.layers.routing import route
from dovetail.layers.sinks import Sinks
from dovetail.parallel.collectives import all_reduce
from dovetail.parallel.groups import tensor_group
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


class GptOssMoE(nn.Module):
    """Router and experts, all with biases; weights are a softmax of the picked experts' scores."""

    def __init__(self, context: BuildContext, name: str) -> None:
        super().__init__()
        settings, size = context.model.hf_config, context.model.hidden_size
        count = num_experts(settings)
        self.rule = softmax_rule(settings, renormalizes=True)
        self.group = tensor_group(context.rank)
        self._routing = native_routing(context, self.rule)
        self.router = ReplicatedLinear(context, f"{name}.router", size, count, bias=True)
        self.experts = Experts(
            context,
            f"{name}.experts",
            num_experts=count,
            size=size,
            inner=int(settings["intermediate_size"]),
            act=clamped_gate(float(settings["swiglu_alpha"]), float(settings["swiglu_limit"])),
            alternates=True,
            bias=True,
        )

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """Shapes: x, residual [T, E] -> [T, E], whole on every rank"""
        weights, experts = self._route(self.router(x))
        own = residual if self.group.rank == 0 else None  # one rank adds what is not divided
        return all_reduce(self.experts(x, weights, experts, own), self.group)

    def _route(self, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (weights, expert ids) of each token's experts. Shapes: [T, X] -> 2 x [T, A]"""
        if self._routing is not None and not is_traced():
            return self._routing(scores)
        return route(scores, self.rule)


class GptOssLayer(DecoderLayer):
    """A layer of attention with sinks, and experts."""

    def build_attention(
        self, context: BuildContext, name: str, config: DecoderConfig, layer: int
    ) -> GptOssAttention:
        """Return the layer's attention."""
        return GptOssAttention(context, name, config, layer)

    def build_mlp(
        self, context: BuildContext, name: str, config: DecoderConfig, layer: int
    ) -> GptOssMoE:
        """Return the layer's router and experts."""
        return GptOssMoE(context, name)


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
            renames=((".self_attn.sinks", ".self_attn.head_sinks.weight"),),
            transposed=INPUTS_FIRST,
        )
