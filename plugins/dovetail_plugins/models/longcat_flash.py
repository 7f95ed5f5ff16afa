"""LongCat Flash: blocks of two latent attentions and two MLPs, with experts computed in parallel to
the second half; some experts return their input.

Source: Meituan, LongCat-Flash Technical Report, 2025, arXiv 2509.01322.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import nn

from dovetail.errors import ConfigError
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.attention.latent import LatentAttention, LatentConfig
from dovetail.layers.attention.rotary import Rope
from dovetail.layers.decoder import DecoderConfig, DecoderLayer, GatedMLP
from dovetail.layers.linear import ReplicatedLinear
from dovetail.layers.linear.placement import Placement
from dovetail.layers.moe.experts import Experts
from dovetail.parallel.collectives import all_reduce
from dovetail_plugins.layers.routing import RoutingRule
from dovetail_plugins.models.deepseek import DeepseekMoE, DeepseekV3ForCausalLM, latent_config

ROUTER = (
    (".mlp.router.classifier.", ".mlp.gate."),
    (".mlp.router.e_score_correction_bias", ".mlp.e_score_correction_bias"),
)
"""The router's names in checkpoints, and a mixture's names here."""
HALVES = range(2)


def scaled_latents(context: BuildContext) -> LatentConfig:
    """Return the sizes of an attention, whose latents are multiplied by what their norms lack to
    be as large as hidden states."""
    model = context.model
    sizes, config = latent_config(context), model.hf_config
    if sizes.query_rank is None:
        raise ConfigError(
            "its queries have no latents.",
            where=f"{model.path}: q_lora_rank",
            fix="use a checkpoint as published.",
        )
    scale, factor = sizes.scale, sizes.up_factor
    if config.get("mla_scale_q_lora", True):
        scale *= (model.hidden_size / sizes.query_rank) ** 0.5
    if config.get("mla_scale_kv_lora", True):
        factor *= (model.hidden_size / sizes.latent_size) ** 0.5
    return replace(sizes, scale=scale, up_factor=factor)


class PickedExperts(Experts):
    """The experts that compute: transformers stores rows of the others too, which nothing reads."""

    def place(self, leaf: str, part: str | None) -> list[Placement] | None:
        """Return the target of a tensor: none for an expert that does not compute."""
        number = leaf.partition(".")[0]
        if number.isdecimal() and int(number) >= self.num_experts:
            return []
        return super().place(leaf, part)


class ZeroMoE(DeepseekMoE):
    """Picked experts; the last `num_zero` of them return their input."""

    experts_class = PickedExperts

    def __init__(
        self, context: BuildContext, name: str, *, num_experts: int, num_zero: int, **settings: Any
    ) -> None:
        self._num_routed = num_experts + num_zero
        super().__init__(context, name, num_experts=num_experts, shared_inner=0, **settings)

    def build_gate(
        self, context: BuildContext, name: str, num_experts: int, *, bias: bool
    ) -> ReplicatedLinear:
        """Return the router's matrix, which picks among all."""
        return super().build_gate(context, name, self._num_routed, bias=bias)

    def build_correction_bias(self, context: BuildContext, num_experts: int) -> nn.Parameter:
        """Return the router's bias, of all."""
        return super().build_correction_bias(context, self._num_routed)

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """Shapes: x, residual [T, E] -> [T, E], whole on every rank"""
        weights, experts = self.picked(x)
        computes = experts < self.experts.num_experts
        identity = weights.masked_fill(computes, 0.0).sum(dim=-1, keepdim=True).to(x.dtype) * x
        rest = identity if residual is None else identity + residual
        weights = weights * computes
        nowhere = -1 if self.experts.slots is None else 0  # slots belong to experts
        experts = experts.masked_fill(~computes, nowhere)
        more = (rest,) if self.group.rank == 0 else ()
        return all_reduce(self.experts(x, weights, experts, *more), self.group)


class LongcatLayer(DecoderLayer):
    """A block: attention and an MLP twice, and experts that read the first MLP's input and are
    added at the end."""

    def __init__(self, context: BuildContext, name: str, config: DecoderConfig, layer: int) -> None:
        nn.Module.__init__(self)
        settings, model = context.model.hf_config, context.model
        self.rope = config.layer_types[layer]
        sizes = scaled_latents(context)
        inner = int(settings["intermediate_size"])
        self.self_attn = nn.ModuleList(
            LatentAttention(context, f"{name}.self_attn.{i}", sizes) for i in HALVES
        )
        self.mlps = nn.ModuleList(
            GatedMLP(context, f"{name}.mlps.{i}", inner=inner, act=config.hidden_act)
            for i in HALVES
        )
        self.input_layernorm = nn.ModuleList(config.build_norm(context) for _ in HALVES)
        self.post_attention_layernorm = nn.ModuleList(config.build_norm(context) for _ in HALVES)
        self.mlp = ZeroMoE(
            context,
            f"{name}.mlp",
            num_experts=int(settings["n_routed_experts"]),
            num_zero=_num_zero(settings, model.path),
            rule=RoutingRule(
                num_picked=int(settings["num_experts_per_tok"]),
                factor=float(settings["routed_scaling_factor"]),
            ),
            inner=int(settings["moe_intermediate_size"]),
            act=config.hidden_act,
            gate="router.classifier",
            routes_in_float32=True,
            has_correction_bias=True,
        )

    def forward(self, x: torch.Tensor, ropes: Mapping[str, Rope]) -> torch.Tensor:
        """Shapes: x [T, E] -> [T, E]"""
        rope = ropes[self.rope]
        attend, attend_again = self.self_attn.children()
        multiply, multiply_again = self.mlps.children()
        norm, norm_again = self.input_layernorm.children()
        norm_behind, norm_end = self.post_attention_layernorm.children()
        x = attend(norm(x), rope, x)
        normed = norm_behind(x)
        picked: torch.Tensor = self.mlp(normed)
        x = multiply(normed, x)
        x = attend_again(norm_again(x), rope, x)
        return picked + multiply_again(norm_end(x), x)


class LongcatDraftLayer(DecoderLayer):
    """The layer that drafts further tokens: one attention and one MLP."""

    def build_attention(
        self, context: BuildContext, name: str, config: DecoderConfig, layer: int
    ) -> nn.Module:
        """Return the layer's attention."""
        return LatentAttention(context, name, scaled_latents(context))


def _num_zero(settings: Mapping[str, Any], path: str) -> int:
    """Return how many experts return their input. Raises: ConfigError for another sort"""
    count, sort = int(settings.get("zero_expert_num") or 0), settings.get("zero_expert_type")
    if count and sort not in (None, "identity"):
        raise ConfigError(
            f"experts that do not compute are of the sort {sort!r}.",
            where=f"{path}: zero_expert_type",
            fix='"identity" is supported.',
        )
    if settings.get("router_bias"):
        raise ConfigError(
            "its router has a bias, which transformers does not add.",
            where=f"{path}: router_bias",
            fix="use a checkpoint without.",
        )
    return count


class LongcatFlashForCausalLM(DeepseekV3ForCausalLM):
    """LongCat Flash with a head."""

    info = Info(
        summary="LongCat Flash (latent attention twice a block, experts beside it)",
        source="https://arxiv.org/abs/2509.01322",
    )
    layer_class: ClassVar[type[DecoderLayer]] = LongcatLayer
    draft_layer_class: ClassVar[type[DecoderLayer] | None] = LongcatDraftLayer
    unused = ("model.mtp.",)

    def weight_map(self) -> WeightMap:
        """Return DeepSeek's names, with the router's."""
        usual = super().weight_map()
        return replace(usual, renames=(*usual.renames, *ROUTER))
