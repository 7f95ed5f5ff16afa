"""LFM2-VL: SigLIP 2's patches of images of any shape, four to a vector, before LFM2.

Source: LFM2VLModel in https://github.com/ggml-org/llama.cpp/blob/master/conversion/lfm2.py. Imports
no torch.
"""

from __future__ import annotations

from dovetail_plugins.gguf.projectors.kinds.siglip import clip_names
from dovetail_plugins.gguf.projectors.projector import (
    Json,
    Pair,
    Projector,
    ProjectorNames,
    as_rows,
    pictures,
    scale_factor,
    vision,
)

_PROJECTOR = "model.multi_modal_projector"
_IMAGE = "<image>"
_AROUND = {"image_start_token": "<|image_start|>", "image_end_token": "<|image_end|>"}


def _names(pair: Pair) -> ProjectorNames:
    whole = {
        "mm.input_norm": f"{_PROJECTOR}.layer_norm",
        **{f"mm.{n}": f"{_PROJECTOR}.linear_{n}" for n in (1, 2)},
    }
    changes = {"v.patch_embd.weight": as_rows}
    return clip_names(pair, "model.vision_tower", whole, changes=changes)


def _config(pair: Pair) -> Json:
    encoder = vision(
        pair,
        "siglip2_vision_model",
        hidden_act="gelu_pytorch_tanh",
        num_patches=pair.matrix("v.position_embd.weight")[0],
        vision_use_head=False,
    )
    return {
        "model_type": "lfm2_vl",
        "architectures": ["Lfm2VlForConditionalGeneration"],
        "vision_config": encoder,
        "image_token_id": pair.token(_IMAGE)[0],
        "downsample_factor": scale_factor(pair),
        "projector_hidden_size": pair.matrix("mm.1.weight")[0],
        "projector_hidden_act": "gelu",
        "projector_bias": pair.has("mm.1.bias"),
        "projector_use_layernorm": pair.has("mm.input_norm.weight"),
    }


def _processor(pair: Pair) -> Json:
    for text in _AROUND.values():
        pair.required(text)
    images = pictures(
        pair,
        "Lfm2VlImageProcessor",
        resample=2,
        encoder_patch_size=pair.number("patch_size"),
        downsample_factor=scale_factor(pair),
    )
    return {
        "processor_class": "Lfm2VlProcessor",
        "image_processor": images,
        "tokens": {"image_token": pair.token(_IMAGE)[1], **_AROUND},
    }


PROJECTORS = {
    "lfm2": Projector(
        texts=("lfm2",),
        config=_config,
        names=_names,
        processor=_processor,
        width=("mm.2.weight", 0),
    ),
}
"""clip.projector_type -> how such files are read."""
