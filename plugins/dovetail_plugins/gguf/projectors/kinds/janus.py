"""Janus Pro: SigLIP's patches, each a vector, before Llama. What it paints with is not in files.

Source: JanusProVisionModel in https://github.com/ggml-org/llama.cpp/tree/master/conversion. Imports
no torch.
"""

from __future__ import annotations

from dataclasses import replace

from dovetail_plugins.gguf.projectors.kinds.siglip import clip_names
from dovetail_plugins.gguf.projectors.projector import (
    Json,
    Pair,
    Projector,
    ProjectorNames,
    activation,
    pictures,
    square,
    vision,
)

_ALIGNER = {"mm.0": "model.aligner.fc1", "mm.1": "model.aligner.hidden_layers.0"}
_TOKENS = {
    "image_token": "<image_placeholder>",
    "boi_token": "<begin_of_image>",
    "eoi_token": "<end_of_image>",
}
_PAINTS: Json = {"base_channels": 32, "channel_multiplier": [1], "num_res_blocks": 1,
                 "latent_channels": 32, "num_embeddings": 8}  # fmt: skip
"""Of the part that makes images, which is left out: as small as it can be."""


def _names(pair: Pair) -> ProjectorNames:
    names = clip_names(pair, "model.vision_model", _ALIGNER)
    return replace(names, block={**names.block, "attn_out": "self_attn.projection_layer"})


def _config(pair: Pair) -> Json:
    encoder = vision(
        pair,
        "janus_vision_model",
        hidden_act=activation(pair, "gelu"),
        mlp_ratio=pair.inner() / pair.number("embedding_length"),
        attention_bias=pair.has("v.blk.0.attn_q.bias"),
        projection_dim=pair.matrix("mm.0.weight")[0],
        num_image_tokens=pair.side(1) ** 2,
        depth=len(_ALIGNER),
    )
    del encoder["intermediate_size"]
    return {
        "model_type": "janus",
        "architectures": ["JanusForConditionalGeneration"],
        "vision_config": encoder,
        "vq_config": dict(_PAINTS),
        "image_token_id": pair.token(_TOKENS["image_token"])[0],
    }


def _processor(pair: Pair) -> Json:
    for text in _TOKENS.values():
        pair.required(text)
    return {
        "processor_class": "JanusProcessor",
        "image_processor": pictures(pair, "JanusImageProcessor", size=square(pair), resample=3),
        "num_image_tokens": pair.side(1) ** 2,
        "tokens": dict(_TOKENS),
    }


PROJECTORS = {
    "janus_pro": Projector(
        texts=("llama",),
        config=_config,
        names=_names,
        processor=_processor,
        width=("mm.1.weight", 0),
        is_backed=True,
    ),
}
"""clip.projector_type -> how such files are read."""
