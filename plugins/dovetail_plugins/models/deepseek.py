"""DeepSeek V2, V3 and models with their layout (R1, V3.1, Kimi K2, Moonlight): latent attention,
and experts picked within groups, plus shared ones.

V3.2 and GLM-5 attend to the `index_topk` tokens that an indexer picks. If no row can be longer than
that, it would pick all tokens, and the model computes the same as V3.
Sources: DeepSeek-AI, DeepSeek-V2, 2024, arXiv 2405.04434; DeepSeek-V3, 2024, arXiv 2412.19437.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from torch import nn

from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.attention.latent import LatentAttention, LatentConfig, latent_rope, score_scale
from dovetail.layers.attention.rotary import Rotary
from dovetail.layers.decoder import (
    FUSED,
    DecoderConfig,
    DecoderForCausalLM,
    DecoderLayer,
    DecoderModel,
    usual_config,
)
from dovetail.layers.linear import ReplicatedLinear
from dovetail_plugins.layers.attention.indexed import IndexedAttention
from dovetail_plugins.layers.attention.indexer import Indexer, IndexerConfig
from dovetail_plugins.layers.routing import RoutingRule
from dovetail_plugins.layers.stored.rounding import ActivationOptions
from dovetail_plugins.models._moe import CORRECTION_BIAS, SharedMoE
from dovetail_plugins.quantization.gguf import Gguf
from dovetail_plugins.quantization.none import Unquantized

SCORINGS = ("softmax", "sigmoid")
GROUPED = "group_limited_greedy"
CORRECTED = "noaux_tc"
METHODS = ("greedy", GROUPED, CORRECTED)
"""How experts are picked, as config.json's `topk_method` has it."""


def routing_rule(config: Mapping[str, Any], scoring: str) -> RoutingRule:
    """Return how a config picks experts; `scoring` and its method are the family's defaults.
    Raises: ConfigError for a way that is not known."""
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


class DeepseekMoE(SharedMoE):
    """Picked experts, and shared ones. Checkpoints never store the router quantized."""

    def build_gate(
        self, context: BuildContext, name: str, num_experts: int, *, bias: bool
    ) -> ReplicatedLinear:
        """Return the router's matrix."""
        plain = Unquantized(ActivationOptions(), context.model)
        return super().build_gate(replace(context, quant=plain), name, num_experts, bias=bias)


def is_sparse(config: Mapping[str, Any], layer: int) -> bool:
    """Return whether a layer has experts: as listed, if the config lists it."""
    listed = config.get("mlp_layer_types")
    if listed is not None:
        return bool(listed[layer] == "sparse")
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
    attention_class: ClassVar[type[LatentAttention]] = LatentAttention

    def build_attention(
        self, context: BuildContext, name: str, config: DecoderConfig, layer: int
    ) -> nn.Module:
        """Return the layer's attention."""
        return self.attention_class(context, name, self.latent_sizes(context))

    def latent_sizes(self, context: BuildContext) -> LatentConfig:
        """Return the sizes of the layer's attention."""
        return latent_config(context)

    def build_mlp(
        self, context: BuildContext, name: str, config: DecoderConfig, layer: int
    ) -> nn.Module:
        """Return the layer's feed-forward part."""
        settings = context.model.hf_config
        if not is_sparse(settings, layer):
            return super().build_mlp(context, name, config, layer)
        inner, rule = int(settings["moe_intermediate_size"]), routing_rule(settings, self.scoring)
        return DeepseekMoE(
            context,
            name,
            num_experts=int(settings["n_routed_experts"]),
            rule=rule,
            inner=inner,
            act=config.hidden_act,
            shared_inner=int(settings.get("n_shared_experts") or 0) * inner,
            routes_in_float32=True,
            has_correction_bias=rule.group_score == "two_best",
        )


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
    unused: tuple[str, ...] = ()
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
        """Return the usual names, q_proj not fused, without the layers after the last, which belong
        to a drafter."""
        usual = super().weight_map()
        fused = {name: FUSED[name] for name in ("gate_proj", "up_proj")}
        ignored = (*usual.ignored, *self._drafting, *self.unused)
        return replace(usual, renames=(CORRECTION_BIAS,), fused=fused, ignored=ignored)


class DeepseekV2ForCausalLM(DeepseekV3ForCausalLM):
    """DeepSeek V2 and V2-Lite with a head."""

    info = Info(
        summary="DeepSeek V2 and V2-Lite (latent attention, mixture of experts)",
        source="https://arxiv.org/abs/2405.04434",
    )
    layer_class = DeepseekV2Layer


class IndexedLayer(DeepseekLayer):
    """A layer whose indexer picks the tokens to attend to, if a row may be longer than what it
    picks."""

    is_interleaved: ClassVar[bool] = False
    """Of the pairs that the indexer turns."""
    indexed_class: ClassVar[type[IndexedAttention]] = IndexedAttention

    def build_attention(
        self, context: BuildContext, name: str, config: DecoderConfig, layer: int
    ) -> nn.Module:
        """Return the layer's attention."""
        if not uses_indexer(context):
            return super().build_attention(context, name, config, layer)
        settings, sizes = context.model.hf_config, self.latent_sizes(context)
        if sizes.query_rank is None:
            raise ConfigError(
                "the indexer's queries are made of latents, and the model has none of queries.",
                where="config.json: q_lora_rank",
                fix="set it to the published number.",
            )
        index = self.indexer_config(settings, sizes.query_rank)
        indexer = None
        if self.has_indexer(settings, layer):
            indexer = Indexer(context, self.unquantized(context), f"{name}.indexer", index)
        elif layer == context.rank.layers(context.model.num_layers).start:
            raise ConfigError(
                f"layer {layer} attends to what an earlier layer's indexer picks, and is the first "
                "one of a rank.",
                where="--pipeline-parallel-size",
                fix="let stages begin with layers that have an indexer.",
            )
        return self.indexed_class(context, name, sizes, index.spec, indexer)

    def indexer_config(self, settings: Mapping[str, Any], query_rank: int) -> IndexerConfig:
        """Return the sizes of an indexer."""
        return IndexerConfig(
            num_heads=int(settings["index_n_heads"]),
            head_size=int(settings["index_head_dim"]),
            num_picked=int(settings["index_topk"]),
            query_rank=query_rank,
            is_interleaved=self.is_interleaved,
        )

    def has_indexer(self, settings: Mapping[str, Any], layer: int) -> bool:
        """Return whether a layer has its own indexer."""
        return has_indexer(settings, layer)

    def unquantized(self, context: BuildContext) -> BuildContext:
        """Return the context of the matrix of an indexer's weights, which no checkpoint but a GGUF
        file stores quantized."""
        if isinstance(context.quant, Gguf):
            return context
        return unquantized(context)


def unquantized(context: BuildContext) -> BuildContext:
    """Return the context of matrices that are never stored quantized."""
    return replace(context, quant=Unquantized(ActivationOptions(), context.model))


def uses_indexer(context: BuildContext) -> bool:
    """Return whether rows may be longer than what an indexer picks: up to there it picks all."""
    served = context.max_tokens or context.model.max_position_tokens
    return served > int(context.model.hf_config["index_topk"])


def has_indexer(config: Mapping[str, Any], layer: int) -> bool:
    """Return whether a layer has its own indexer: as listed, every few layers, or all."""
    listed = config.get("indexer_types")
    if listed is not None:
        return bool(listed[layer] == "full")
    pattern = config.get("index_topk_pattern")
    if pattern is not None:
        return bool(pattern[layer] in ("F", "full"))
    every = max(int(config.get("index_topk_freq") or 1), 1)
    behind = layer - int(config.get("index_skip_topk_offset", 2)) + 1
    return max(behind, 0) % every == 0


class DeepseekV32ForCausalLM(DeepseekV3ForCausalLM):
    """DeepSeek V3.2 with a head. If no row can be longer than the indexer's picks there is no
    indexer: all tokens are attended to."""

    info = Info(
        summary="DeepSeek V3.2 (sparse latent attention, mixture of experts)",
        source="https://arxiv.org/abs/2512.02556",
    )
    layer_class: ClassVar[type[DecoderLayer]] = IndexedLayer

    def __init__(self, options: Any, context: BuildContext) -> None:
        if uses_indexer(context):
            self.no_graphs_because = "whether an indexer picks depends on how long rows are"
        else:
            self.unused = (".indexer.",)
        super().__init__(options, context)


class GlmMoeDsaLayer(IndexedLayer):
    """A layer whose indexer turns neighbours, as its attention does."""

    is_interleaved = True


class GlmMoeDsaForCausalLM(DeepseekV32ForCausalLM):
    """GLM-5 with a head: V3.2's layout, except that layers may share an indexer's picks."""

    info = Info(
        summary="GLM-5 (sparse latent attention, mixture of experts)",
        source="https://arxiv.org/abs/2602.15763",
    )
    layer_class = GlmMoeDsaLayer
