"""Nemotron-H Omni: RADIO's images and Parakeet's sound before Nemotron-H.

Source: NVIDIA, Nemotron 3 Nano Omni, 2026, as transformers has it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail_plugins.models._hf_conversion import conversion_of
from dovetail_plugins.models._media import MediaModel

PARTS = (
    ("language_model.", "text."),
    ("mlp1.0.", "encoder.multi_modal_projector.layer_norm."),
    ("mlp1.1.", "encoder.multi_modal_projector.linear_1."),
    ("mlp1.3.", "encoder.multi_modal_projector.linear_2."),
    ("vision_projector.", "encoder."),
    ("sound_encoder.encoder.", "encoder.audio_tower."),
    ("sound_projection.norm.", "encoder.embed_audio.layer_norm."),
    ("sound_projection.linear1.", "encoder.embed_audio.linear_1."),
    ("sound_projection.linear2.", "encoder.embed_audio.linear_2."),
)
"""The parts of released checkpoints, and of this model."""
RADIO = "encoder.vision_model."
RADIO_RENAMES = (
    ("radio_model.model.", ""),
    ("patch_generator.video_embedder.", "embeddings.video_patch_projection."),
    ("patch_generator.embedder.", "embeddings.patch_projection."),
    ("patch_generator.pos_embed", "embeddings.position_embedding"),
    ("patch_generator.cls_token.token", "embeddings.cls_register_token"),
    ("blocks.", "encoder.layer."),
    ("attn.proj.", "attention.o_proj."),
)
"""The names within RADIO in released checkpoints, and in transformers."""
UNUSED = ("input_conditioner.", "summary_idxs", "audio_tower.feature_extractor.", "text.mtp.")


class NemotronHOmni(MediaModel):
    """Nemotron-H Omni: four patches to a vector; sound may be missing from a checkpoint."""

    info = Info(
        summary="Nemotron-H Omni",
        source="https://huggingface.co/nvidia/Nemotron-3-Nano-Omni-30B-A3B-Reasoning-BF16",
    )
    text_class: ClassVar[str] = "NemotronHForCausalLM"

    def __init__(self, options: Any, context: BuildContext) -> None:
        super().__init__(options, context)
        self._conversion = conversion_of(self.encoder, self.encoder) if self.takes_media else None

    def weight_map(self) -> WeightMap:
        """Return the released names; RADIO's queries, keys and values are stored joined."""
        usual = super().weight_map()
        return replace(
            usual,
            prefixes=(*PARTS, *usual.prefixes),
            ignored=(*usual.ignored, *UNUSED),
            parts={**usual.parts, RADIO: WeightMap(renames=RADIO_RENAMES)},
            conversion=self._conversion,
        )
