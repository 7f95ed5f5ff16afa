"""Bloom: ALiBi, a norm after the embedding, layer norms and biases everywhere, tied head.

Source: BigScience 2022.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.attention.alibi import alibi_slopes
from dovetail.layers.attention.rotary import Rope
from dovetail.layers.decoder import (
    DecoderConfig,
    DecoderForCausalLM,
    DecoderLayer,
    DecoderModel,
    usual_config,
)
from dovetail.layers.norm import LayerNorm
from dovetail_plugins.models._named import FUSED_BY_GROUP, MEGATRON, prefixes

PREFIXES = prefixes(
    ("word_embeddings.", "model.embed_tokens."),
    ("word_embeddings_layernorm.", "model.embed_norm."),
    ("h.", "model.layers."),
    ("ln_f.", "model.norm."),
)


class BloomLayer(DecoderLayer):
    """A layer whose residual may be normed."""

    def __init__(self, context: BuildContext, name: str, config: DecoderConfig, layer: int) -> None:
        super().__init__(context, name, config, layer)
        facts = context.model.hf_config
        self.adds_to_normed = bool(facts.get("apply_residual_connection_post_layernorm"))

    def forward(self, x: torch.Tensor, ropes: Mapping[str, Rope]) -> torch.Tensor:
        """Shapes: x [T, E] -> [T, E]"""
        if not self.adds_to_normed:
            return super().forward(x, ropes)
        normed = self.input_layernorm(x)
        normed = self.post_attention_layernorm(self.self_attn(normed, None, normed))
        out: torch.Tensor = self.mlp(normed, normed)
        return out


class BloomModel(DecoderModel):
    """The decoder with a norm after its embedding."""

    def __init__(self, context: BuildContext, *args: Any) -> None:
        super().__init__(context, *args)
        self.embed_norm = self.stage.first(partial(self.config.build_norm, context))

    def embed(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return the input of the first layer. Shapes: token_ids, positions [T] -> [T, E]"""
        normed: torch.Tensor = self.embed_norm(self.embed_tokens(token_ids))
        return normed


class BloomForCausalLM(DecoderForCausalLM):
    """Bloom with its tied head."""

    info = Info(summary="Bloom (ALiBi)", source="https://arxiv.org/abs/2211.05100")
    capabilities = frozenset({"tensor_parallel", "pipeline_parallel"})  # its tokens are normed
    model_class = BloomModel
    layer_class = BloomLayer

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the config: biases, layer norms, no rotation."""
        return usual_config(
            model,
            norm=LayerNorm,
            norm_eps=float(model.hf_config["layer_norm_epsilon"]),
            hidden_act="gelu_pytorch_tanh",
            has_qkv_bias=True,
            has_out_bias=True,
            has_mlp_bias=True,
            is_gated=False,
            inner_size=4 * model.hidden_size,
            alibi_slopes=alibi_slopes(model.num_heads),
        )

    def weight_map(self) -> WeightMap:
        """Return the names."""
        usual = super().weight_map()
        return replace(usual, prefixes=PREFIXES, renames=MEGATRON, fused=FUSED_BY_GROUP)
