"""Falcon-H1: attention and a Mamba 2 mixer side by side in every layer, with muP's multipliers.

A layer computes, of the T tokens of a step (E hidden size; m: multipliers of config.json):

    x = input_layernorm(h)                               # [T, E]
    h = h + m_ssm_out mamba(m_ssm_in x) + m_attn_out attention(m_attn_in x)
    g, u = gate_up_proj(pre_ff_layernorm(h))             # [T, F] each
    h = h + m_down down_proj(act(m_gate g) * u)

Source: Zuo et al., Falcon-H1, 2025 (arXiv 2507.22448).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import nn

from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.attention.rotary import Rope
from dovetail.layers.decoder import (
    DecoderAttention,
    DecoderConfig,
    DecoderForCausalLM,
    DecoderLayer,
    usual_config,
)
from dovetail.layers.linear import MergedColumnParallelLinear, RowParallelLinear
from dovetail_plugins.layers.mixers.mamba2 import Mamba2Mixer
from dovetail_plugins.layers.product import Product, Scale, ScaledRowParallelLinear
from dovetail_plugins.model_types.falcon_h1 import mixer_sizes


class FalconH1Mixer(Mamba2Mixer):
    """A mixer with multipliers before, after and inside it."""

    def __init__(self, context: BuildContext, name: str) -> None:
        config = context.model.hf_config
        sizes = mixer_sizes(config)
        super().__init__(context, name, sizes)
        before = float(config["ssm_in_multiplier"])
        within = config.get("ssm_multipliers") or (1.0,) * len(self.in_proj.parts)
        # Without a bias what multiplies the input multiplies the output as well.
        late = 1.0 if sizes.has_bias else before
        self.scale_in = Scale(context, [(context.model.hidden_size, before / late)])
        parts = zip(self.in_proj.parts, within, strict=True)
        self.scale_parts = Scale(context, [(p.local, late * float(m)) for p, m in parts])

    def build_out(self, context: BuildContext, name: str) -> RowParallelLinear:
        """Return the output matrix of the recurrence."""
        factor = float(context.model.hf_config["ssm_out_multiplier"])
        inner, size, bias = self.sizes.inner, context.model.hidden_size, self.sizes.has_out_bias
        return ScaledRowParallelLinear(context, name, inner, size, factor=factor, bias=bias)

    def projected(self, x: torch.Tensor) -> torch.Tensor:
        """Return z, x, b, c and the time steps, concatenated. Shapes: x [T, E] -> [T, ...]"""
        scaled: torch.Tensor = self.scale_parts(super().projected(self.scale_in(x)))
        return scaled


class FalconH1Attention(DecoderAttention):
    """Attention between two multipliers. That of the keys is in the scale of the scores."""

    def __init__(self, context: BuildContext, name: str, config: DecoderConfig, layer: int) -> None:
        super().__init__(context, name, config, layer)
        model, settings = context.model, context.model.hf_config
        size = model.hidden_size
        self.scale_in = Scale(context, [(size, float(settings["attention_in_multiplier"]))])
        self.o_proj = ScaledRowParallelLinear(
            context,
            f"{name}.o_proj",
            model.num_heads * model.head_size,
            size,
            factor=float(settings["attention_out_multiplier"]),
            bias=config.has_out_bias,
        )

    def forward(
        self, x: torch.Tensor, rope: Rope | None, residual: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Shapes: x, residual [T, E] -> [T, E]"""
        return super().forward(self.scale_in(x), rope, residual)


class FalconH1MLP(nn.Module):
    """A gated MLP whose gate and result are multiplied."""

    def __init__(self, context: BuildContext, name: str, config: DecoderConfig) -> None:
        super().__init__()
        settings, size = context.model.hf_config, context.model.hidden_size
        inner, bias = int(settings["intermediate_size"]), config.has_mlp_bias
        gate, down = (float(m) for m in settings.get("mlp_multipliers") or (1.0, 1.0))
        # Without a bias what multiplies down_proj's input multiplies its output as well.
        late = down if bias else 1.0
        self.gate_up_proj = MergedColumnParallelLinear(
            context, f"{name}.gate_up_proj", size, {"gate": inner, "up": inner}, bias=bias
        )
        self.down_proj = ScaledRowParallelLinear(
            context, f"{name}.down_proj", inner, size, factor=late, bias=bias
        )
        local = self.gate_up_proj.parts[0].local
        self.scale = Scale(context, [(local, gate), (local, down / late)])
        self.gate = Product(context, "silu")

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """Shapes: x, residual [T, E] -> [T, E]"""
        gate, up = self.scale(self.gate_up_proj(x)).chunk(2, dim=-1)
        return self.down_proj(self.gate(up, gate), residual)


class FalconH1Layer(DecoderLayer):
    """One layer: a mixer and attention in parallel, then an MLP."""

    def __init__(self, context: BuildContext, name: str, config: DecoderConfig, layer: int) -> None:
        nn.Module.__init__(self)
        self.rope = config.layer_types[layer]
        self.mamba = FalconH1Mixer(context, f"{name}.mamba")
        self.self_attn = FalconH1Attention(context, f"{name}.self_attn", config, layer)
        self.feed_forward = FalconH1MLP(context, f"{name}.feed_forward", config)
        self.input_layernorm = config.build_norm(context)
        self.pre_ff_layernorm = config.build_norm(context)

    def forward(self, x: torch.Tensor, ropes: Mapping[str, Rope]) -> torch.Tensor:
        """Shapes: x [T, E] -> [T, E]"""
        inner = self.input_layernorm(x)
        x = self.self_attn(inner, ropes[self.rope], self.mamba(inner, x))
        out: torch.Tensor = self.feed_forward(self.pre_ff_layernorm(x), x)
        return out


class FalconH1ForCausalLM(DecoderForCausalLM):
    """Falcon-H1 with its head."""

    info = Info(summary="Falcon-H1", source="https://arxiv.org/abs/2507.22448")
    layer_class = FalconH1Layer

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the config with its multipliers. Raises: ConfigError for another activation."""
        config = model.hf_config
        if config["hidden_act"] != "silu":
            raise ConfigError(
                f'activation "{config["hidden_act"]}" is not supported in Falcon-H1.',
                where="config.json: hidden_act",
                fix="use a checkpoint with silu, as the published ones have.",
            )
        return usual_config(
            model,
            query_scale=float(config["key_multiplier"]) * model.head_size**-0.5,
            embedding_scale=float(config["embedding_multiplier"]),
            logit_scale=float(config["lm_head_multiplier"]),
        )

    def weight_map(self) -> WeightMap:
        """Return the names; the last norm has its own."""
        usual = super().weight_map()
        prefixes = (("model.final_layernorm.", "model.norm."), *usual.prefixes)
        return replace(usual, prefixes=prefixes)
