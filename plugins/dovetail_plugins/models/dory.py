"""Nemotron Labs Dory: states of length one, and layers in the middle that run several times.

With u(x) = x / |x| and a learned rate r of each channel, a layer, of attention or an MLP, is

    x = u(x)
    x = x + |r| (u(layer(x)) - x)

Its parts are as follows; the learned scales s are stored divided by their initial values:

    q, k = rotary(u(q), u(k));  q = q s^2                # each head
    h = o_proj(u(attention(q, k, v) sigmoid(gate s'^2)))
    h = down_proj(u(silu(gate s) (up s')))

Each pass of the layers in the middle begins with u(x) + u(the first ones' output) and has its own
keys and values. Sources: NVIDIA, Nemotron Labs Dory 1.0, 2026, as transformers has it; Loshchilov
et al., nGPT, 2024 (arXiv 2410.01131).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import nn

from dovetail.errors import ConfigError
from dovetail.interfaces.attention import AttentionSpec
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.attention import Attention
from dovetail.layers.attention.rotary import HeadRotary, Rope, Rotary, rope_settings
from dovetail.layers.context import keep_inner
from dovetail.layers.decoder import (
    FULL,
    SLIDING,
    DecoderConfig,
    DecoderForCausalLM,
    DecoderLayer,
    DecoderModel,
    usual_config,
)
from dovetail.layers.dtypes import dtype_of
from dovetail.layers.linear import MergedColumnParallelLinear, RowParallelLinear, attention_linears
from dovetail.layers.repeated import of_tensors
from dovetail_plugins.layers.attention.gated import GATE, GatedQKVLinear
from dovetail_plugins.model_types.dory import MLP, layer_types, recurrent

THETAS = {SLIDING: 1e4, FULL: 1e7}
TRUNKS = ("backbone.", "model.")
EPS = 1e-6
"""Added to a squared length."""


def unit(x: torch.Tensor) -> torch.Tensor:
    """Return vectors of length one. Shapes: x [..., E] -> [..., E]"""
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().sum(dim=-1, keepdim=True) + EPS)).to(x.dtype)


def vector(context: BuildContext, size: int) -> nn.Parameter:
    """Return an empty parameter of a layer. Shapes: -> [size]"""
    dtype = dtype_of(context.model.dtype)
    return nn.Parameter(torch.empty(size, dtype=dtype, device=context.device), requires_grad=False)


class UnitNorm(nn.Module):
    """Normalizes states to length one, without learned weights."""

    def __init__(self, context: BuildContext, size: int, *, eps: float) -> None:
        super().__init__()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shapes: x [T, E] -> [T, E]"""
        return of_tensors(lambda one: (unit(one),), x)[0]


class DoryAttention(nn.Module):
    """Attention with gates, over the keys and values of each time that it is passed."""

    def __init__(
        self, context: BuildContext, name: str, config: DecoderConfig, kind: str, num_loops: int
    ) -> None:
        super().__init__()
        model, settings = context.model, context.model.hf_config
        heads, kv_heads, size = model.num_heads, model.num_kv_heads, model.head_size
        self.qkv_proj, self.o_proj = attention_linears(
            context,
            name,
            qkv_bias=config.has_qkv_bias,
            out_bias=config.has_out_bias,
            qkv_class=GatedQKVLinear,
        )
        self.size, first = size, float(settings["initializer_range"])
        self.sqk, self.s_gate = (vector(context, heads * size) for _ in range(2))
        self._of_queries = size**0.5 / first
        self._of_gates = model.hidden_size**0.25 / first
        self.rotate = HeadRotary(context, num_heads=heads, num_kv_heads=kv_heads, head_size=size)
        self._widths = (heads * size, kv_heads * size, kv_heads * size)
        spec = AttentionSpec(
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_size=size,
            scale=size**-0.5,
            window_tokens=config.window_tokens if kind == SLIDING else None,
        )
        names = (f"{name}.{loop}" if loop else name for loop in range(num_loops))
        self.attn = nn.ModuleList(Attention(one, spec) for one in names)

    def forward(self, x: torch.Tensor, rope: Rope | None, loop: int) -> torch.Tensor:
        """Shapes: x [T, E] -> [T, E]"""
        qkv, gate = of_tensors(self._unit_heads, self.qkv_proj(x))
        q, k, v = self.rotate(qkv, rope)
        (q,) = of_tensors(self._scaled, q)
        (opened,) = of_tensors(self._opened, self.attn[loop](q, k, v), gate)
        return self.o_proj(opened)

    def _unit_heads(self, both: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return queries, keys and values, and gates. Shapes: [T, (2 H + 2 K) D] -> [T, (H + 2 K)
        D], [T, H D]"""
        q, k, v, gate = both.split((*self._widths, self._widths[0]), dim=-1)
        q, k = (unit(one.unflatten(-1, (-1, self.size))).flatten(-2) for one in (q, k))
        return torch.cat([q, k, v], dim=-1), gate.contiguous()

    def _scaled(self, q: torch.Tensor) -> tuple[torch.Tensor]:
        return (q * (self.sqk * self._of_queries).square(),)

    def _opened(self, x: torch.Tensor, gate: torch.Tensor) -> tuple[torch.Tensor]:
        """Shapes: x, gate [T, H D] -> [T, H D]"""
        return (unit(x * (gate * (self.s_gate * self._of_gates).square()).sigmoid()),)


class DoryMLP(nn.Module):
    """An MLP whose gate and up are scaled by channel."""

    def __init__(self, context: BuildContext, name: str, config: DecoderConfig) -> None:
        super().__init__()
        hidden, inner = context.model.hidden_size, int(context.model.hf_config["intermediate_size"])
        bias = config.has_mlp_bias
        self.gate_up_proj = MergedColumnParallelLinear(
            context, f"{name}.gate_up_proj", hidden, {"gate": inner, "up": inner}, bias=bias
        )
        self.down_proj = RowParallelLinear(context, f"{name}.down_proj", inner, hidden, bias=bias)
        self.suv_gate, self.suv_up = (vector(context, inner) for _ in range(2))
        self._scale = hidden**0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shapes: x [T, E] -> [T, E]"""
        return self.down_proj(of_tensors(self._inner, self.gate_up_proj(x))[0])

    def _inner(self, both: torch.Tensor) -> tuple[torch.Tensor]:
        """Shapes: both [T, 2 F] -> [T, F]"""
        gate, up = both.chunk(2, dim=-1)
        gate = F.silu(gate * (self.suv_gate * self._scale))
        return (unit(gate * (up * (self.suv_up * self._scale))),)


class DoryLayer(DecoderLayer):
    """One layer: attention or an MLP, towards whose direction states turn."""

    def __init__(self, context: BuildContext, name: str, config: DecoderConfig, layer: int) -> None:
        nn.Module.__init__(self)
        settings = context.model.hf_config
        self.kind = config.layer_types[layer]
        loops = int(settings["n_recurrent_loops"]) if layer in recurrent(settings) else 1
        self.mixer: nn.Module
        if self.kind == MLP:
            self.mixer = DoryMLP(context, f"{name}.mixer", config)
        else:
            self.mixer = DoryAttention(context, f"{name}.mixer", config, self.kind, loops)
        self.norm = config.build_norm(context)
        self.alpha = vector(context, context.model.hidden_size)
        self._scale = float(settings["ngpt_alpha_init"]) / float(settings["initializer_range"])

    def forward(self, x: torch.Tensor, ropes: Mapping[str, Rope], loop: int = 0) -> torch.Tensor:
        """Shapes: x [T, E] -> [T, E]"""
        x = self.norm(x)
        update = self.mixer(x) if self.kind == MLP else self.mixer(x, ropes[self.kind], loop)
        return of_tensors(self._turned, x, update)[0]

    def _turned(self, x: torch.Tensor, update: torch.Tensor) -> tuple[torch.Tensor]:
        return (torch.lerp(x, unit(update), (self.alpha * self._scale).abs()),)


class DoryModel(DecoderModel):
    """Embedding, layers and the last norm; the layers in the middle are passed several times."""

    def __init__(
        self,
        context: BuildContext,
        name: str,
        config: DecoderConfig,
        layer_class: type[DecoderLayer] = DoryLayer,
    ) -> None:
        super().__init__(context, name, config, layer_class)
        settings = context.model.hf_config
        again, count = recurrent(settings), len(config.layer_types)
        first = [(layer, 0) for layer in range(again.start)]
        self._ways = [first]
        for loop in range(int(settings["n_recurrent_loops"])):
            self._ways.append([(layer, loop) for layer in again])
        self._last = [(layer, 0) for layer in range(again.stop, count)]

    def build_rotaries(self, context: BuildContext, layer_types: set[str]) -> nn.ModuleDict:
        """Return a table for each kind of layers that attend."""
        kinds = sorted(layer_types - {MLP})
        settings = {kind: rope_settings(context, theta=THETAS[kind], kind=kind) for kind in kinds}
        return nn.ModuleDict({kind: Rotary(settings[kind], context.device) for kind in kinds})

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Shapes: token_ids, positions [T] -> [T, E]"""
        ropes = {name: rotary(positions) for name, rotary in self.rotaries.items()}
        first, *again = self._ways
        x = self._passed(self.embed(token_ids, positions), ropes, first)
        begun = self.norm(x)
        for way in again:
            (x,) = of_tensors(lambda one, other: (unit(one) + other,), x, begun)
            x = self._passed(x, ropes, way)
        return self.norm(self._passed(x, ropes, self._last))

    def _passed(
        self, x: torch.Tensor, ropes: Mapping[str, Rope], way: list[tuple[int, int]]
    ) -> torch.Tensor:
        """Return states after some layers, each with the number of its loop. Shapes: x [T, E] ->
        [T, E]"""
        for number, loop in way:
            if self.inner is not None and number in self.inner:
                keep_inner(self.inner, number, x)
            x = self.layers[number](x, ropes, loop)
        return x


def names_of_pair(trunk: str, number: int) -> tuple[tuple[str, str], ...]:
    """Return the name prefixes of a layer in transformers' numbering, and here."""
    own, first = f"{trunk}layers.{number}.", f"model.layers.{2 * number}."
    then = f"model.layers.{2 * number + 1}."
    return (
        (f"{own}self_attn.gate_proj.", f"{first}mixer.g_proj."),
        (f"{own}self_attn.", f"{first}mixer."),
        (f"{own}mlp.", f"{then}mixer."),
        (f"{own}lambda_1", f"{first}alpha"),
        (f"{own}lambda_2", f"{then}alpha"),
    )


class DoryForCausalLM(DecoderForCausalLM):
    """Nemotron Labs Dory with a head, whose logits are scaled token by token. It cannot be divided:
    its lengths span all heads, and its loops run layers again."""

    info = Info(
        summary="Nemotron Labs Dory: layers passed several times",
        source="https://huggingface.co/nvidia/NVIDIA-Nemotron-Labs-Dory1.0-4B-BF16",
    )
    capabilities: ClassVar[frozenset[str]] = frozenset()
    model_class = DoryModel
    layer_class = DoryLayer

    def __init__(self, options: Any, context: BuildContext) -> None:
        super().__init__(options, context)
        self.logit_scale = vector(context, context.model.vocab_size)
        self._first = float(context.model.hf_config["initializer_range"])

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the config. Raises: ConfigError if loops would share keys and values."""
        config = model.hf_config
        if config["recurrent_kv_cache_mode"] != "per_loop":
            raise ConfigError(
                "all loops but the last would read keys and values that the last one wrote.",
                where="config.json: recurrent_kv_cache_mode",
                fix="set it to per_loop, in which each has its own.",
            )
        return usual_config(
            model,
            layer_types=layer_types(config),
            window_tokens=int(config["sliding_window"]),
            norm=UnitNorm,
        )

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits of selected tokens. Shapes: hidden [S, E] -> [S, V]"""
        return super().logits(hidden) * (self.logit_scale / self._first)

    def weight_map(self) -> WeightMap:
        """Return the names: transformers saves two layers as one."""
        usual = super().weight_map()
        numbers = range(len(self.model.config.layer_types) // 2)
        pairs = (name for i in numbers for trunk in TRUNKS for name in names_of_pair(trunk, i))
        own = (("backbone.embeddings.", "model.embed_tokens."), ("backbone.", "model."))
        return replace(
            usual,
            prefixes=(*pairs, *own, *usual.prefixes),
            renames=(
                (".attn_alpha", ".alpha"),
                (".mlp_alpha", ".alpha"),
                ("lm_head.logit_scale", "logit_scale"),
            ),
            fused={**usual.fused, "g_proj": ("qkv_proj", GATE)},
        )
