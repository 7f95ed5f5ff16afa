"""GLM-4.1V, 4.5V, 4.6V and GLM-OCR: images of any size, a convolution and a gated MLP after them.

Source: Glm4VVisionModel in https://github.com/ggml-org/llama.cpp/tree/master/conversion. Imports no
torch.
"""

from __future__ import annotations

from dovetail_plugins.gguf.projectors.projector import (
    Json,
    Pair,
    Projector,
    ProjectorNames,
    activation,
    merge_size,
    pictures,
    sectioned,
)

_VISUAL = "model.visual"
_BLOCK = {
    "attn_out": "attn.proj",
    **{f"attn_{one}_norm": f"attn.{one}_norm" for one in ("q", "k")},
    "ln1": "norm1",
    "ln2": "norm2",
    **{f"ffn_{one}": f"mlp.{one}_proj" for one in ("gate", "up", "down")},
}
_WHOLE = {
    "v.patch_embd": "patch_embed.proj",
    "v.norm_embd": "post_conv_layernorm",
    "v.position_embd": "embeddings.position_embedding",
    "v.post_ln": "post_layernorm",
    "mm.patch_merger": "downsample",
    "mm.model.fc": "merger.proj",
    "mm.post_norm": "merger.post_projection_norm",
    **{f"mm.{one}": f"merger.{one}_proj" for one in ("gate", "up", "down")},
}
_IMAGE = "<|image|>"
_VIDEO = "<|video|>"
_AROUND = {"image_start": "<|begin_of_image|>", "image_end": "<|end_of_image|>"}
_AROUND_VIDEO = {"video_start": "<|begin_of_video|>", "video_end": "<|end_of_video|>"}
_PIXELS = (112 * 112, 28 * 28 * 12288)
"""The fewest and most pixels of an image, counted in two frames, as published: no file has them."""
_TYPES = {"glm4": "glm4v", "glm4moe": "glm4v_moe"}
"""general.architecture of the text model -> model_type of both together."""
_OCR = "glm_ocr"
_CLASSES = {
    "glm4v": "Glm4vForConditionalGeneration",
    "glm4v_moe": "Glm4vMoeForConditionalGeneration",
    _OCR: "GlmOcrForConditionalGeneration",
}


def _names(pair: Pair) -> ProjectorNames:
    return ProjectorNames(
        block=_BLOCK,
        blocks=f"{_VISUAL}.blocks",
        whole={old: f"{_VISUAL}.{new}" for old, new in _WHOLE.items()},
        qkv="attn.qkv",
        frames=True,
    )


def _type(pair: Pair) -> str:
    """Return the model_type: GLM-OCR's heads have norms."""
    return _OCR if pair.has("v.blk.0.attn_q_norm.weight") else _TYPES[pair.text.architecture]


def _config(pair: Pair) -> Json:
    model_type = _type(pair)
    inner = "v.blk.0.ffn_up.weight" if model_type == _OCR else "mm.up.weight"
    tokens: dict[str, int | None] = {key: pair.required(one) for key, one in _AROUND.items()}
    tokens |= {key: pair.token_id(one) for key, one in _AROUND_VIDEO.items()}
    tokens |= {"image": pair.token(_IMAGE)[0], "video": pair.token_id(_VIDEO)}
    return {
        "model_type": model_type,
        "architectures": [_CLASSES[model_type]],
        "vision_config": {
            "depth": pair.number("block_count"),
            "num_heads": pair.number("attention.head_count"),
            "hidden_size": pair.number("embedding_length"),
            "out_hidden_size": pair.matrix("mm.model.fc.weight")[0],
            "intermediate_size": pair.matrix(inner)[0],
            "image_size": pair.number("image_size"),
            "patch_size": pair.number("patch_size"),
            "temporal_patch_size": 2,
            "spatial_merge_size": merge_size(pair),
            "rms_norm_eps": pair.small("attention.layer_norm_epsilon", 1e-5),
            "hidden_act": activation(pair, "silu"),
            "attention_bias": pair.has("v.blk.0.attn_qkv.bias"),
        },
        **{f"{key}_token_id": one for key, one in tokens.items() if one is not None},
    }


def _processor(pair: Pair) -> Json:
    name = "Glm46V" if _type(pair) == _OCR else "Glm4v"
    images = pictures(
        pair,
        f"{name}ImageProcessor",
        size=dict(zip(("shortest_edge", "longest_edge"), _PIXELS, strict=True)),
        patch_size=pair.number("patch_size"),
        merge_size=merge_size(pair),
        temporal_patch_size=2,
        resample=3,
    )
    tokens = {"image_token": pair.token(_IMAGE)[1], "video_token": _VIDEO}
    return {"processor_class": f"{name}Processor", "image_processor": images, "tokens": tokens}


PROJECTORS = {
    "glm4v": Projector(
        texts=tuple(_TYPES),
        config=_config,
        text=lambda pair: sectioned(pair, f"{_type(pair)}_text"),
        names=_names,
        processor=_processor,
        width=("mm.down.weight", 0),
        is_backed=True,
    ),
}
"""clip.projector_type -> how such files are read."""
