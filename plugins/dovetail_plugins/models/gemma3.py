"""Gemma 3: Gemma 2 with head norms instead of soft caps, and a rotary base per layer kind.

Source: Gemma Team 2025.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from torch import nn

from dovetail.config.checkpoint.rope import rope_of
from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.attention.rotary import RopeSettings, Rotary, rope_settings, unscaled
from dovetail.layers.decoder import (
    FULL,
    SLIDING,
    DecoderAttention,
    DecoderConfig,
    DecoderForCausalLM,
    DecoderModel,
)
from dovetail.layers.decoder_head import generates
from dovetail_plugins.layers.attention.media import MediaAttention
from dovetail_plugins.layers.post_norm import SandwichLayer
from dovetail_plugins.models._media import MediaModel
from dovetail_plugins.models.gemma import gemma_config


def local_settings(context: BuildContext) -> RopeSettings:
    """Return the rotary settings of the sliding layers, in either spelling of the config."""
    config = context.model.hf_config
    if isinstance(rope_of(config).get(SLIDING), Mapping):
        return rope_settings(context, kind=SLIDING)
    base = float(config.get("rope_local_base_freq", 10000.0))
    return unscaled(rope_settings(context), theta=base)


def _window(model: ModelSpec) -> int | None:
    """Return the sliding layers' window: half of it on each side if tokens see both sides."""
    window: int | None = model.hf_config.get("sliding_window", 4096)
    return window if window is None or model.is_causal else window // 2 + 1


class Gemma3Attention(DecoderAttention):
    """Attention over text, and over images, whose tokens see each other in both directions."""

    attention_class = MediaAttention


class Gemma3Layer(SandwichLayer):
    """A layer whose image tokens see each other in both directions."""

    def build_attention(
        self, context: BuildContext, name: str, config: DecoderConfig, layer: int
    ) -> nn.Module:
        """Return the layer's attention."""
        return Gemma3Attention(context, name, config, layer)


class Gemma3Model(DecoderModel):
    """The decoder with a rotary table for the sliding layers and one for the full ones."""

    def build_rotaries(self, context: BuildContext, layer_types: set[str]) -> nn.ModuleDict:
        """Return a rotary table per layer type."""
        settings = {
            FULL: rope_settings(context, theta=1e6, kind=FULL),
            SLIDING: local_settings(context),
        }
        return nn.ModuleDict(
            {name: Rotary(settings[name], context.device) for name in sorted(layer_types)}
        )


class Gemma3ForCausalLM(DecoderForCausalLM):
    """Gemma 3 (text) with a head."""

    info = Info(summary="Gemma 3, text only", source="https://arxiv.org/abs/2503.19786")
    model_class = Gemma3Model
    layer_class = Gemma3Layer

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return Gemma 3's config. Raises: ConfigError for one that sees all tokens and writes."""
        config: dict[str, Any] = model.hf_config
        if config.get("use_bidirectional_attention") and generates(model):
            raise ConfigError(
                "a model with bidirectional attention cannot generate text.",
                where="config.json: use_bidirectional_attention",
            )
        every = int(config.get("sliding_window_pattern") or 6)
        derived = [SLIDING if (i + 1) % every else FULL for i in range(model.num_layers)]
        return gemma_config(
            model,
            layer_types=tuple(config.get("layer_types") or derived),
            window_tokens=_window(model),
            qk_norm=True,
            query_scale=float(config.get("query_pre_attn_scalar", 256)) ** -0.5,
            attn_logit_softcap=config.get("attn_logit_softcapping"),
            final_logit_softcap=config.get("final_logit_softcapping"),
        )

    def weight_map(self) -> WeightMap:
        """Return the names; a file may have the layers behind EmbeddingGemma's pooler."""
        names = super().weight_map()
        return replace(names, ignored=(*names.ignored, "dense_2.", "dense_3."))


class Gemma3ForConditionalGeneration(MediaModel):
    """Gemma 3 with images: SigLIP's patches, some to a vector, seen both ways within an image."""

    info = Info(summary="Gemma 3 with images", source="https://arxiv.org/abs/2503.19786")
    text_class: ClassVar[str] = "Gemma3ForCausalLM"
