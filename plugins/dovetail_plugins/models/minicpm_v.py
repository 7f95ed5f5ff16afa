"""MiniCPM-V 4.6 and MiniCPM-OCR: images before Qwen3.5. MiniCPM-V up to 2.6 is code of its
checkpoints.

Source: Yao et al. 2024, https://arxiv.org/abs/2408.01800; https://github.com/OpenBMB/MiniCPM-V
"""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.interfaces.data.media import PartPlace
from dovetail.interfaces.plugin import Info
from dovetail_plugins.models._media import MediaModel


class MiniCPMV4_6ForConditionalGeneration(MediaModel):
    """MiniCPM-V 4.6: sixteen patches to a vector."""

    info = Info(summary="MiniCPM-V 4.6", source="https://github.com/OpenBMB/MiniCPM-V")

    def prompt_positions(self, num_tokens: int, parts: Sequence[PartPlace]) -> None:
        """Return None: images have plain positions, although Qwen3.5 has three for each."""


class MiniCPMOcrForConditionalGeneration(MiniCPMV4_6ForConditionalGeneration):
    """MiniCPM-OCR: four patches to a vector, so that small print stays readable."""

    info = Info(summary="MiniCPM-OCR", source="https://huggingface.co/openbmb/MiniCPM-OCR-1.0")
