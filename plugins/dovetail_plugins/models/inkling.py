"""Inkling: attention whose queries mix biases by distance, within a window in most layers; short
convolutions of keys, of values and of what attention and MLP add; experts, some for every token.

A layer computes, of the T tokens of a step, with c(y) = y + conv(y) over the last few tokens:

    q, k, v, r = matrices of input_layernorm(h)
    a = attention(q_norm(q), k_norm(c_k(k)), c_v(v), r)      # scores q . k / D, and biases of r
    h = h + c_a(o_proj(a))
    h = h + c_m(mlp(post_attention_layernorm(h)))

Nothing is rotated. Token vectors are normed. Source: Thinking Machines Lab, Inkling, 2026, as
transformers has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import torch
from msgspec import structs
from torch import nn

from dovetail.interfaces.attention import AttentionSpec
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.adapters.tables import NEVER
from dovetail.layers.attention.rotary import Rope
from dovetail.layers.decoder import (
    FULL,
    SLIDING,
    DecoderConfig,
    DecoderForCausalLM,
    DecoderLayer,
    DecoderModel,
    GatedMLP,
    usual_config,
)
from dovetail.layers.linear import ColumnParallelLinear, attention_linears
from dovetail.layers.state import State
from dovetail_plugins.layers.attention.relative import DistanceBank, LogScale, RelativeAttention
from dovetail_plugins.layers.mixers.hybrid import UnrotatedModel
from dovetail_plugins.layers.routing import RoutingRule
from dovetail_plugins.layers.short_convs import AddedConv, Step, whole_part
from dovetail_plugins.layers.sink_experts import SinkMoE
from dovetail_plugins.model_types.inkling import (
    WINDOWED,
    heads,
    inner_sizes,
    is_sparse,
    layer_types,
)
from dovetail_plugins.models._moe import CORRECTION_BIAS

RENAMES = (
    CORRECTION_BIAS,
    (".gate.global_scale", ".global_scale"),
    (".conv1d.", "."),
    (".embed_tokens.embed_norm.", ".embed_norm."),
    (".mlp.shared_experts.", ".mlp.experts.shared."),
)


def of_layer(context: BuildContext, layer: int) -> BuildContext:
    """Return the context of a layer's attention: the model with that layer's heads."""
    own = heads(context.model.hf_config, layer)
    model = structs.replace(
        context.model,
        num_heads=own.num_heads,
        num_kv_heads=own.num_kv_heads,
        head_size=own.size,
    )
    return replace(context, model=model)


def log_scale(settings: Mapping[str, Any]) -> LogScale | None:
    """Return the factor of queries far into a row; None if there is none."""
    floor = settings.get("log_scaling_n_floor")
    alpha = float(settings["log_scaling_alpha"])
    return None if floor is None else LogScale(floor=int(floor), alpha=alpha)


class InklingAttention(nn.Module):
    """The attention of one layer, whose keys and values are convolved."""

    def __init__(self, context: BuildContext, name: str, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        context = of_layer(context, layer)
        model, settings = context.model, context.model.hf_config
        self.qkv_proj, self.o_proj = attention_linears(
            context, name, qkv_bias=False, out_bias=False
        )
        kind, rank = config.layer_types[layer], int(settings["d_rel"])
        window = config.window_tokens if kind == SLIDING else None
        self.r_proj = ColumnParallelLinear(
            context, f"{name}.r_proj", model.hidden_size, model.num_heads * rank
        )
        width = int(settings["conv_kernel_size"])
        part = replace(self.qkv_proj.parts[1], name="")
        self.k_sconv, self.v_sconv = (AddedConv(context, n, part, width) for n in "kv")
        self.q_norm, self.k_norm = (
            config.norm(context, model.head_size, eps=config.norm_eps) for _ in "qk"
        )
        spec = AttentionSpec(
            num_heads=self.qkv_proj.num_heads,
            num_kv_heads=self.qkv_proj.num_kv_heads,
            head_size=model.head_size,
            scale=1 / model.head_size,
            window_tokens=window,
        )
        scaled = None if kind == SLIDING else log_scale(settings)
        self.attn = RelativeAttention(name, spec, scaled)
        extent = window or int(settings["rel_extent"])
        self.rel_logits_proj = DistanceBank(context, rank, extent)

    def forward(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        """Shapes: x [T, E] -> [T, E]. Mutates: the states"""
        sizes = [part.local for part in self.qkv_proj.parts]
        q, k, v = self.qkv_proj(x).split(sizes, dim=-1)
        k, v = self.k_sconv.added(k, step), self.v_sconv.added(v, step)
        q, k = self._normed(self.q_norm, q), self._normed(self.k_norm, k)
        return self.o_proj(self.attn(q, k, v, self.r_proj(x), self.rel_logits_proj.proj))

    def _normed(self, norm: nn.Module, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = norm(x.unflatten(-1, (-1, self.attn.spec.head_size)).contiguous())
        return found.flatten(1)


class ScaledMLP(GatedMLP):
    """A gated MLP times a learned number. Shapes: global_scale [1]"""

    def __init__(self, context: BuildContext, name: str, **settings: Any) -> None:
        super().__init__(context, name, **settings)
        empty = torch.empty(1, device=context.device)
        self.global_scale = nn.Parameter(empty, requires_grad=False)

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """Shapes: x, residual [T, E] -> [T, E]"""
        found = super().forward(x) * self.global_scale.to(x.dtype)
        return found if residual is None else found + residual


class InklingLayer(DecoderLayer):
    """One layer: attention and MLP, each convolved before it is added."""

    def __init__(self, context: BuildContext, name: str, config: DecoderConfig, layer: int) -> None:
        super().__init__(context, name, config, layer)
        width = int(context.model.hf_config["conv_kernel_size"])
        part = whole_part(context.model.hidden_size)
        self.attn_sconv, self.mlp_sconv = (
            AddedConv(context, n, part, width) for n in ("attn", "mlp")
        )
        attention = self.self_attn
        assert isinstance(attention, InklingAttention)
        convs = (attention.k_sconv, attention.v_sconv, self.attn_sconv, self.mlp_sconv)
        self.convs = State(f"{name}.convs", tuple(conv.part for conv in convs))

    def build_attention(
        self, context: BuildContext, name: str, config: DecoderConfig, layer: int
    ) -> nn.Module:
        """Return the layer's attention."""
        return InklingAttention(context, name, config, layer)

    def build_mlp(
        self, context: BuildContext, name: str, config: DecoderConfig, layer: int
    ) -> nn.Module:
        """Return the layer's MLP, or its experts."""
        settings = context.model.hf_config
        dense, sparse = inner_sizes(settings)
        if not is_sparse(settings, layer):
            return ScaledMLP(context, name, inner=dense, act=config.hidden_act)
        return SinkMoE(
            context,
            name,
            num_experts=int(settings["n_routed_experts"]),
            num_shared=int(settings["n_shared_experts"]),
            rule=RoutingRule(
                num_picked=int(settings["num_experts_per_tok"]),
                scoring="sigmoid",
                factor=float(settings["route_scale"]),
            ),
            inner=sparse,
            act=config.hidden_act,
        )

    def forward(self, x: torch.Tensor, ropes: Mapping[str, Rope]) -> torch.Tensor:
        """Shapes: x [T, E] -> [T, E]"""
        step = self.convs.step()
        x = x + self.attn_sconv.added(self.self_attn(self.input_layernorm(x), step), step)
        return x + self.mlp_sconv.added(self.mlp(self.post_attention_layernorm(x)), step)


class NormedModel(UnrotatedModel):
    """The decoder with a norm after its embedding."""

    def __init__(
        self,
        context: BuildContext,
        name: str,
        config: DecoderConfig,
        layer_class: type[DecoderLayer] = InklingLayer,
    ) -> None:
        super().__init__(context, name, config, layer_class)
        self.embed_norm = self.stage.first(partial(config.build_norm, context))

    def embed(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return the normed vectors of the tokens. Shapes: token_ids, positions [T] -> [T, E]"""
        normed: torch.Tensor = self.embed_norm(self.embed_tokens(token_ids))
        return normed


class InklingForCausalLM(DecoderForCausalLM):
    """Inkling's text model with its head."""

    info = Info(
        summary="Inkling, text only (biases by distance, short convolutions, experts)",
        source="https://huggingface.co/thinkingmachines/Inkling",
    )
    capabilities = DecoderForCausalLM.capabilities - {"vectors"}  # its tokens are normed
    model_class: ClassVar[type[DecoderModel]] = NormedModel
    layer_class: ClassVar[type[DecoderLayer]] = InklingLayer
    no_graphs_because = "how many keys torch reads depends on how long rows are"

    def __init__(self, options: Any, context: BuildContext) -> None:
        super().__init__(options, context)
        self.vocab_size = context.model.vocab_size
        self.num_ids = context.model.hf_config.get("unpadded_vocab_size") or self.vocab_size

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the config: heads are normed, nothing is rotated."""
        settings = model.hf_config
        kinds = layer_types(settings)
        return usual_config(
            model,
            layer_types=tuple(SLIDING if kind == WINDOWED else FULL for kind in kinds),
            window_tokens=int(settings["sliding_window_size"]),
            logit_scale=1 / float(settings["logits_mup_width_multiplier"]),
            is_tied=False,
        )

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits; ids that only pad the head are never drawn. Shapes: hidden [S, E] ->
        [S, V or more]"""
        found = super().logits(hidden)
        found[:, self.num_ids : self.vocab_size] = NEVER
        return found

    def weight_map(self) -> WeightMap:
        """Return the names; layers that draft are left out."""
        usual = super().weight_map()
        ignored = (*usual.ignored, "model.mtp.")
        return replace(usual, renames=RENAMES, ignored=ignored)
