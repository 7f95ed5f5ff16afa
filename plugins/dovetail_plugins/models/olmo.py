"""OLMo 1, 2 and 3: OLMo 1 has layer norms without weights and clipped q, k, v; OLMo 2 norms after
attention and MLP and one over all heads; OLMo 3 windows in three of four layers.

Sources: Groeneveld et al. 2024; OLMo Team 2024 (OLMo 2) and 2025 (OLMo 3).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from torch import nn

from dovetail.config.checkpoint.rope import rope_of
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import BuildContext
from dovetail.interfaces.plugin import Info
from dovetail.layers.attention.rotary import Rotary, rope_settings, unscaled
from dovetail.layers.decoder import (
    FULL,
    SLIDING,
    DecoderConfig,
    DecoderForCausalLM,
    DecoderModel,
    usual_config,
    windows_by_layer,
)
from dovetail.layers.norm import LayerNorm
from dovetail_plugins.layers.attention.head_norm import WholeRMSNorm
from dovetail_plugins.layers.post_norm import PostNormLayer

BARE_EPS = 1e-5
"""Of OLMo 1's norms; no config.json says it."""


class OlmoForCausalLM(DecoderForCausalLM):
    """OLMo 1 with a head."""

    info = Info(summary="OLMo", source="https://arxiv.org/abs/2402.00838")

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the config: norms without weights, and a bound on q, k and v."""
        norm = partial(LayerNorm, weight=False, bias=False)
        clip = model.hf_config.get("clip_qkv")
        return usual_config(model, norm=norm, norm_eps=BARE_EPS, qkv_clip=clip)


class Olmo2ForCausalLM(DecoderForCausalLM):
    """OLMo 2 with a head."""

    info = Info(summary="OLMo 2", source="https://arxiv.org/abs/2501.00656")
    layer_class = PostNormLayer

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the config: q and k are normed over all heads."""
        return usual_config(model, qk_norm=True, head_norm=WholeRMSNorm)


class Olmo3Model(DecoderModel):
    """The decoder with a rotary table for the sliding layers, which no rule scales."""

    def build_rotaries(self, context: BuildContext, layer_types: set[str]) -> nn.ModuleDict:
        """Return a rotary table per layer type."""
        theta = self.config.rope_theta
        own = rope_of(context.model.hf_config).get(SLIDING)
        near = rope_settings(context, theta=theta, kind=SLIDING)
        settings = {
            FULL: rope_settings(context, theta=theta, kind=FULL),
            SLIDING: near if isinstance(own, Mapping) else unscaled(near),
        }
        return nn.ModuleDict(
            {name: Rotary(settings[name], context.device) for name in sorted(layer_types)}
        )


class Olmo3ForCausalLM(DecoderForCausalLM):
    """OLMo 3 with a head."""

    info = Info(summary="OLMo 3", source="https://arxiv.org/abs/2512.13961")
    layer_class = PostNormLayer
    model_class = Olmo3Model

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the config: OLMo 2's, with windows."""
        windows = windows_by_layer(model, every=4)
        head_norm = WholeRMSNorm
        return usual_config(model, qk_norm=True, head_norm=head_norm, rope_theta=5e5, **windows)
