"""Phi-4-multimodal: images and sound before Phi-3's layers.

Its adapters for images and for sound are separate checkpoints (`vision-lora`, `speech-lora`), which
rows with such media use: --default-mm-loras names them.
Source: Microsoft 2025, https://arxiv.org/abs/2503.01743
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from dovetail.config.checkpoint.media_tokens import token_of
from dovetail.interfaces.data.media_settings import AUDIO, IMAGE
from dovetail.interfaces.model import BuildContext
from dovetail.interfaces.plugin import Info
from dovetail_plugins.models._media import MediaModel


class Phi4MultimodalForCausalLM(MediaModel):
    """Phi-4-multimodal: its encoders are siblings of its text model's layers."""

    info = Info(summary="Phi-4-multimodal", source="https://arxiv.org/abs/2503.01743")
    text_class: ClassVar[str] = "Phi3ForCausalLM"
    text_names: ClassVar[tuple[str, ...]] = (
        *("layers", "embed_tokens", "norm", "rotary_emb", "embed_dropout"),
    )

    def __init__(self, options: Any, context: BuildContext) -> None:
        super().__init__(options, context)
        whole = context.model.whole_config
        self._tokens = {kind: token_of(whole, kind) or 0 for kind in (IMAGE, AUDIO)}
        if self.takes_media:
            _see_all(self.encoder.get_submodule("embed_tokens_extend.image_embed"))

    def encode_one(self, kind: str, features: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the vectors of a content, a sound's by the layers for speech without images.

        Shapes: [rows, E]
        """
        encoders: Any = self.encoder.get_submodule("embed_tokens_extend")
        if kind == AUDIO:
            encode, count = encoders.audio_embed, int(features["audio_embed_sizes"].sum())
        else:
            encode = encoders.image_embed
            count = image_rows(features, encode.crop_size, encode.num_img_tokens)
        device = next(iter(features.values())).device
        ids = torch.full((1, count), self._tokens[kind], device=device)
        empty = torch.zeros(1, count, self._size, dtype=self._dtype, device=device)
        vectors: torch.Tensor = encode(ids, empty, **self.given(features))
        return vectors[0]


def _see_all(encoder: torch.nn.Module) -> None:
    """Let all patches see each other, as transformers' eager attention does: by its fused one those
    of a picture that fills its crops see none that come later. Mutates: encoder"""
    for module in encoder.modules():
        if "is_causal" in vars(module):
            vars(module)["is_causal"] = False


def image_rows(features: Mapping[str, torch.Tensor], crop: int, crop_rows: int) -> int:
    """Return how many vectors an image has: those of its crops that show something, one at the end
    of each line, those of the whole image, and a separator. Units: crop in pixels"""
    height, width = (int(size) // crop for size in features["image_sizes"].flatten().tolist())
    side = int(crop_rows**0.5)
    seen = features["image_attention_mask"][0, 1 : height * width + 1, ::2, ::2]
    seen = seen.reshape(height, width, side, side).transpose(1, 2).flatten(0, 1).flatten(1)
    lines, columns = int(seen[:, 0].sum()), int(seen[0].sum())
    return lines * (columns + 1) + 1 + side * (side + 1)
