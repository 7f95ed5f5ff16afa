"""Models that hear: Whisper's encoder and a projector before a plain decoder.

Source: Chu et al. 2024, https://arxiv.org/abs/2407.10759; Liu et al. 2025,
https://arxiv.org/abs/2507.13264
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from dovetail.interfaces.plugin import Info
from dovetail_plugins.models._media import MediaModel


class Qwen2AudioForConditionalGeneration(MediaModel):
    """Qwen2-Audio: sounds of up to 30 seconds."""

    info = Info(summary="Qwen2-Audio", source="https://arxiv.org/abs/2407.10759")

    def encode_one(self, kind: str, features: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the vectors of a sound: its frames see each other, none the silence that fills up
        the 30 seconds. Shapes: [rows, E]"""
        encoder: Any = self.encoder
        lengths = features["feature_attention_mask"].sum(-1)
        frames, rows = encoder.audio_tower._get_feat_extract_output_lengths(lengths)
        max_frames = (features["input_features"].shape[-1] - 2) // 2 + 1
        is_seen = torch.arange(max_frames, device=lengths.device) < frames
        mask = is_seen.expand(1, 1, max_frames, max_frames)
        output = encoder.audio_tower(
            features["input_features"].to(self._dtype), attention_mask=mask, return_dict=True
        )
        vectors: torch.Tensor = encoder.multi_modal_projector(output.last_hidden_state)[0]
        return vectors[: int(rows)]


class VoxtralForConditionalGeneration(MediaModel):
    """Voxtral: sounds in windows of 30 s, four frames of the encoder to a vector, before Llama."""

    info = Info(summary="Voxtral", source="https://arxiv.org/abs/2507.13264")
