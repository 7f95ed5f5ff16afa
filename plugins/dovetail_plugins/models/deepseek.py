"""DeepSeek V2, V3 and what has their layout (R1, V3.1, Kimi K2, Moonlight): latent attention, and
experts that are picked within groups beside shared ones.

V3.2 is served up to `index_topk` tokens: until then its indexer picks every token that came before,
so what it computes is V3. Its longer contexts would need the indexer.
Sources: DeepSeek-AI, DeepSeek-V2, 2024, arXiv 2405.04434; DeepSeek-V3, 2024, arXiv 2412.19437.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import msgspec
import torch
from torch import nn

from dovetail.errors import ConfigError
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.spec import ModelSpec
from dovetail.layers.decoder import (
    FUSED,
    DecoderConfig,
    DecoderForCausalLM,
    DecoderLayer,
    DecoderModel,
    GatedMLP,
    usual_config,
)
from dovetail.layers.experts import Experts
from dovetail.layers.latent_attention import (
    LatentAttention,
    LatentConfig,
    latent_rope,
    score_scale,
)
from dovetail.layers.linear import ReplicatedLinear
from dovetail.layers.placement import mark_axes
from dovetail.layers.rotary import Rotary
from dovetail.layers.rounding import ActivationOptions
from dovetail.layers.routing import RoutingRule, route
from dovetail.parallel.collectives import all_reduce
from dovetail.parallel.groups import tensor_group
from dovetail_plugins.quantization.none import Unquantized

SCORINGS = ("softmax", "sigmoid")
GROUPED = "group_limited_greedy"
CORRECTED = "noaux_tc"
METHODS = ("greedy", GROUPED, CORRECTED)
"""How experts are picked, as config.json's `topk_method` has it."""


def routing_rule(config: Mapping[str, Any], scoring: str) -> RoutingRule:
    """Return how a config picks experts; `scoring` and what picks by it are the family's own where
    the config does not say. Raises: ConfigError for a way that is not known."""
    scoring = config.get("scoring_func") or scoring
    method = config.get("topk_method") or (CORRECTED if scoring == "sigmoid" else "greedy")
    for value, known in ((scoring, SCORINGS), (method, METHODS)):
        if value not in known:
            raise ConfigError(
                f'experts are not picked by "{value}" here.',
                where="config.json: scoring_func and topk_method",
                fix=f"known are {', '.join((*SCORINGS, *METHODS))}.",
            )
    renormalizes = bool(config.get("norm_topk_prob"))
    if renormalizes and scoring == "softmax":
        raise ConfigError(
            "weights of experts that are picked by a softmax are not made to sum to one here.",
            where="config.json: norm_topk_prob",
            fix="set it to false: no published model has it, and its readers differ on the scale.",
        )
    is_grouped = method != "greedy"
    return RoutingRule(
        num_picked=int(config["num_experts_per_tok"]),
        scoring="sigmoid" if scoring == "sigmoid" else "softmax",
        renormalizes=renormalizes,
        least_sum=1e-20,
        factor=float(config.get("routed_scaling_factor") or 1.0),
        num_groups=int(config.get("n_group") or 1) if is_grouped else 1,
        num_kept_groups=int(config.get("topk_group") or 1) if is_grouped else 1,
        group_score="two_best" if method == CORRECTED else "best",
    )


class Router(ReplicatedLinear):
    """The scores of the experts, in float32 whatever the rest is in, and, where experts are picked
    by corrected scores, what corrects them. Checkpoints never store it quantized."""

    def __init__(
        self, context: BuildContext, name: str, num_experts: int, *, is_corrected: bool
    ) -> None:
        model = msgspec.structs.replace(context.model, dtype="float32")
        plain = Unquantized(ActivationOptions(), model)
        context = replace(context, quant=plain, model=model)
        super().__init__(context, name, context.model.hidden_size, num_experts)
        bias = torch.empty(num_experts, device=context.device)
        self.e_score_correction_bias = (
            mark_axes(nn.Parameter(bias, requires_grad=False), output=0, input=None)
            if is_corrected
            else None
        )


class DeepseekMoE(nn.Module):
    """Picked experts, and shared ones, which lie in one gated MLP."""

    def __init__(self, context: BuildContext, name: str, act: str, scoring: str) -> None:
        super().__init__()
        config, size = context.model.hf_config, context.model.hidden_size
        count, inner = int(config["n_routed_experts"]), int(config["moe_intermediate_size"])
        self.rule = routing_rule(config, scoring)
        is_corrected = self.rule.group_score == "two_best"
        self.group = tensor_group(context.rank)
        self.gate = Router(context, f"{name}.gate", count, is_corrected=is_corrected)
        self.experts = Experts(
            context, f"{name}.experts", num_experts=count, size=size, inner=inner, act=act
        )
        shared = int(config.get("n_shared_experts") or 0)
        self.shared_experts = (
            GatedMLP(context, f"{name}.shared_experts", inner=shared * inner, act=act)
            if shared
            else None
        )

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """Shapes: x, residual [T, E] -> [T, E], whole on every rank"""
        if self.shared_experts is not None:
            residual = self.shared_experts(x, residual)
        bias = self.gate.e_score_correction_bias
        weights, experts = route(self.gate(x.float()), self.rule, bias)
        out = all_reduce(self.experts(x, weights, experts), self.group)
        return out if residual is None else residual + out


def is_sparse(config: Mapping[str, Any], layer: int) -> bool:
    """Return whether a layer has experts."""
    step = int(config.get("moe_layer_freq") or 1)
    return layer >= int(config.get("first_k_dense_replace") or 0) and layer % step == 0


def latent_config(context: BuildContext) -> LatentConfig:
    """Return the sizes of a model's latent attention, read from its config."""
    config = context.model.hf_config
    plain, turned = int(config["qk_nope_head_dim"]), int(config["qk_rope_head_dim"])
    rank = config.get("q_lora_rank")
    return LatentConfig(
        query_rank=None if rank is None else int(rank),
        latent_size=int(config["kv_lora_rank"]),
        plain_size=plain,
        rope_size=turned,
        value_size=int(config["v_head_dim"]),
        scale=score_scale(latent_rope(context, turned), plain + turned),
        norm_eps=1e-6,
        is_interleaved=bool(config.get("rope_interleave", True)),
        has_bias=bool(config.get("attention_bias", False)),
    )


class DeepseekLayer(DecoderLayer):
    """A layer of latent attention, with experts in all layers but the first ones."""

    scoring: ClassVar[str] = "sigmoid"

    def build_attention(
        self, context: BuildContext, name: str, config: DecoderConfig, layer: int
    ) -> nn.Module:
        """Return the layer's attention."""
        return LatentAttention(context, name, latent_config(context))

    def build_mlp(
        self, context: BuildContext, name: str, config: DecoderConfig, layer: int
    ) -> nn.Module:
        """Return the layer's feed-forward part."""
        if is_sparse(context.model.hf_config, layer):
            return DeepseekMoE(context, name, config.hidden_act, self.scoring)
        return super().build_mlp(context, name, config, layer)


class DeepseekV2Layer(DeepseekLayer):
    """A layer whose experts are picked by a softmax."""

    scoring = "softmax"


class DeepseekModel(DecoderModel):
    """A decoder that turns a part of each head."""

    def build_rotaries(self, context: BuildContext, layer_types: set[str]) -> nn.ModuleDict:
        """Return one rotary table for all layers, of the part that is turned."""
        size = int(context.model.hf_config["qk_rope_head_dim"])
        rotary = Rotary(latent_rope(context, size), context.device)
        return nn.ModuleDict({layer_type: rotary for layer_type in sorted(layer_types)})


class DeepseekV3ForCausalLM(DecoderForCausalLM):
    """DeepSeek V3, R1, V3.1, Kimi K2 and Moonlight with a head."""

    info = Info(
        summary="DeepSeek V3, R1 and V3.1, Kimi K2 (latent attention, mixture of experts)",
        source="https://arxiv.org/abs/2412.19437",
    )
    model_class = DeepseekModel
    layer_class: ClassVar[type[DecoderLayer]] = DeepseekLayer
    unused: ClassVar[tuple[str, ...]] = ()
    """Parts of names of weights that are not needed."""

    def __init__(self, options: Any, context: BuildContext) -> None:
        config = context.model.hf_config
        first, more = context.model.num_layers, int(config.get("num_nextn_predict_layers") or 0)
        self._drafting = tuple(f"model.layers.{first + i}." for i in range(more))
        super().__init__(options, context)

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the usual config."""
        return usual_config(model)

    def weight_map(self) -> WeightMap:
        """Return the usual names, q_proj not fused, without the layers behind the last, which are a
        drafter's."""
        usual = super().weight_map()
        fused = {name: FUSED[name] for name in ("gate_proj", "up_proj")}
        ignored = (*usual.ignored, *self._drafting, *self.unused)
        return replace(usual, fused=fused, ignored=ignored)


class DeepseekV2ForCausalLM(DeepseekV3ForCausalLM):
    """DeepSeek V2 and V2-Lite with a head."""

    info = Info(
        summary="DeepSeek V2 and V2-Lite (latent attention, mixture of experts)",
        source="https://arxiv.org/abs/2405.04434",
    )
    layer_class = DeepseekV2Layer


class DeepseekV32ForCausalLM(DeepseekV3ForCausalLM):
    """DeepSeek V3.2 with a head, as far as its indexer picks every token."""

    info = Info(
        summary="DeepSeek V3.2 up to index_topk tokens, where its sparse attention is dense",
        source="https://arxiv.org/abs/2512.02556",
    )
    unused = (".indexer.",)

    def __init__(self, options: Any, context: BuildContext) -> None:
        most = int(context.model.hf_config["index_topk"])
        served = context.max_tokens or context.model.max_position_tokens
        if served > most:
            raise ConfigError(
                f"DeepSeek V3.2 attends to {most} tokens that its indexer picks, which is not "
                f"supported: contexts of {served} tokens would differ.",
                where="--max-model-len",
                fix=f"lower it to {most}, where all tokens are picked.",
            )
        super().__init__(options, context)
