"""Kimi Linear: three of four layers use the delta rule with a per-channel decay, the others latent
attention without positions; DeepSeek-V3's experts follow both.

Source: Kimi Team, Kimi Linear: an expressive, efficient attention architecture, 2025 (arXiv
2510.26692).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.attention.latent import LatentAttention, LatentConfig
from dovetail.layers.attention.rotary import Unrotated
from dovetail.layers.decoder import (
    FULL,
    FUSED,
    DecoderConfig,
    DecoderForCausalLM,
    DecoderModel,
    usual_config,
)
from dovetail_plugins.layers.mixers.delta import ChannelDeltaMixer
from dovetail_plugins.layers.mixers.hybrid import LINEAR, HybridLayer
from dovetail_plugins.model_types.kimi_linear import delta_sizes, layer_types
from dovetail_plugins.models._moe import CORRECTION_BIAS, lettered
from dovetail_plugins.models.deepseek import DeepseekLayer

LATENT_EPS = 1e-6
"""Of the norms of latents; no config.json says it."""
IN_DELTA: dict[str, tuple[str, str]] = {
    **{f"{part}_proj": ("qkv_proj", part) for part in "qkv"},
    **{f"{part}_conv1d": ("conv1d", part) for part in "qkv"},
    "f_a_proj": ("in_proj_fgb", "f"),
    "g_a_proj": ("in_proj_fgb", "g"),
    "b_proj": ("in_proj_fgb", "b"),
}
"""Names within the layers of the delta rule."""
FORGETS = ("forget_gate.", "")
"""transformers' prefix of some of them."""


def latent_config(config: Mapping[str, Any]) -> LatentConfig:
    """Return the sizes of the attention layers, whose heads are not rotated."""
    plain, shared = int(config["qk_nope_head_dim"]), int(config["qk_rope_head_dim"])
    rank = config.get("q_lora_rank")
    return LatentConfig(
        query_rank=None if rank is None else int(rank),
        latent_size=int(config["kv_lora_rank"]),
        plain_size=plain,
        rope_size=shared,
        value_size=int(config["v_head_dim"]),
        scale=(plain + shared) ** -0.5,
        norm_eps=LATENT_EPS,
        has_bias=bool(config.get("attention_bias", False)),
    )


class KimiLinearLayer(HybridLayer, DeepseekLayer):
    """One layer: the delta rule or latent attention, and experts in all but the first layers."""

    mixer_name = "self_attn"

    def build_mixer(self, context: BuildContext, name: str) -> nn.Module:
        """Return the delta rule."""
        return ChannelDeltaMixer(context, name, delta_sizes(context.model.hf_config))

    def build_attention(
        self, context: BuildContext, name: str, config: DecoderConfig, layer: int
    ) -> nn.Module:
        """Return the layer's attention."""
        return LatentAttention(context, name, latent_config(context.model.hf_config))


class KimiLinearModel(DecoderModel):
    """The layers; none is rotated."""

    def build_rotaries(self, context: BuildContext, layer_types: set[str]) -> nn.ModuleDict:
        """Return a table that turns nothing, for the layers that attend."""
        return nn.ModuleDict({FULL: Unrotated(context.device)})


class KimiLinearForCausalLM(DecoderForCausalLM):
    """Kimi Linear with a head."""

    info = Info(
        summary="Kimi Linear: delta rule by channel, latent attention, mixture of experts",
        source="https://arxiv.org/abs/2510.26692",
    )
    model_class = KimiLinearModel
    layer_class = KimiLinearLayer

    def __init__(self, options: Any, context: BuildContext) -> None:
        kinds = layer_types(context.model.hf_config)
        self._learning = [i for i, kind in enumerate(kinds) if kind == LINEAR]
        super().__init__(options, context)

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the usual config."""
        return usual_config(model, layer_types=layer_types(model.hf_config))

    def weight_map(self) -> WeightMap:
        """Return the names: experts by Mixtral's letters, q, k and v fused in delta layers."""
        usual = lettered(super().weight_map())
        gates = {name: to for name, to in usual.fused.items() if name not in FUSED}
        gates |= {name: FUSED[name] for name in ("gate_proj", "up_proj")}
        inner = WeightMap(renames=(FORGETS,), fused=IN_DELTA)
        return replace(
            usual,
            renames=(*usual.renames, CORRECTION_BIAS),
            fused=gates,
            parts={f"model.layers.{i}.self_attn.": inner for i in self._learning},
        )
