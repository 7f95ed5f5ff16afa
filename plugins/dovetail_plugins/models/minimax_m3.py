"""MiniMax M3: grouped attention to picked blocks of tokens, DeepSeek-V3's mixture with gpt-oss's
clamped gates, and norms that store their weight minus one.

The first layers attend to all tokens and have one MLP.
Source: MiniMax, MiniMax-M3, 2026, as transformers has it.
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
from dovetail.interfaces.quantization import Gate
from dovetail.layers.activation import clamped_gate
from dovetail.layers.attention.rotary import Rope
from dovetail.layers.decoder import (
    DecoderAttention,
    DecoderConfig,
    DecoderForCausalLM,
    DecoderLayer,
    GatedMLP,
    usual_config,
)
from dovetail.layers.norm import GemmaRMSNorm
from dovetail_plugins.layers.attention.block_sparse import BlockIndexer, BlocksConfig, HeadsApart
from dovetail_plugins.layers.routing import RoutingRule
from dovetail_plugins.model_types.minimax_m3 import index_settings, is_sparse
from dovetail_plugins.models._media import MediaModel
from dovetail_plugins.models._moe import CORRECTION_BIAS, SharedMoE, lettered, num_experts

RENAMES = (
    *(
        (f".self_attn.index_{part}.", f".self_attn.indexer.{part}.")
        for part in ("q_proj", "k_proj", "q_norm", "k_norm")
    ),
    (".self_attn.indexer.", ".self_attn.attn.indexer."),
    (".attn.indexer.q_proj.", ".attn.indexer.wq."),
    (".attn.indexer.k_proj.", ".attn.indexer.wk."),
    CORRECTION_BIAS,
)
"""The names of an indexer's weights in released checkpoints, in transformers, and here."""
ENCODER = (
    ("vision_tower.vision_model.embeddings.patch_embedding.", "vision_tower.embeddings.proj."),
    ("vision_tower.vision_model.encoder.layers.", "vision_tower.layers."),
    ("vision_tower.vision_model.pre_layrnorm.", "vision_tower.pre_layrnorm."),
    ("patch_merge_mlp.linear_", "multi_modal_projector.merge_linear_"),
)
"""How names of the encoder's weights begin in released checkpoints, and here."""


class MiniMaxM3Attention(DecoderAttention):
    """Attention with a cache for each kv head, and in most layers an indexer."""

    attention_class = HeadsApart  # type: ignore[assignment]  # it has several attention layers
    attn: HeadsApart  # type: ignore[assignment]

    def __init__(self, context: BuildContext, name: str, config: DecoderConfig, layer: int) -> None:
        super().__init__(context, name, config, layer)
        if picks_blocks(context, layer):
            blocks = blocks_config(context)
            self.attn.indexer = BlockIndexer(context, f"{name}.indexer", blocks, config)

    def forward(
        self, x: torch.Tensor, rope: Rope | None, residual: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Shapes: x, residual [T, E] -> [T, E]"""
        q, k, v = self.rotate(self.qkv_proj(x), rope)
        if self.attn.indexer is None or rope is None:
            return self.o_proj(self.attn(q, k, v), residual)
        return self.o_proj(self.attn(q, k, v, *self.attn.indexer(x, rope)), residual)


def blocks_config(context: BuildContext) -> BlocksConfig:
    """Return the sizes of the indexers. Raises: ConfigError for ones that do not fit the heads."""
    found, model = index_settings(context.model.hf_config), context.model
    if found["index_n_heads"] != model.num_kv_heads:
        raise ConfigError(
            f"an indexer of {found['index_n_heads']} heads cannot pick for {model.num_kv_heads} kv "
            "heads: one is needed for each.",
            where="config.json: index_n_heads",
            fix="set it to num_key_value_heads.",
        )
    if not 1 <= found["index_local_blocks"] <= found["index_topk_blocks"]:
        raise ConfigError(
            "the block of a query's own token is not always among those it picks.",
            where="config.json: index_local_blocks",
            fix="use a number from 1 to index_topk_blocks.",
        )
    return BlocksConfig(
        head_size=found["index_head_dim"],
        block_size=found["index_block_size"],
        num_picked=found["index_topk_blocks"],
        num_local=found["index_local_blocks"],
    )


def picks_blocks(context: BuildContext, layer: int) -> bool:
    """Return whether a layer picks blocks, and rows may have more than it picks."""
    settings = context.model.hf_config
    return is_sparse(settings, layer) and _may_pick(context)


def _may_pick(context: BuildContext) -> bool:
    blocks = blocks_config(context)
    served = context.max_tokens or context.model.max_position_tokens
    return served > blocks.block_size * blocks.num_picked


class MiniMaxM3Layer(DecoderLayer):
    """A layer of experts, or of one MLP."""

    def build_attention(
        self, context: BuildContext, name: str, config: DecoderConfig, layer: int
    ) -> nn.Module:
        """Return the layer's attention."""
        return MiniMaxM3Attention(context, name, config, layer)

    def build_mlp(
        self, context: BuildContext, name: str, config: DecoderConfig, layer: int
    ) -> nn.Module:
        """Return the layer's feed-forward part."""
        settings, act = context.model.hf_config, _gate(context.model)
        if not _has_experts(settings, layer):
            inner = int(settings["dense_intermediate_size"])
            return GatedMLP(context, name, inner=inner, act=act)
        return SharedMoE(
            context,
            name.replace(".mlp", ".block_sparse_moe"),
            num_experts=num_experts(settings),
            rule=RoutingRule(
                num_picked=int(settings["num_experts_per_tok"]),
                scoring="sigmoid",
                renormalizes=True,
                factor=float(settings["routed_scaling_factor"]),
            ),
            inner=int(settings["intermediate_size"]),
            act=act,
            shared_inner=int(settings["shared_intermediate_size"]),
            routes_in_float32=True,
            has_correction_bias=True,
        )


def _gate(model: ModelSpec) -> Gate:
    settings = model.hf_config
    return clamped_gate(float(settings["swiglu_alpha"]), float(settings["swiglu_limit"]))


def _has_experts(settings: Mapping[str, Any], layer: int) -> bool:
    """Return whether a layer has experts: as listed, by name or by number, or all."""
    listed = settings.get("mlp_layer_types")
    if listed is not None:
        return bool(listed[layer] == "sparse")
    numbers = settings.get("moe_layer_freq")
    return numbers is None or bool(numbers[layer])


class MiniMaxM3VLForCausalLM(DecoderForCausalLM):
    """MiniMax M3's text model with a head. Its checkpoints hold an encoder of images, too."""

    info = Info(
        summary="MiniMax M3, text only (attention to picked blocks, mixture of experts)",
        source="https://huggingface.co/MiniMaxAI/MiniMax-M3",
    )
    layer_class: ClassVar[type[DecoderLayer]] = MiniMaxM3Layer

    def __init__(self, options: Any, context: BuildContext) -> None:
        settings, numbers = context.model.hf_config, range(context.model.num_layers)
        self.unused: tuple[str, ...] = (".mtp.", "mtp.")
        if not any(is_sparse(settings, layer) for layer in numbers):
            pass
        elif _may_pick(context):
            self.no_graphs_because = "whether blocks are picked depends on how long rows are"
        else:
            self.unused = (*self.unused, ".indexer.", ".index_")
        super().__init__(options, context)

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the config: norms of heads, and Gemma's norms."""
        return usual_config(
            model,
            has_qkv_bias=False,
            has_out_bias=False,
            qk_norm=True,
            norm=GemmaRMSNorm,
            rope_theta=5e6,
        )

    def weight_map(self) -> WeightMap:
        """Return the names: the experts' are Mixtral's."""
        usual = lettered(super().weight_map())
        return replace(
            usual,
            renames=(*usual.renames, *RENAMES),
            ignored=(*usual.ignored, *self.unused),
        )


class MiniMaxM3SparseForConditionalGeneration(MediaModel):
    """MiniMax M3 as it is released: an encoder of images before the text model."""

    info = Info(summary="MiniMax M3", source="https://huggingface.co/MiniMaxAI/MiniMax-M3")
    text_class: ClassVar[str] = "MiniMaxM3VLForCausalLM"

    def weight_map(self) -> WeightMap:
        """Return the names, also the released ones of the encoder."""
        usual = super().weight_map()
        own = [(old, f"encoder.{new}") for old, new in ENCODER]
        return replace(usual, prefixes=(*own, *usual.prefixes), ignored=(*usual.ignored, "mtp."))
