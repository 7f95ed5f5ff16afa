"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL: images of any size, positions in time, height and width.

Source: Wang et al. 2024, https://arxiv.org/abs/2409.12191; Bai et al. 2025,
https://arxiv.org/abs/2502.13923
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import torch

from dovetail.interfaces.model import WeightMap
from dovetail.interfaces.plugin import Info
from dovetail_plugins.models._media import MediaModel, joined


class Qwen2VLForConditionalGeneration(MediaModel):
    """Qwen2-VL: its text model is Qwen2 with rotations in three directions."""

    info = Info(summary="Qwen2-VL", source="https://arxiv.org/abs/2409.12191")
    text_class: ClassVar[str] = "Qwen2ForCausalLM"


class Qwen2_5_VLForConditionalGeneration(Qwen2VLForConditionalGeneration):
    """Qwen2.5-VL: its encoder attends in windows."""

    info = Info(summary="Qwen2.5-VL", source="https://arxiv.org/abs/2502.13923")


class Qwen3VLForConditionalGeneration(MediaModel):
    """Qwen3-VL: the text model's first layers get separate vectors from the encoder."""

    info = Info(summary="Qwen3-VL", source="https://github.com/QwenLM/Qwen3-VL")
    text_class: ClassVar[str] = "Qwen3ForCausalLM"

    def encode_one(self, kind: str, features: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the vectors of a content for the input and the first layers, side by side.

        Shapes: [rows, E * (1 + layers)]
        """
        output = self.outputs(kind, features)
        deep = [torch.cat(list(layer)) for layer in output.deepstack_features]
        return torch.cat([joined(output), *deep], dim=-1)


class Qwen3VLMoeForConditionalGeneration(Qwen3VLForConditionalGeneration):
    """Qwen3-VL of experts."""

    info = Info(summary="Qwen3-VL of experts", source="https://github.com/QwenLM/Qwen3-VL")
    text_class: ClassVar[str] = "Qwen3MoeForCausalLM"


class Qwen3_5ForConditionalGeneration(MediaModel):
    """Qwen3.5: Qwen3-VL's encoder without deep vectors, before layers of the gated delta rule."""

    info = Info(summary="Qwen3.5", source="https://qwen.ai/blog?id=qwen3.5")
    text_class: ClassVar[str] = "Qwen3_5ForCausalLM"

    def weight_map(self) -> WeightMap:
        """Return the names, without the layer for drafts."""
        usual = super().weight_map()
        return replace(usual, ignored=(*usual.ignored, "mtp."))


class Qwen3_5MoeForConditionalGeneration(Qwen3_5ForConditionalGeneration):
    """Qwen3.5 of experts."""

    info = Info(summary="Qwen3.5 of experts", source="https://qwen.ai/blog?id=qwen3.5")
    text_class: ClassVar[str] = "Qwen3_5MoeForCausalLM"
