"""The text models of Qwen3.5: Qwen3-Next with the delta layers' inputs apart in the checkpoint, and
one MLP or experts in each layer.

Source: Qwen team, Qwen3.5, 2026; Yang et al., Gated Delta Networks, 2024 (arXiv 2412.06464).
"""

from __future__ import annotations

from typing import ClassVar

from torch import nn

from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.decoder import DecoderConfig, DecoderLayer
from dovetail_plugins.models._text_part import text_part
from dovetail_plugins.models.qwen2_moe import GatedSharedMoE
from dovetail_plugins.models.qwen3_next import Qwen3NextForCausalLM, Qwen3NextLayer


class Qwen3_5Layer(Qwen3NextLayer):
    """One layer with one MLP."""

    def build_mlp(
        self, context: BuildContext, name: str, config: DecoderConfig, layer: int
    ) -> nn.Module:
        """Return the layer's MLP."""
        return DecoderLayer.build_mlp(self, context, name, config, layer)


class Qwen3_5ForCausalLM(Qwen3NextForCausalLM):
    """Qwen3.5 with its head. Of checkpoints that take images the text part is run."""

    info = Info(
        summary="the text part of Qwen3.5: gated delta rule",
        source="https://qwen.ai/blog?id=qwen3.5",
    )
    layer_class: ClassVar[type[Qwen3NextLayer]] = Qwen3_5Layer

    def weight_map(self) -> WeightMap:
        """Return the names, without the vision part."""
        return text_part(super().weight_map())


class Qwen3_5MoeLayer(Qwen3NextLayer):
    """One layer with experts, whose weights sum to one."""

    def build_mlp(
        self, context: BuildContext, name: str, config: DecoderConfig, layer: int
    ) -> nn.Module:
        """Return the layer's router and experts."""
        return GatedSharedMoE(context, name, config, renormalizes=True)


class Qwen3_5MoeForCausalLM(Qwen3_5ForCausalLM):
    """Qwen3.5 of experts with its head."""

    info = Info(
        summary="the text part of Qwen3.5 with experts", source="https://qwen.ai/blog?id=qwen3.5"
    )
    layer_class = Qwen3_5MoeLayer
