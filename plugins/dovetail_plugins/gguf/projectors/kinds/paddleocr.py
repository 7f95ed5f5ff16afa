"""PaddleOCR-VL: SigLIP's patches of images of any size with rotated heads, four to a vector.

Source: PaddleOCRVisionModel in
https://github.com/ggml-org/llama.cpp/blob/master/conversion/ernie.py. Imports no torch.
"""

from __future__ import annotations

from dovetail_plugins.gguf.projectors.kinds.siglip import clip_names
from dovetail_plugins.gguf.projectors.projector import (
    Json,
    Pair,
    Projector,
    ProjectorNames,
    pictures,
    sectioned,
    vision,
)

_PROJECTOR = "model.projector"
_IMAGE = "<|IMAGE_PLACEHOLDER|>"
_AROUND = {"vision_start": "<|IMAGE_START|>", "vision_end": "<|IMAGE_END|>"}
_SCALE = 2
"""Patches along the side of a square that becomes a vector."""
_PIXELS = (384 * 384, 1536 * 1536)


def _names(pair: Pair) -> ProjectorNames:
    whole = {
        "mm.input_norm": f"{_PROJECTOR}.pre_norm",
        **{f"mm.{n}": f"{_PROJECTOR}.linear_{n}" for n in (1, 2)},
    }
    return clip_names(pair, "model.visual.vision_model", whole)


def _config(pair: Pair) -> Json:
    side = round(pair.matrix("v.position_embd.weight")[0] ** 0.5)
    encoder = vision(
        pair,
        "paddleocr_vl_vision",
        hidden_act="gelu_pytorch_tanh",
        image_size=side * pair.number("patch_size"),  # the file's own is that of the largest image
        spatial_merge_size=_SCALE,
    )
    return {
        "model_type": "paddleocr_vl",
        "architectures": ["PaddleOCRVLForConditionalGeneration"],
        "vision_config": encoder,
        "image_token_id": pair.token(_IMAGE)[0],
        **{f"{key}_token_id": pair.required(text) for key, text in _AROUND.items()},
    }


def _processor(pair: Pair) -> Json:
    lower, upper = (pair.find(f"image_{word}_pixels", int) for word in ("min", "max"))
    images = pictures(
        pair,
        "PaddleOCRVLImageProcessor",
        size={"shortest_edge": lower or _PIXELS[0], "longest_edge": upper or _PIXELS[1]},
        patch_size=pair.number("patch_size"),
        merge_size=_SCALE,
        temporal_patch_size=1,
        resample=3,
    )
    return {
        "processor_class": "PaddleOCRVLProcessor",
        "image_processor": images,
        "tokens": {"image_token": pair.token(_IMAGE)[1]},
    }


PROJECTORS = {
    "paddleocr": Projector(
        texts=("paddleocr",),
        config=_config,
        text=lambda pair: sectioned(pair, "paddleocr_vl_text"),
        names=_names,
        processor=_processor,
        width=("mm.2.weight", 0),
        is_backed=True,
    ),
}
"""clip.projector_type -> how such files are read."""
