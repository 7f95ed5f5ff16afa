"""Idefics 3 and SmolVLM: SigLIP's tiles of an image, several patches to a vector, before Llama.

Source: Laurencon et al. 2024, https://arxiv.org/abs/2408.12637
"""

from __future__ import annotations

from typing import ClassVar

from dovetail.interfaces.plugin import Info
from dovetail_plugins.models._media import MediaModel


class Idefics3ForConditionalGeneration(MediaModel):
    """Idefics 3."""

    info = Info(summary="Idefics 3", source="https://arxiv.org/abs/2408.12637")
    text_names: ClassVar[tuple[str, ...]] = ("text_model",)


class SmolVLMForConditionalGeneration(Idefics3ForConditionalGeneration):
    """SmolVLM: Idefics 3 with fewer vectors."""

    info = Info(summary="SmolVLM", source="https://arxiv.org/abs/2504.05299")
