"""Gemma 3, text: Gemma 2 with head norms instead of soft caps, and a rotary base per layer kind.

Source: Gemma Team 2025.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from dovetail.errors import ConfigError
from dovetail.interfaces.model import BuildContext
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.spec import ModelSpec
from dovetail.layers.rotary import RopeSettings, Rotary, rope_settings
from dovetail_plugins.models._decoder import (
    FULL,
    MLP,
    SLIDING,
    Attention,
    DecoderForCausalLM,
    DecoderModel,
    Style,
)
from dovetail_plugins.models.gemma import gemma_style
from dovetail_plugins.models.gemma2 import Block

__all__ = ["MLP", "Attention", "Block", "Gemma3ForCausalLM", "Gemma3Model"]


def local_settings(context: BuildContext) -> RopeSettings:
    """Return the rotary settings of the sliding layers, in either spelling of the config."""
    config = context.model.hf_config
    if isinstance((config.get("rope_parameters") or {}).get(SLIDING), Mapping):
        return rope_settings(context, kind=SLIDING)
    base = float(config.get("rope_local_base_freq", 10000.0))
    shared = rope_settings(context)
    return RopeSettings(
        rule="default",
        theta=base,
        size=shared.size,
        trained_positions=shared.trained_positions,
        served_positions=shared.served_positions,
    )


class Gemma3Model(DecoderModel):
    """The decoder with a rotary table for the sliding layers and one for the full ones."""

    def build_rotaries(self, context: BuildContext, kinds: set[str]) -> nn.ModuleDict:
        """Return a rotary table per kind of layer."""
        settings = {
            FULL: rope_settings(context, theta=1e6, kind=FULL),
            SLIDING: local_settings(context),
        }
        return nn.ModuleDict({k: Rotary(settings[k], context.device) for k in sorted(kinds)})


class Gemma3ForCausalLM(DecoderForCausalLM):
    """Gemma 3 (text) with a head."""

    info = Info(summary="Gemma 3, text only", source="https://arxiv.org/abs/2503.19786")
    trunk = Gemma3Model
    block = Block

    @classmethod
    def style(cls, model: ModelSpec) -> Style:
        """Return Gemma 3's style. Raises: ConfigError for bidirectional attention."""
        config: dict[str, Any] = model.hf_config
        if config.get("use_bidirectional_attention"):
            raise ConfigError(
                "a model with bidirectional attention cannot generate text.",
                where="config.json: use_bidirectional_attention",
            )
        every = int(
            config.get("sliding_window_pattern") or config.get("_sliding_window_pattern") or 6
        )
        derived = [SLIDING if (i + 1) % every else FULL for i in range(model.num_layers)]
        return gemma_style(
            model,
            kinds=tuple(config.get("layer_types") or derived),
            window_tokens=config.get("sliding_window", 4096),
            norms_heads=True,
            query_scale=float(config.get("query_pre_attn_scalar", 256)) ** -0.5,
            score_soft_cap=config.get("attn_logit_softcapping"),
            logit_soft_cap=config.get("final_logit_softcapping"),
        )
