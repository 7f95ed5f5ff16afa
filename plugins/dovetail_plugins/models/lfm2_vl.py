"""LFM2-VL: images of any size, four patches to a vector, before LFM2's short convolutions.

Source: Liquid AI 2025, https://www.liquid.ai/blog/lfm2-vl-efficient-vision-language-models
"""

from __future__ import annotations

from typing import ClassVar

from dovetail.interfaces.plugin import Info
from dovetail_plugins.models._media import MediaModel


class Lfm2VlForConditionalGeneration(MediaModel):
    """LFM2-VL."""

    info = Info(
        summary="LFM2-VL",
        source="https://www.liquid.ai/blog/lfm2-vl-efficient-vision-language-models",
    )
    opened: ClassVar[tuple[str, ...]] = ("patch_embedding",)
