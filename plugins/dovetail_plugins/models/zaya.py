"""ZAYA1: attention after convolutions of queries and keys, and one expert per token, picked by a
router that also reads the previous layer's router state.

For the T tokens of a step (H query heads, K kv heads, D head size, G = H / K; t the token):

    q, k, v, w = inputs(x)                               # [T, H D], [T, K D], [T, K D / 2] twice
    m = (q + k of its group) / 2,  n = mean of m over a group
    q, k = grouped(depthwise(q, k)) + (m, n)             # over a few tokens; grouped: within a head
    q, k = q / rms(q), k / rms(k) * temp
    h = o_proj(attention(q, k, [v of t, w of t - 1]))
    x = (x + a) b + (h + c) d                            # after the experts, with others

    r = down(x) + scale * r of the layer before          # [T, R]
    p = softmax(mlp(norm(r)));  e = argmax(p + biases)   # the last of X + 1 experts gives nothing
    h = p_e expert_e(x)

Sums over the layers are float32. Sources: Zyphra, ZAYA1, 2025, as transformers has it; Compressed
Convolutional Attention, 2025 (arXiv 2510.04476).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import torch
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
from dovetail.layers.linear import (
    Linear,
    ReplicatedActivatedLinear,
    ReplicatedLinear,
    RowParallelLinear,
)
from dovetail.layers.linear.placement import Part as Rows
from dovetail.layers.moe.experts import Experts
from dovetail.layers.norm import RMSNorm
from dovetail.layers.repeated import of_tensors
from dovetail.layers.state import CONV, Part, State
from dovetail.parallel.collectives import all_reduce
from dovetail_kernels import short_conv
from dovetail_kernels.head_products.matrices import HeadMatrices
from dovetail_kernels.short_conv.native import ShortConv
from dovetail_plugins.layers.mixers.recurrent import DividedVectors, OverRows
from dovetail_plugins.model_types.zaya import HYBRID, HYBRID_SLIDING, layer_types

LATE = "late"
"""Names the values of the token before, and the part of the state that holds them."""
KINDS = {HYBRID: FULL, HYBRID_SLIDING: SLIDING}
THETAS = {HYBRID: 5e6, HYBRID_SLIDING: 1e4}
INPUTS = {
    "q_proj": ("inputs", "q"),
    "k_proj": ("inputs", "k"),
    "v_proj_current": ("inputs", "v"),
    "v_proj_delayed": ("inputs", LATE),
}
RENAMES = (
    (".conv_qk_depthwise.", ".depthwise_"),
    (".conv_qk_grouped.", ".grouped_"),
    (".self_attn.qk_norm.temp", ".self_attn.qkv_proj.temp"),
)


def whole(name: str, size: int) -> Rows:
    """Return a part that every rank has whole."""
    return Rows(name=name, full=size, local=size, start=0)


class ConvolvedQKV(DividedVectors):
    """Makes queries, keys and values of one layer's input."""

    def __init__(self, context: BuildContext, name: str) -> None:
        super().__init__()
        model, settings = context.model, context.model.hf_config
        heads, size, half = model.num_heads, model.head_size, model.num_kv_heads // 2
        self.heads, self.kv_heads, self.size = heads, model.num_kv_heads, size
        self.widths = ((heads + model.num_kv_heads) * size, half * size, half * size)
        parts = (
            *(whole("q", heads * size), whole("k", model.num_kv_heads * size)),
            *(whole("v", half * size), whole(LATE, half * size)),
        )
        self.inputs = Linear(context, f"{name}.q_proj", model.hidden_size, parts, bias=False)
        channels, late = (whole("", width) for width in self.widths[:2])
        self.taps = int(settings["cca_time0"]), int(settings["cca_time1"])
        for leaf, behind in (("depthwise", (1, self.taps[0])), ("grouped", (size, self.taps[1]))):
            self.add_vector(context, f"{leaf}_weight", (channels,), behind=behind)
            self.add_vector(context, f"{leaf}_bias", (channels,))
        self.add_vector(context, "temp", (whole("", model.num_kv_heads),))
        convolved = Part(name=CONV, shape=(channels.full, self.taps[0] - 1), holds=CONV)
        self.before = tuple(f"before{i}" for i in range(1, self.taps[1]))
        earlier = (Part(name=one, shape=(channels.full, 1), holds=CONV) for one in self.before)
        late_part = Part(name=LATE, shape=(late.full, 1), holds=CONV)
        self.state = State(name, (convolved, *earlier, late_part))
        dtype = dtype_of(model.dtype)
        shift = torch.tensor([1.0, 0.0]).expand(channels.full, 2).to(context.device, dtype)
        self.register_buffer("shift", shift.contiguous(), persistent=False)
        self._least = torch.finfo(dtype).eps
        self._convolve = OverRows(short_conv.OP, context, ShortConv, lambda: {"activation": "none"})
        self._convolve.finish()

    def finish(self) -> None:
        """Make matrices of the grouped convolution's heads, and the sum of both biases after it: a
        row begins with inputs of zeros. Mutates: self"""
        weight, bias = (self.get_parameter(f"grouped_{leaf}").data for leaf in ("weight", "bias"))
        before = self.get_parameter("depthwise_bias").data.unflatten(0, (-1, self.size))
        by_head = weight.unflatten(0, (-1, self.size))
        added = torch.einsum("hoit,hi->ho", by_head.float(), before.float()).to(bias.dtype)
        self.register_buffer("added", added + bias.view_as(added), persistent=False)
        self.register_parameter("grouped_weight", None)
        self._grouped = HeadMatrices(by_head.permute(0, 3, 2, 1).flatten(1, 2), dtype=weight.dtype)
        self.register_buffer("grouped", self._grouped.tensor, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return queries, keys and values of all heads. Shapes: x [T, E] -> [T, (H + 2 K) D].
        Mutates: the rows' states"""
        qk, v, late = self.inputs(x).split(self.widths, dim=-1)
        parts, rows = self.state.step()
        depthwise = self.get_parameter("depthwise_weight").squeeze(1)
        shift = self.get_buffer("shift")
        taps = [self._convolve(parts[CONV], rows, x=qk, weight=depthwise, bias=None)]
        for name in self.before:
            taps.append(self._convolve(parts[name], rows, x=taps[-1], weight=shift, bias=None))
        (by_head,) = of_tensors(self._by_head, *reversed(taps))
        late = self._convolve(parts[LATE], rows, x=late, weight=shift[: late.shape[1]], bias=None)
        return of_tensors(self._normed, qk, self._grouped(by_head), v, late)[0]

    def _by_head(self, *taps: torch.Tensor) -> tuple[torch.Tensor]:
        """Return a head's numbers of all tokens that it sees, W. Shapes: [T, C] each -> [T, H + K,
        W D]"""
        return (torch.cat([tap.unflatten(-1, (-1, self.size)) for tap in taps], dim=-1),)

    def _normed(
        self, qk: torch.Tensor, convolved: torch.Tensor, v: torch.Tensor, late: torch.Tensor
    ) -> tuple[torch.Tensor]:
        """Return queries, keys and values. Shapes: qk [T, C], convolved [T, H + K, D], v, late
        [T, K D / 2] -> [T, (H + 2 K) D]"""
        heads, groups = (self.heads, self.kv_heads), self.heads // self.kv_heads
        q, k = qk.unflatten(-1, (-1, self.size)).split(heads, dim=1)
        q_rest = (q + k.repeat_interleave(groups, dim=1)) * 0.5
        k_rest = q_rest.unflatten(1, (-1, groups)).mean(dim=2)
        q, k = (convolved + self.get_buffer("added")).split(heads, dim=1)
        q, k = self._unit(q + q_rest), self._unit(k + k_rest)
        k = k * self.get_parameter("temp").unsqueeze(-1)
        return (torch.cat([q.flatten(1), k.flatten(1), v, late], dim=-1),)

    def _unit(self, x: torch.Tensor) -> torch.Tensor:
        """Return heads of the length sqrt(D). Shapes: x [T, H, D] -> [T, H, D]"""
        length = x.norm(dim=-1, keepdim=True).clamp_min(self._least)
        return x * (self.size**0.5 / length)


class ZayaAttention(nn.Module):
    """Rotary attention of convolved queries and keys."""

    def __init__(self, context: BuildContext, name: str, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        model, size = context.model, context.model.head_size
        self.qkv_proj = ConvolvedQKV(context, f"{name}.qkv_proj")
        self.o_proj = RowParallelLinear(
            context, f"{name}.o_proj", model.num_heads * size, model.hidden_size
        )
        heads, kv_heads = model.num_heads, model.num_kv_heads
        self.rotate = HeadRotary(context, num_heads=heads, num_kv_heads=kv_heads, head_size=size)
        is_sliding = config.layer_types[layer] == SLIDING
        spec = AttentionSpec(
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_size=size,
            scale=size**-0.5,
            window_tokens=config.window_tokens if is_sliding else None,
        )
        self.attn = Attention(name, spec)

    def forward(self, x: torch.Tensor, rope: Rope | None) -> torch.Tensor:
        """Shapes: x [T, E] -> [T, E]"""
        q, k, v = self.rotate(self.qkv_proj(x), rope)
        return self.o_proj(self.attn(q, k, v))


class RouterMLP(nn.Module):
    """Computes expert scores from a router's state (R numbers)."""

    def __init__(self, context: BuildContext, name: str, size: int, count: int, eps: float) -> None:
        super().__init__()
        self.norm = RMSNorm(context, size, eps=eps)
        self.fc1, self.fc2 = (
            ReplicatedActivatedLinear(context, f"{name}.{leaf}", size, size, act="gelu", bias=True)
            for leaf in ("fc1", "fc2")
        )
        self.out_proj = ReplicatedLinear(context, f"{name}.out_proj", size, count)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shapes: x [T, R] -> [T, X + 1]"""
        return self.out_proj(self.fc2(self.fc1(self.norm(x))))


class Router(nn.Module):
    """Picks one expert of each token, or none. It adds the previous layer's state of the token to
    its own, except in the first layer."""

    def __init__(self, context: BuildContext, name: str, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        settings, dtype = context.model.hf_config, dtype_of(context.model.dtype)
        size, count = int(settings["router_hidden_size"]), int(settings["num_experts"])
        self.count = count
        self.down_proj = ReplicatedLinear(
            context, f"{name}.down_proj", context.model.hidden_size, size, bias=True
        )
        self.router_mlp = RouterMLP(context, f"{name}.router_mlp", size, count + 1, config.norm_eps)
        biases = torch.empty(count + 1, dtype=torch.float32, device=context.device)
        self.balancing_biases = nn.Parameter(biases, requires_grad=False)
        self.remembers = layer > 0
        if self.remembers:
            scale = torch.empty(size, dtype=dtype, device=context.device)
            self.router_states_scale = nn.Parameter(scale, requires_grad=False)

    def forward(
        self, x: torch.Tensor, before: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return weights and numbers of experts, and the router's state. Shapes: x [T, E], before
        [T, R] -> [T, 1], [T, 1], [T, R]"""
        state = self.down_proj(x)
        if self.remembers and before is not None:
            (state,) = of_tensors(self._with, state, before)
        weights, experts = of_tensors(self._picked, self.router_mlp(state))
        return weights, experts, state

    def _with(self, state: torch.Tensor, before: torch.Tensor) -> tuple[torch.Tensor]:
        return (state + before * self.router_states_scale,)

    def _picked(self, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Shapes: scores [T, X + 1] -> [T, 1] twice"""
        likely = scores.softmax(dim=-1)
        best = (likely.float() + self.balancing_biases).argmax(dim=-1, keepdim=True)
        is_none = best == self.count
        weights = likely.gather(1, best).float().masked_fill(is_none, 0.0)
        return weights, best.masked_fill(is_none, 0)


class ZayaMoE(nn.Module):
    """One layer's router and experts."""

    def __init__(self, context: BuildContext, name: str, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        settings = context.model.hf_config
        self.gate = Router(context, f"{name}.gate", config, layer)
        self.experts = Experts(
            context,
            f"{name}.experts",
            num_experts=int(settings["num_experts"]),
            size=context.model.hidden_size,
            inner=int(settings["moe_intermediate_size"]),
            act=config.hidden_act,
        )

    def forward(
        self, x: torch.Tensor, before: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the experts' output, and the router's state. Shapes: x [T, E], before [T, R] ->
        [T, E], [T, R]"""
        weights, experts, state = self.gate(x, before)
        return all_reduce(self.experts(x, weights, experts), self.experts.group), state


class ScaledSum(nn.Module):
    """(h + c) d + (x + a) b: the sum of a branch and its residual, each scaled by channel. With one
    term, only that."""

    def __init__(self, context: BuildContext, names: tuple[str, ...]) -> None:
        super().__init__()
        size, dtype = context.model.hidden_size, dtype_of(context.model.dtype)
        self.names = names
        for name in names:
            for leaf in ("bias", "scale"):
                empty = torch.empty(size, dtype=dtype, device=context.device)
                self.register_parameter(f"{name}_{leaf}", nn.Parameter(empty, requires_grad=False))

    def forward(self, *terms: torch.Tensor) -> torch.Tensor:
        """Shapes: [T, E] each -> [T, E] float32"""
        return of_tensors(self._sum, *terms)[0]

    def _sum(self, *terms: torch.Tensor) -> tuple[torch.Tensor]:
        scaled = (
            (term + self.get_parameter(f"{name}_bias")) * self.get_parameter(f"{name}_scale")
            for name, term in zip(self.names, terms, strict=True)
        )
        return (sum(scaled, start=torch.zeros((), dtype=torch.float32, device=terms[0].device)),)


class ZayaLayer(DecoderLayer):
    """One layer: attention and an expert, each after a norm and added by channel."""

    def __init__(self, context: BuildContext, name: str, config: DecoderConfig, layer: int) -> None:
        nn.Module.__init__(self)
        self.rope = config.layer_types[layer]
        self.dtype = dtype_of(context.model.dtype)
        self.self_attn = ZayaAttention(context, f"{name}.self_attn", config, layer)
        self.mlp = ZayaMoE(context, f"{name}.mlp", config, layer)
        terms = ("hidden_states", "residual")
        self.post_attention_residual_scale = ScaledSum(context, terms)
        self.post_mlp_residual_scale = ScaledSum(context, terms)
        self.input_layernorm = config.build_norm(context)
        self.post_attention_layernorm = config.build_norm(context)

    def forward(  # type: ignore[override]  # ZayaModel hands on what routers remember
        self, x: torch.Tensor, ropes: Mapping[str, Rope], before: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the layer's output, and its router's state. Shapes: x [T, E] float32, before
        [T, R] -> [T, E] float32, [T, R]"""
        h = self.self_attn(self.input_layernorm(x.to(self.dtype)), ropes[self.rope])
        x = self.post_attention_residual_scale(h, x)
        h, state = self.mlp(self.post_attention_layernorm(x.to(self.dtype)), before)
        return self.post_mlp_residual_scale(h, x), state


class ZayaModel(DecoderModel):
    """Embedding, layers and the last norm; the routers' states go from layer to layer."""

    def __init__(
        self,
        context: BuildContext,
        name: str,
        config: DecoderConfig,
        layer_class: type[DecoderLayer] = ZayaLayer,
    ) -> None:
        super().__init__(context, name, config, layer_class)
        remembered = int(context.model.hf_config["router_hidden_size"])
        self._widths = (context.model.hidden_size, remembered)
        self._dtype = dtype_of(context.model.dtype)
        self.stage.width = sum(self._widths)
        self.input = self.stage.first(lambda: ScaledSum(context, ("input_hidden_states",)))

    def build_rotaries(self, context: BuildContext, layer_types: set[str]) -> nn.ModuleDict:
        """Return a table for each kind of layers."""
        tables = {
            KINDS[kind]: rope_settings(context, theta=theta, kind=kind, share=0.5)
            for kind, theta in THETAS.items()
        }
        return nn.ModuleDict(
            {kind: Rotary(tables[kind], context.device) for kind in sorted(layer_types)}
        )

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return hidden states, followed by the router states on all stages except the last.
        Shapes: token_ids, positions [T] -> [T, E] or [T, E + R]"""
        before: torch.Tensor | None = None
        if self.stage.is_first:
            x = self.input(self.embed(token_ids, positions))
        else:
            x, before = of_tensors(self._received, self.stage.received(token_ids))
        ropes = {name: rotary(positions) for name, rotary in self.rotaries.items()}
        for number in self.stage.numbers:
            if self.inner is not None and number in self.inner:
                keep_inner(self.inner, number, x)
            x, before = self.layers[number](x, ropes, before)
        if self.stage.is_last:
            return self.norm(x.to(self._dtype))
        assert before is not None, "a stage has layers"
        return of_tensors(self._sent, x, before)[0]

    def _received(self, both: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x, before = both.split(self._widths, dim=-1)
        return x.float().contiguous(), before.contiguous()

    def _sent(self, x: torch.Tensor, before: torch.Tensor) -> tuple[torch.Tensor]:
        return (torch.cat([x.to(self._dtype), before], dim=-1),)


class ZayaForCausalLM(DecoderForCausalLM):
    """ZAYA1 with its tied head. Its two kv heads, one of them delayed by a token, stay on one
    rank."""

    info = Info(
        summary="ZAYA1: convolved attention, one expert a token",
        source="https://arxiv.org/abs/2510.04476",
    )
    capabilities: ClassVar[frozenset[str]] = frozenset({"pipeline_parallel"})
    model_class = ZayaModel
    layer_class = ZayaLayer

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the config. Raises: ConfigError for settings that no published checkpoint has."""
        config = model.hf_config
        for field, wanted in (("num_experts_per_tok", 1), ("attention_bias", False)):
            if config[field] != wanted:
                raise ConfigError(
                    f"{field} = {config[field]} is not supported.",
                    where="config.json",
                    fix=f"use a checkpoint with {field} = {wanted}.",
                )
        return usual_config(
            model,
            layer_types=tuple(KINDS[kind] for kind in layer_types(config)),
            window_tokens=config.get("sliding_window") or None,
            has_head_bias=bool(config["lm_head_bias"]),
        )

    def weight_map(self) -> WeightMap:
        """Return the names: one matrix makes queries, keys and values."""
        usual = super().weight_map()
        inputs = tuple(
            (f"model.input_hidden_states_{leaf}", f"model.input.input_hidden_states_{leaf}")
            for leaf in ("scale", "bias")
        )
        return replace(usual, renames=(*RENAMES, *inputs), fused=INPUTS)
