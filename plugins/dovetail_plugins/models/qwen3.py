"""Qwen3: Llama with a norm on every query and key head. Source: Yang et al. 2025."""

from __future__ import annotations

from dataclasses import replace

from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.decoder import DecoderConfig, DecoderForCausalLM, usual_config
from dovetail_plugins.models._qwen import qwen_window_layers


class Qwen3ForCausalLM(DecoderForCausalLM):
    """Qwen3 with a head."""

    info = Info(summary="Qwen3", source="https://arxiv.org/abs/2505.09388")

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the config: norms on the heads."""
        return usual_config(model, qk_norm=True, **qwen_window_layers(model))

    def weight_map(self) -> WeightMap:
        """Return the usual names, without the layer that drafts further tokens."""
        usual = super().weight_map()
        return replace(usual, ignored=(*usual.ignored, "mtp."))
