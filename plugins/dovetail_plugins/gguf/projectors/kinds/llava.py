"""LLaVA 1.5 and 1.6, Pixtral, Mistral Small 3.1, LightOnOCR and InternVL.

Source: tools/mtmd/legacy-models/convert_image_encoder_to_gguf.py of
https://github.com/ggml-org/llama.cpp, and LlavaVisionModel and InternVisionModel in its folder
conversion. Imports no torch.
"""

from __future__ import annotations

from typing import Any

from dovetail_plugins.gguf.projectors.kinds.siglip import clip_names
from dovetail_plugins.gguf.projectors.projector import (
    Json,
    Pair,
    Projector,
    ProjectorNames,
    activation,
    batched,
    merge_size,
    pictures,
    scale_factor,
    square,
    turned_back,
    vision,
)

DECODERS = ("llama", "qwen2", "qwen3", "qwen3moe", "gemma", "gemma2", "phi2", "phi3", "stablelm",
            "mistral3", "granite", "internlm2")  # fmt: skip
"""Text models that have been trained with such encoders."""
_TOWER, _PROJECTOR = "model.vision_tower", "model.multi_modal_projector"
_IMAGE = "<image>"


def _llava_names(pair: Pair) -> ProjectorNames:
    whole = {
        "mm.0": f"{_PROJECTOR}.linear_1",
        "mm.2": f"{_PROJECTOR}.linear_2",
        "model.image_newline": "model.image_newline",
        "v.image_newline": "model.image_newline",
    }
    return clip_names(pair, _TOWER, whole, unused=(f"{_TOWER}.post_layernorm",))


def _grid(pair: Pair) -> list[list[int]]:
    """Return the sizes that tiles of an image fill; none if it is not cut into tiles."""
    flat = pair.find("image_grid_pinpoints", list) or []
    return [flat[place : place + 2] for place in range(0, len(flat) - 1, 2)]


def _has_class(pair: Pair) -> bool:
    return pair.has("v.class_embd")


def _llava(pair: Pair) -> Json:
    layers = pair.find("feature_layer", list) or []
    is_clip = _has_class(pair)
    kind = "clip_vision_model" if is_clip else "siglip_vision_model"
    act = activation(pair, "quick_gelu" if is_clip else "gelu_pytorch_tanh")
    more: Json = {} if is_clip else {"vision_use_head": False}
    grid = _grid(pair)
    return {
        "model_type": "llava_next" if grid else "llava",
        "architectures": [f"Llava{'Next' if grid else ''}ForConditionalGeneration"],
        "vision_config": vision(pair, kind, hidden_act=act, **more),
        # Without such a setting, the file ends with the last block that is used.
        "vision_feature_layer": layers if len(layers) > 1 else next(iter(layers), -1),
        "vision_feature_select_strategy": _strategy(pair),
        "image_token_index": pair.token(_IMAGE)[0],
        "projector_hidden_act": "gelu",
        "multimodal_projector_bias": pair.has("mm.0.bias"),
        **({"image_grid_pinpoints": grid} if grid else {}),
    }


def _strategy(pair: Pair) -> str:
    return "default" if _has_class(pair) else "full"


def _llava_processor(pair: Pair) -> Json:
    grid = _grid(pair)
    word = "Next" if grid else ""
    edge = pair.number("image_size")
    images = pictures(
        pair,
        f"Llava{word}ImageProcessor" if grid else "CLIPImageProcessor",
        size={"shortest_edge": edge},
        crop_size=square(pair),
        do_center_crop=True,
        resample=3,
        **({"image_grid_pinpoints": grid} if grid else {}),
    )
    return {
        "processor_class": f"Llava{word}Processor",
        "image_processor": images,
        "patch_size": pair.number("patch_size"),
        "vision_feature_select_strategy": _strategy(pair),
        "num_additional_image_tokens": int(_has_class(pair)),
        "image_token": pair.token(_IMAGE)[1],
    }


_PIXTRAL = {
    "attn_q": "attention.q_proj",
    "attn_k": "attention.k_proj",
    "attn_v": "attention.v_proj",
    "attn_out": "attention.o_proj",
    "ln1": "attention_norm",
    "ln2": "ffn_norm",
    "ffn_gate": "feed_forward.gate_proj",
    "ffn_up": "feed_forward.up_proj",
    "ffn_down": "feed_forward.down_proj",
}


def _pixtral_names(pair: Pair, tower: str = _TOWER, projector: str = _PROJECTOR) -> ProjectorNames:
    return ProjectorNames(
        block=_PIXTRAL,
        blocks=f"{tower}.transformer.layers",
        whole={
            "v.patch_embd": f"{tower}.patch_conv",
            "v.pre_ln": f"{tower}.ln_pre",
            "mm.1": f"{projector}.linear_1",
            "mm.2": f"{projector}.linear_2",
            "mm.input_norm": f"{projector}.norm",
            "mm.patch_merger": f"{projector}.patch_merger.merging_layer",
        },
        changes={"attn_q": turned_back, "attn_k": turned_back},
        left_out=("v.token_embd.img_break",),  # a row of the text model's table once more
    )


def _pixtral_encoder(pair: Pair) -> Json:
    size, act = pair.number("embedding_length"), activation(pair, "silu")
    theta = pair.clip.find(".rope.freq_base", float) or 1e4
    more = {"head_dim": size // pair.number("attention.head_count"), "rope_theta": theta}
    return vision(pair, "pixtral", hidden_act=act, **more)


def _pixtral(pair: Pair) -> Json:
    merged = merge_size(pair, 1)
    whole = {
        "vision_config": _pixtral_encoder(pair),
        "vision_feature_layer": -1,
        "image_token_index": pair.token("[IMG]")[0],
        "projector_hidden_act": "gelu",
        "multimodal_projector_bias": pair.has("mm.1.bias"),
    }
    if merged > 1:
        names = {"architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3"}
        return {**names, **whole, "spatial_merge_size": merged}
    names = {"architectures": ["LlavaForConditionalGeneration"], "model_type": "llava"}
    return {**names, **whole, "vision_feature_select_strategy": "full"}


def _pixtral_pictures(pair: Pair) -> Json:
    return pictures(
        pair,
        "PixtralImageProcessor",
        size={"longest_edge": pair.number("image_size")},
        patch_size=dict.fromkeys(("height", "width"), pair.number("patch_size")),
        resample=3,
    )


def _pixtral_processor(pair: Pair) -> Json:
    return {
        "processor_class": "PixtralProcessor",
        "image_processor": _pixtral_pictures(pair),
        "patch_size": pair.number("patch_size"),
        "spatial_merge_size": merge_size(pair, 1),
        "image_token": pair.token("[IMG]")[1],
        "image_break_token": "[IMG_BREAK]",
        "image_end_token": "[IMG_END]",
    }


_LIGHTON_TOKENS = {
    "image_token": "<|image_pad|>",
    "image_break_token": "<|vision_pad|>",
    "image_end_token": "<|vision_end|>",
}


def _lighton(pair: Pair) -> Json:
    return {
        "model_type": "lighton_ocr",
        "architectures": ["LightOnOcrForConditionalGeneration"],
        "vision_config": _pixtral_encoder(pair),
        "image_token_id": pair.token(_LIGHTON_TOKENS["image_token"])[0],
        "spatial_merge_size": merge_size(pair, 1),
    }


def _lighton_processor(pair: Pair) -> Json:
    for text in _LIGHTON_TOKENS.values():
        pair.required(text)
    return {
        "processor_class": "LightOnOcrProcessor",
        "image_processor": _pixtral_pictures(pair),
        "patch_size": pair.number("patch_size"),
        "spatial_merge_size": merge_size(pair, 1),
        "tokens": dict(_LIGHTON_TOKENS),
    }


_INTERN = {
    "attn_q": "attention.q_proj",
    "attn_k": "attention.k_proj",
    "attn_v": "attention.v_proj",
    "attn_q_norm": "attention.q_norm",
    "attn_k_norm": "attention.k_norm",
    "attn_out": "attention.projection_layer",
    "ln1": "layernorm_before",
    "ln2": "layernorm_after",
    "ls1.weight": "lambda_1",
    "ls2.weight": "lambda_2",
    "ffn_up": "mlp.fc1",
    "ffn_down": "mlp.fc2",
}


def _intern_names(pair: Pair) -> ProjectorNames:
    table = f"{_TOWER}.embeddings"
    return ProjectorNames(
        block=_INTERN,
        blocks=f"{_TOWER}.encoder.layer",
        whole={
            "v.class_embd": f"{table}.cls_token",
            "v.position_embd": f"{table}.position_embeddings",
            "v.position_embd.weight": f"{table}.position_embeddings",
            "v.patch_embd": f"{table}.patch_embeddings.projection",
            "mm.model.mlp.0": f"{_PROJECTOR}.layer_norm",
            "mm.model.mlp.1": f"{_PROJECTOR}.linear_1",
            "mm.model.mlp.3": f"{_PROJECTOR}.linear_2",
        },
        changes=dict.fromkeys(("v.class_embd", "v.position_embd"), batched),
    )


def _intern(pair: Pair) -> Json:
    encoder: dict[str, Any] = {
        name: [size, size] for name in ("image_size", "patch_size") for size in [pair.number(name)]
    }
    encoder |= {
        "attention_bias": pair.has("v.blk.0.attn_q.bias") or pair.has("v.blk.0.attn_qkv.bias"),
        "use_qk_norm": pair.has("v.blk.0.attn_q_norm.weight"),
        "norm_type": "layer_norm" if pair.has("v.blk.0.ln1.bias") else "rms_norm",
        "hidden_act": activation(pair, "gelu"),
    }
    return {
        "model_type": "internvl",
        "architectures": ["InternVLForConditionalGeneration"],
        "vision_config": vision(pair, "internvl_vision", **encoder),
        "downsample_ratio": 1 / scale_factor(pair),
        "image_seq_length": pair.side(scale_factor(pair)) ** 2,
        "image_token_id": pair.token("<IMG_CONTEXT>")[0],
        "projector_hidden_act": "gelu",
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "default",
    }


def _intern_processor(pair: Pair) -> Json:
    tiles = [pair.find(f"preproc_{word}_tiles", int) for word in ("min", "max")]
    images = pictures(
        pair,
        "GotOcr2ImageProcessor",
        size=square(pair),
        min_patches=tiles[0] or 1,
        max_patches=tiles[1] or 12,
        crop_to_patches=False,  # the processor's own default for InternVL turns it on
        resample=3,
    )
    return {
        "processor_class": "InternVLProcessor",
        "image_processor": images,
        "image_seq_length": pair.side(scale_factor(pair)) ** 2,
        "tokens": {
            "context_image_token": pair.token("<IMG_CONTEXT>")[1],
            "start_image_token": "<img>",
            "end_image_token": "</img>",
            "video_token": "<video>",
        },
    }


PROJECTORS = {
    "mlp": Projector(
        texts=DECODERS,
        config=_llava,
        names=_llava_names,
        processor=_llava_processor,
        width=("mm.2.weight", 0),
    ),
    "pixtral": Projector(
        texts=("llama", "mistral3"),
        config=_pixtral,
        names=_pixtral_names,
        processor=_pixtral_processor,
        width=("mm.2.weight", 0),
    ),
    "lightonocr": Projector(
        texts=("qwen3",),
        config=_lighton,
        names=lambda pair: _pixtral_names(pair, "model.vision_encoder", "model.vision_projection"),
        processor=_lighton_processor,
        width=("mm.2.weight", 0),
        is_backed=True,
    ),
    "internvl": Projector(
        texts=DECODERS,
        config=_intern,
        names=_intern_names,
        processor=_intern_processor,
        width=("mm.model.mlp.3.weight", 0),
    ),
}
"""clip.projector_type -> how such files are read."""
