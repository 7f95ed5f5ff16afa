"""dots.llm1: sigmoid-routed and shared experts, dense layers first, norms on the heads.

Source: Huo et al. 2025.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.decoder import FULL, SLIDING, DecoderConfig, DecoderForCausalLM, usual_config
from dovetail_plugins.models._moe import CORRECTION_BIAS, DenseFirstLayer


class Dots1ForCausalLM(DecoderForCausalLM):
    """dots.llm1 with a head."""

    info = Info(summary="dots.llm1 (mixture of experts)", source="https://arxiv.org/abs/2506.05767")
    layer_class = DenseFirstLayer

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the config: norms on the heads, a window in the upper layers."""
        return usual_config(model, qk_norm=True, **_windows(model))

    def weight_map(self) -> WeightMap:
        """Return the checkpoint's names."""
        return replace(super().weight_map(), renames=(CORRECTION_BIAS,))


def _windows(model: ModelSpec) -> dict[str, Any]:
    """Return the layers' types, as listed or by the number of full layers, and the window."""
    config = model.hf_config
    window, first = config.get("sliding_window"), int(config["max_window_layers"])
    derived = [SLIDING if window and i >= first else FULL for i in range(model.num_layers)]
    return {
        "layer_types": tuple(config.get("layer_types") or derived),
        "window_tokens": window or None,
    }
