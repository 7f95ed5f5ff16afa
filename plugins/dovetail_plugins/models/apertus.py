"""Apertus: Llama with norms of heads and an MLP without a gate, whose activation is learned.

Sources: Hernández-Cano et al., Apertus, 2025; Huang and Schlag, Deriving Activation Functions Using
Integration (xIELU), 2024.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.decoder import DecoderConfig, DecoderForCausalLM, DecoderLayer, usual_config
from dovetail.layers.dtypes import dtype_of
from dovetail.layers.linear import ColumnParallelLinear, RowParallelLinear
from dovetail.layers.linear.placement import mark_axes
from dovetail.layers.repeated import of_tensors

LEARNED = "xielu"
RENAMES = (
    (".attention_layernorm.", ".input_layernorm."),
    (".feedforward_layernorm.", ".post_attention_layernorm."),
)


class XIELU(nn.Module):
    """b x + a x^2 above 0, b x + c (e^min(x, eps) - 1 - x) below. The learned numbers are a and c -
    b before softplus; `known` has those that the config says, as that of a GGUF file says all."""

    def __init__(self, context: BuildContext, known: Mapping[str, float]) -> None:
        super().__init__()
        self.alpha_p = _number(context, [known.get("alpha_p", 0.0)])
        self.alpha_n = _number(context, [known.get("alpha_n", 0.0)])
        self.beta = _number(context, known.get("beta", 0.5))
        self.eps = _number(context, known.get("eps", -1e-6))
        for name in ("beta", "eps", *known):
            mark_axes(self.get_parameter(name), output=None, input=None, is_optional=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shapes: any -> the same"""
        return of_tensors(self._computed, x)[0]

    def _computed(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        above, below = F.softplus(self.alpha_p), self.beta + F.softplus(self.alpha_n)
        under = (torch.expm1(torch.minimum(x, self.eps)) - x) * below
        return (torch.where(x > 0, above * x * x, under) + self.beta * x,)


def _number(context: BuildContext, value: Any) -> nn.Parameter:
    number = torch.tensor(value, dtype=dtype_of(context.model.dtype), device=context.device)
    return nn.Parameter(number, requires_grad=False)


class ApertusMLP(nn.Module):
    """down(xielu(up(x)))"""

    def __init__(
        self, context: BuildContext, name: str, inner: int, known: Mapping[str, float]
    ) -> None:
        super().__init__()
        size = context.model.hidden_size
        self.up_proj = ColumnParallelLinear(context, f"{name}.up_proj", size, inner)
        self.act_fn = XIELU(context, known)
        self.down_proj = RowParallelLinear(context, f"{name}.down_proj", inner, size)

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """Shapes: x, residual [T, E] -> [T, E]"""
        return self.down_proj(self.act_fn(self.up_proj(x)), residual)


class ApertusLayer(DecoderLayer):
    """A decoder layer with the learned activation, if the config names it."""

    def build_mlp(
        self, context: BuildContext, name: str, config: DecoderConfig, layer: int
    ) -> nn.Module:
        """Return the layer's MLP."""
        if config.hidden_act != LEARNED:
            return super().build_mlp(context, name, config, layer)
        settings = context.model.hf_config
        known = {name: values[layer] for name, values in (settings.get(LEARNED) or {}).items()}
        return ApertusMLP(context, name, int(settings["intermediate_size"]), known)


class ApertusForCausalLM(DecoderForCausalLM):
    """Apertus with a head."""

    info = Info(summary="Apertus", source="https://arxiv.org/abs/2509.14233")
    layer_class = ApertusLayer

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the config."""
        return usual_config(model, qk_norm=True, is_gated=False, rope_theta=12e6)

    def weight_map(self) -> WeightMap:
        """Return the names."""
        return replace(super().weight_map(), renames=RENAMES)
