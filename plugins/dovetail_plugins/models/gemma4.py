"""Gemma 4: full-attention layers have another head size, rotate only a share of it, and may use one
matrix for keys and values; per-layer inputs; last layers that read the keys and values of earlier
ones, or experts in parallel to each MLP. Images have any shape, nine patches to a vector; sounds go
through a conformer.

Source: Gemma Team, Gemma 4, 2026.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from msgspec import structs
from torch import nn

from dovetail.config.checkpoint.rope import rope_of
from dovetail.errors import ConfigError
from dovetail.interfaces.data.media_settings import AUDIO
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import BuildContext
from dovetail.interfaces.plugin import Info
from dovetail.layers.attention.rotary import Rope, Rotary, rope_settings
from dovetail.layers.decoder import FULL, SLIDING, DecoderConfig, DecoderLayer, GatedMLP
from dovetail.layers.dtypes import dtype_of
from dovetail.layers.linear import ReplicatedLinear
from dovetail.layers.moe.experts import Experts
from dovetail.layers.norm import BareRMSNorm
from dovetail.layers.opaque import is_traced
from dovetail.parallel.collectives import all_reduce
from dovetail.parallel.groups import tensor_group
from dovetail_plugins.layers.attention.media import MediaAttention
from dovetail_plugins.layers.native_routing import native_routing
from dovetail_plugins.layers.routing import RoutingRule, route
from dovetail_plugins.model_types.gemma4 import ROPE, cache, heads, keys_are_values, layer_types
from dovetail_plugins.models._layer_inputs import INPUT_PARTS, LayerInput
from dovetail_plugins.models._media import TEXT_PARTS, MediaModel, joined
from dovetail_plugins.models._shared_kv import (
    Heads,
    SharingAttention,
    SharingForCausalLM,
    SharingLayer,
    SharingModel,
    sharing_config,
)


def _vector(context: BuildContext, size: int) -> nn.Parameter:
    dtype = dtype_of(context.model.dtype)
    return nn.Parameter(torch.empty(size, dtype=dtype, device=context.device), requires_grad=False)


class Gemma4Router(nn.Module):
    """Picks experts by a scaled norm; an expert has a number that multiplies its weight."""

    def __init__(self, context: BuildContext, name: str, config: DecoderConfig) -> None:
        super().__init__()
        settings, size = context.model.hf_config, context.model.hidden_size
        count = int(settings["num_experts"])
        self.rule = RoutingRule(num_picked=int(settings["top_k_experts"]), renormalizes=True)
        self.norm = BareRMSNorm(context, size, eps=config.norm_eps)
        self.proj = ReplicatedLinear(context, f"{name}.proj", size, count)
        self.scale, self.per_expert_scale = _vector(context, size), _vector(context, count)
        self._factor, self._native = size**-0.5, native_routing(context, self.rule)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (weights, expert ids) of each token's experts. Shapes: [T, E] -> 2 x [T, A]"""
        scores = self.proj(self.norm(x) * self.scale * self._factor)
        if self._native is not None and not is_traced():
            weights, experts = self._native(scores)
        else:
            weights, experts = route(scores, self.rule)
        return weights * self.per_expert_scale[experts].float(), experts


class SeeingAttention(SharingAttention):
    """Attention over text, and over images, whose tokens see each other in both directions."""

    attention_class = MediaAttention


class Gemma4Layer(SharingLayer):
    """One layer: attention, an MLP with or without parallel experts, and its own input."""

    def __init__(self, context: BuildContext, name: str, config: DecoderConfig, layer: int) -> None:
        super().__init__(context, name, config, layer)
        settings, size = context.model.hf_config, context.model.hidden_size
        self.layer_scalar = _vector(context, 1)
        has_input = bool(settings["hidden_size_per_layer_input"])
        self.layer_input = LayerInput(context, name, config) if has_input else None
        self.group = tensor_group(context.rank)
        self.has_experts = bool(settings.get("enable_moe_block"))
        if not self.has_experts:
            return
        self.router = Gemma4Router(context, f"{name}.router", config)
        self.experts = Experts(
            context,
            f"{name}.experts",
            num_experts=int(settings["num_experts"]),
            size=size,
            inner=int(settings["moe_intermediate_size"]),
            act=config.hidden_act,
        )
        self.post_feedforward_layernorm_1 = config.build_norm(context)
        self.pre_feedforward_layernorm_2 = config.build_norm(context)
        self.post_feedforward_layernorm_2 = config.build_norm(context)

    def build_attention(
        self, context: BuildContext, name: str, config: DecoderConfig, layer: int
    ) -> nn.Module:
        """Return attention over the keys and values of this layer or of an earlier one."""
        settings = context.model.hf_config
        count, size = heads(settings, layer)
        own = Heads(
            num_kv_heads=count,
            head_size=size,
            source=cache(settings).sources[layer],
            keys_are_values=keys_are_values(settings) and config.layer_types[layer] == FULL,
        )
        both_ways = settings.get("use_bidirectional_attention") == "vision"
        sees = both_ways and config.layer_types[layer] == SLIDING
        return (SeeingAttention if sees else SharingAttention)(context, name, config, layer, own)

    def build_mlp(
        self, context: BuildContext, name: str, config: DecoderConfig, layer: int
    ) -> nn.Module:
        """Return the layer's MLP, twice as wide if config.json gives that to layers without their
        own cache."""
        settings = context.model.hf_config
        is_wide = settings.get("use_double_wide_mlp") and cache(settings).sources[layer] != layer
        inner = int(settings["intermediate_size"]) * (2 if is_wide else 1)
        return GatedMLP(context, name, inner=inner, act=config.hidden_act)

    def forward(
        self, x: torch.Tensor, ropes: Mapping[str, Rope], own: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Shapes: x [T, E], own [T, P] -> [T, E]"""
        attended = self.self_attn(self.input_layernorm(x), ropes.get(self.rope))
        x = self.post_attention_layernorm(attended, residual=x)
        fed = self.mlp(self.pre_feedforward_layernorm(x))
        if self.has_experts:
            fed = self.post_feedforward_layernorm_1(fed, residual=self._picked(x))
        x = self.post_feedforward_layernorm(fed, residual=x)
        if self.layer_input is not None and own is not None:
            x = self.layer_input(x, own, residual=x)
        return x * self.layer_scalar

    def _picked(self, x: torch.Tensor) -> torch.Tensor:
        """Return the picked experts' contribution to the MLP. Shapes: x [T, E] -> [T, E]"""
        weights, experts = self.router(x)
        read = self.pre_feedforward_layernorm_2(x)
        output = all_reduce(self.experts(read, weights, experts), self.group)
        added: torch.Tensor = self.post_feedforward_layernorm_2(output)
        return added


class Gemma4Model(SharingModel):
    """The decoder with rotary tables for two sizes of heads."""

    def __init__(
        self,
        context: BuildContext,
        name: str,
        config: DecoderConfig,
        layer_class: type[DecoderLayer] = Gemma4Layer,
    ) -> None:
        settings = context.model.hf_config
        super().__init__(context, name, config, layer_class, cache(settings).sources)

    def build_rotaries(self, context: BuildContext, layer_types: set[str]) -> nn.ModuleDict:
        """Return a rotary table per layer type."""
        model, types = context.model, self.config.layer_types
        config = {**model.hf_config, "rope_parameters": rope_of(model.hf_config) or ROPE}
        context = replace(context, model=structs.replace(model, hf_config=config))
        sizes = {kind: heads(config, types.index(kind))[1] for kind in sorted(layer_types)}
        settings = {
            kind: rope_settings(context, kind=kind, head_size=size) for kind, size in sizes.items()
        }
        return nn.ModuleDict({kind: Rotary(one, context.device) for kind, one in settings.items()})


class Gemma4ForCausalLM(SharingForCausalLM):
    """Gemma 4's text model with a head. Of checkpoints that see and hear the text part is run."""

    info = Info(summary="Gemma 4, text only", source="https://ai.google.dev/gemma/docs/core")
    model_class = Gemma4Model
    layer_class = Gemma4Layer
    senses = (
        "vision_tower.",
        "audio_tower.",
        "embed_vision.",
        "embed_audio.",
        "vision_embedder.",
    )

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return Gemma 4's config: norms store plain weights, queries are not scaled.

        Raises: ConfigError for one whose text tokens see all others, and for layers without keys
        of their own in which images see both ways.
        """
        config: dict[str, Any] = model.hf_config
        sees = config.get("use_bidirectional_attention")
        if sees == "all":
            raise ConfigError(
                "a model whose tokens all see each other is not supported.",
                where="config.json: use_bidirectional_attention",
            )
        if sees == "vision" and config.get("num_kv_shared_layers"):
            raise ConfigError(
                "images that are seen both ways need keys and values in every layer.",
                where="config.json: num_kv_shared_layers",
            )
        return sharing_config(model, layer_types(config))


class Gemma4ForConditionalGeneration(MediaModel):
    """Gemma 4 with images, and with sound if the checkpoint has its encoder."""

    info = Info(
        summary="Gemma 4 with images and sound", source="https://ai.google.dev/gemma/docs/core"
    )
    capabilities = MediaModel.capabilities | {"leaves_out_tokens"}
    text_class: ClassVar[str] = "Gemma4ForCausalLM"
    text_parts: ClassVar[tuple[str, ...]] = (*TEXT_PARTS, *INPUT_PARTS)
    opened: ClassVar[tuple[str, ...]] = ("patch_embedder.input_proj",)

    def encode_one(self, kind: str, features: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the vectors of a content, of a sound without padding. Shapes: [rows, E]"""
        output = self.outputs(kind, features)
        if kind == AUDIO:
            vectors: torch.Tensor = output.pooler_output[output.attention_mask]
            return vectors
        return joined(output)

    def _takes_media(self, context: BuildContext) -> bool:
        """Return whether this rank's stage makes layers' inputs, which media are part of."""
        has_inputs = bool(context.model.hf_config["hidden_size_per_layer_input"])
        return has_inputs or super()._takes_media(context)
