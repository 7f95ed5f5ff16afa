"""LLaVA 1.5 and NeXT: images through CLIP and a small MLP before a plain decoder.

Source: Liu et al. 2023, https://arxiv.org/abs/2310.03744
"""

from __future__ import annotations

from dovetail.interfaces.plugin import Info
from dovetail_plugins.models._media import MediaModel


class LlavaForConditionalGeneration(MediaModel):
    """LLaVA 1.5, and others of its layout (Pixtral among them)."""

    info = Info(summary="LLaVA 1.5, Pixtral", source="https://arxiv.org/abs/2310.03744")


class LlavaNextForConditionalGeneration(MediaModel):
    """LLaVA 1.6: an image also in tiles, at full resolution."""

    info = Info(
        summary="LLaVA NeXT (1.6)", source="https://llava-vl.github.io/blog/2024-01-30-llava-next/"
    )


class LlavaNextVideoForConditionalGeneration(MediaModel):
    """LLaVA 1.6 of videos: four patches of a frame are one vector."""

    info = Info(
        summary="LLaVA NeXT of videos",
        source="https://llava-vl.github.io/blog/2024-04-30-llava-next-video/",
    )


class LlavaOnevisionForConditionalGeneration(MediaModel):
    """LLaVA OneVision: images in tiles; in video frames, four patches become one vector."""

    info = Info(summary="LLaVA OneVision", source="https://arxiv.org/abs/2408.03326")


class VipLlavaForConditionalGeneration(MediaModel):
    """ViP-LLaVA: the outputs of several of the encoder's layers together."""

    info = Info(summary="ViP-LLaVA", source="https://arxiv.org/abs/2312.00784")


class Mistral3ForConditionalGeneration(MediaModel):
    """Mistral Small 3.1: Pixtral's encoder, four patches to a vector."""

    info = Info(
        summary="Mistral Small 3.1 and 3.2", source="https://mistral.ai/news/mistral-small-3-1"
    )


class InternVLForConditionalGeneration(MediaModel):
    """InternVL: an image in tiles, four patches to a vector."""

    info = Info(summary="InternVL 2.5 and 3", source="https://arxiv.org/abs/2404.16821")
