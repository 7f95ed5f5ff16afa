"""MiMo: Qwen2 with layers that guess further tokens. Source: Xiaomi, "MiMo", 2025.

Its checkpoints hold those layers as model.mtp_layers; the drafter mtp reads them.
"""

from __future__ import annotations

from dataclasses import replace

from dovetail.interfaces.model import WeightMap
from dovetail.interfaces.plugin import Info
from dovetail_plugins.models.qwen2 import Qwen2ForCausalLM


class MiMoForCausalLM(Qwen2ForCausalLM):
    """MiMo with a head, without its drafter."""

    info = Info(summary="MiMo", source="https://arxiv.org/abs/2505.07608")

    def weight_map(self) -> WeightMap:
        """Return Qwen2's names, without the drafter's."""
        usual = super().weight_map()
        return replace(usual, ignored=(*usual.ignored, "mtp_layers."))
