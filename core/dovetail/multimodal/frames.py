"""Frames of a video as the pictures of equal size that LLaVA's encoders read.

transformers' own video processors need torchvision. So each frame is processed here with their
settings, and the model's own processor writes the text that represents all frames.
Source: video_preprocessor_config.json of LLaVA-OneVision and LLaVA-NeXT-Video.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.multimodal.patches import stored_settings

if TYPE_CHECKING:
    import torch

PROCESSORS = ("LlavaOnevisionProcessor", "LlavaNextVideoProcessor")
"""Processors whose models read frames as pictures."""
DEFAULTS: dict[str, dict[str, Any]] = {
    "LlavaOnevisionProcessor": {"size": {"height": 384, "width": 384}, "do_center_crop": False},
    "LlavaNextVideoProcessor": {
        "size": {"shortest_edge": 224},
        "crop_size": {"height": 224, "width": 224},
    },
}
"""Defaults of transformers' video processors."""
SETTINGS = (
    *("size", "crop_size", "resample", "image_mean", "image_std", "rescale_factor"),
    *("do_resize", "do_center_crop", "do_rescale", "do_normalize"),
)


def read_pictures(processor: Any, folder: str | Path, frames: Any) -> tuple[torch.Tensor, str]:
    """Return the pictures of a video and its text. Shapes: frames [F, h, w, 3] uint8 -> [1, F, 3,
    height, width]"""
    import transformers

    name = type(processor).__name__
    stored = stored_settings(Path(folder), "size")
    settings = {**DEFAULTS[name], **{key: stored[key] for key in SETTINGS if key in stored}}
    inputs = transformers.CLIPImageProcessorPil(**settings)([*frames], return_tensors="pt")
    pictures = inputs["pixel_values"][None]
    return pictures, processor.replace_video_token({"pixel_values_videos": pictures}, video_idx=0)
