"""MiniCPM-V 4.6: SigLIP's patches, merged by windows in the middle of the encoder and after it.

Source: MiniCPMV4_6VisionModel in
https://github.com/ggml-org/llama.cpp/blob/master/conversion/minicpm.py. Imports no torch.
"""

from __future__ import annotations

from dovetail_plugins.gguf.projectors.kinds.siglip import clip_names
from dovetail_plugins.gguf.projectors.projector import (
    Json,
    Pair,
    Projector,
    ProjectorNames,
    pictures,
    scale_factor,
    vision,
)

_TOWER = "model.vision_tower"
_TOKENS = {
    "image_token": "<|image_pad|>",
    "video_token": "<|video_pad|>",
    "image_start_token": "<image>",
    "image_end_token": "</image>",
    "slice_start_token": "<slice>",
    "slice_end_token": "</slice>",
    "image_id_start_token": "<image_id>",
    "image_id_end_token": "</image_id>",
}
_MERGER = {
    "ln1": "layer_norm1",
    **{f"attn_{one}": f"self_attn.{one}_proj" for one in ("q", "k", "v", "out")},
    "ds_ln": "pre_norm",
    "ds_ffn_up": "linear_1",
    "ds_ffn_down": "linear_2",
}
_LAST = {"mm.input_norm": "pre_norm", "mm.up": "linear_1", "mm.down": "linear_2"}
_SCALE = 4
"""Patches along the side of a square that becomes a vector."""


def _names(pair: Pair) -> ProjectorNames:
    whole = {f"v.vit_merger.{old}": f"{_TOWER}.vit_merger.{new}" for old, new in _MERGER.items()}
    last = {old: f"model.merger.mlp.0.{new}" for old, new in _LAST.items()}
    return clip_names(pair, _TOWER, whole | last)


def _config(pair: Pair) -> Json:
    patches = pair.matrix("v.position_embd.weight")[0]
    size = round(patches**0.5) * pair.number("patch_size")  # clip.vision.image_size is a slice's
    encoder = vision(pair, "minicpmv4_6_vision", hidden_act="gelu_pytorch_tanh")
    blocks, after = range(encoder["num_hidden_layers"]), pair.find("wa_layer_indexes", list)
    if not after or after[0] not in blocks:
        raise pair.fault(f"clip.vision.wa_layer_indexes is {after!r}"[:200] + ".")
    scale = scale_factor(pair, _SCALE)
    if scale != _SCALE:
        raise pair.fault(f"clip.vision.projector.scale_factor is {scale}; only {_SCALE} is read.")
    return {
        "model_type": "minicpmv4_6",
        "architectures": ["MiniCPMV4_6ForConditionalGeneration"],
        "vision_config": {**encoder, "image_size": size},
        "insert_layer_id": after[0],
        "image_token_id": pair.token(_TOKENS["image_token"])[0],
        "video_token_id": pair.token_id(_TOKENS["video_token"]),
    }


def _processor(pair: Pair) -> Json:
    for text in _TOKENS.values():
        pair.required(text)
    images = pictures(
        pair,
        "MiniCPMV4_6ImageProcessor",
        resample=3,
        scale_resolution=pair.number("image_size"),
        patch_size=pair.number("patch_size"),
    )
    return {
        "processor_class": "MiniCPMV4_6Processor",
        "image_processor": images,
        "tokens": dict(_TOKENS),
    }


PROJECTORS = {
    "minicpmv4_6": Projector(
        texts=("qwen35", "qwen35moe"),
        config=_config,
        names=_names,
        processor=_processor,
        width=("mm.down.weight", 0),
    ),
}
"""clip.projector_type -> how such files are read."""
