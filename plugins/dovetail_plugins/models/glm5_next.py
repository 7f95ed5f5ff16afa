"""GLM-5-Next (GLM-5.3-Flash): three of four layers use the delta rule with a per-channel decay, the
others attend to the pools of tokens that an indexer picks, without positions; all read and write
four streams of hidden states, and experts' gates are clamped.

Source: Z.ai, GLM-5.3-Flash, 2026, as transformers has it; Kimi Team, Kimi Linear, 2025 (arXiv
2510.26692).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import nn

from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.attention.latent import LatentConfig
from dovetail.layers.attention.rotary import Rope, Unrotated
from dovetail.layers.decoder import (
    FULL,
    DecoderConfig,
    DecoderLayer,
    GatedMLP,
    usual_config,
)
from dovetail_plugins.layers.attention.picked_pools import PoolsConfig
from dovetail_plugins.layers.attention.pooled import PooledAttention, PoolIndexer
from dovetail_plugins.layers.hyper_connection import (
    MeanNorm,
    MixingConnection,
    StreamsConfig,
    spread,
)
from dovetail_plugins.layers.mixers.delta import ChannelDeltaMixer
from dovetail_plugins.layers.mixers.hybrid import LINEAR, HybridLayer
from dovetail_plugins.model_types.glm5_next import delta_sizes, layer_types
from dovetail_plugins.models._media import MediaModel
from dovetail_plugins.models._moe import clamped, sigmoid_rule
from dovetail_plugins.models._text_part import text_part
from dovetail_plugins.models.deepseek import (
    DeepseekModel,
    DeepseekMoE,
    DeepseekV3ForCausalLM,
    has_indexer,
    unquantized,
)
from dovetail_plugins.models.kimi_linear import FORGETS, IN_DELTA

RENAMES = (
    (".hc_attn_", ".attn_hc."),
    (".hc_ffn_", ".ffn_hc."),
    ("_hc.fn", "_hc.fn.weight"),
    (".fn.weight.weight", ".fn.weight"),
    (".index_kpool_compress_gate", ".pool_gate.weight"),
    (".index_kpool_compress_ape", ".pool_bias"),
)
"""The names of released checkpoints, and here."""
NUM_DENSE = 3
"""Layers with one MLP, if config.json does not list them."""


def pools_config(context: BuildContext) -> PoolsConfig:
    """Return the sizes of the indexers. Raises: ConfigError for ones without the last tokens."""
    settings = context.model.hf_config
    if not settings["index_kpool_always_select_tail"]:
        raise ConfigError(
            "the tokens after the last whole pool are not attended to.",
            where="config.json: index_kpool_always_select_tail",
            fix="set it to true, as published models have it.",
        )
    size = int(settings["index_kpool"])
    return PoolsConfig(
        num_heads=int(settings["index_n_heads"]),
        head_size=int(settings["index_head_dim"]),
        query_rank=int(settings["q_lora_rank"]),
        pool_size=size,
        num_pools=int(settings["index_topk"]) // size,
    )


class Glm5NextLayer(HybridLayer):
    """One layer: the delta rule or pooled attention, and experts in all but the first layers."""

    mixer_name = "self_attn"

    def __init__(self, context: BuildContext, name: str, config: DecoderConfig, layer: int) -> None:
        super().__init__(context, name, config, layer)
        plain, streams = unquantized(context), StreamsConfig.of_mixing(context)
        self.attn_hc = MixingConnection(plain, f"{name}.hc_attn", streams)
        self.ffn_hc = MixingConnection(plain, f"{name}.hc_ffn", streams)
        self._spread = streams.count if layer == 0 else 0

    def build_mixer(self, context: BuildContext, name: str) -> nn.Module:
        """Return the delta rule."""
        return ChannelDeltaMixer(context, name, delta_sizes(context.model.hf_config))

    def build_attention(
        self, context: BuildContext, name: str, config: DecoderConfig, layer: int
    ) -> nn.Module:
        """Return the layer's attention."""
        settings, pools = context.model.hf_config, pools_config(context)
        plain = int(settings["qk_nope_head_dim"])
        if int(settings["qk_rope_head_dim"]):
            raise ConfigError(
                "heads of pooled attention are not rotated.",
                where="config.json: qk_rope_head_dim",
                fix="set it to 0, as published models have it.",
            )
        sizes = LatentConfig(
            query_rank=pools.query_rank,
            latent_size=int(settings["kv_lora_rank"]),
            plain_size=plain,
            rope_size=0,
            value_size=int(settings["v_head_dim"]),
            scale=plain**-0.5,
            norm_eps=float(settings["rms_norm_eps"]),
            has_bias=bool(settings["attention_bias"]),
        )
        indexer = None
        if has_indexer(settings, layer):
            indexer = PoolIndexer(context, unquantized(context), f"{name}.indexer", pools)
        elif not any(has_indexer(settings, i) for i in _before(context, config, layer)):
            raise ConfigError(
                f"layer {layer} attends to what an earlier layer's indexer picks, and is the first "
                "one of a rank.",
                where="--pipeline-parallel-size",
                fix="let stages begin with layers that have an indexer.",
            )
        return PooledAttention(context, name, sizes, pools, indexer)

    def build_mlp(
        self, context: BuildContext, name: str, config: DecoderConfig, layer: int
    ) -> nn.Module:
        """Return the layer's feed-forward part."""
        settings = context.model.hf_config
        act = clamped(config.hidden_act, float(settings["swiglu_limit"]))
        listed = settings.get("mlp_layer_types")
        if (listed[layer] == "dense") if listed is not None else layer < NUM_DENSE:
            return GatedMLP(context, name, inner=int(settings["intermediate_size"]), act=act)
        inner = int(settings["moe_intermediate_size"])
        return DeepseekMoE(
            context,
            name,
            num_experts=int(settings["n_routed_experts"]),
            rule=sigmoid_rule(settings),
            inner=inner,
            act=act,
            shared_inner=int(settings["n_shared_experts"]) * inner,
            routes_in_float32=True,
            has_correction_bias=True,
        )

    def forward(self, x: torch.Tensor, ropes: Mapping[str, Rope]) -> torch.Tensor:
        """Shapes: x [T, M E], of the first layer [T, E] -> [T, M E]"""
        if self._spread:
            x = spread(self._spread, x)
        read, written, mixture = self.attn_hc(x)
        normed = self.input_layernorm(read)
        is_mixer = self.layer_type == LINEAR
        part = self.mixer(normed) if is_mixer else self.self_attn(normed, ropes[self.rope])
        x = self.attn_hc.added(x, written, mixture, part)
        read, written, mixture = self.ffn_hc(x)
        part = self.mlp(self.post_attention_layernorm(read))
        return self.ffn_hc.added(x, written, mixture, part)


def _before(context: BuildContext, config: DecoderConfig, layer: int) -> list[int]:
    """Return the layers of this rank before one that attend."""
    first = context.rank.layers(context.model.num_layers).start
    return [i for i in range(first, layer) if config.layer_types[i] == FULL]


class Glm5NextModel(DeepseekModel):
    """A decoder of streams, whose mean is normed after the last layer."""

    def __init__(
        self,
        context: BuildContext,
        name: str,
        config: DecoderConfig,
        layer_class: type[DecoderLayer] = Glm5NextLayer,
    ) -> None:
        super().__init__(context, name, config, layer_class)
        streams = StreamsConfig.of_mixing(context)
        self.stage.width = streams.count * context.model.hidden_size
        self.norm = self.stage.last(lambda: MeanNorm(context, streams))

    def build_rotaries(self, context: BuildContext, layer_types: set[str]) -> nn.ModuleDict:
        """Return a table that turns nothing, for the layers that attend."""
        return nn.ModuleDict({FULL: Unrotated(context.device)})


class Glm5NextForCausalLM(DeepseekV3ForCausalLM):
    """The text part of GLM-5-Next with its head."""

    info = Info(
        summary="the text part of GLM-5-Next (delta rule, attention to picked pools, streams)",
        source="https://huggingface.co/zai-org/GLM-5.3-Flash",
    )
    model_class = Glm5NextModel
    layer_class = Glm5NextLayer
    no_graphs_because = "whether an indexer picks depends on how long rows are"

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the usual config."""
        return usual_config(model, layer_types=layer_types(model.hf_config))

    def weight_map(self) -> WeightMap:
        """Return the names, without the vision part."""
        usual = text_part(super().weight_map())
        kinds: list[Any] = list(enumerate(self.model.config.layer_types))
        learning = [f"model.layers.{i}.self_attn." for i, kind in kinds if kind == LINEAR]
        return replace(
            usual,
            renames=(*usual.renames, *RENAMES),
            parts=dict.fromkeys(learning, WeightMap(renames=(FORGETS,), fused=IN_DELTA)),
        )


class Glm5NextForConditionalGeneration(MediaModel):
    """GLM-5-Next as it is released: four patches to a vector before the text model."""

    info = Info(summary="GLM-5-Next", source="https://huggingface.co/zai-org/GLM-5.3-Flash")
    text_class: ClassVar[str] = "Glm5NextForCausalLM"
