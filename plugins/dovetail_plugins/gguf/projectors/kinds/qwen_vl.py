"""Qwen2-VL, Qwen2.5-VL, Qwen3-VL and Qwen3.5: images of any size.

Source: Qwen2VLVisionModel and Qwen3VLVisionModel in
https://github.com/ggml-org/llama.cpp/tree/master/conversion. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail_plugins.gguf.projectors.projector import (
    Json,
    Pair,
    Projector,
    ProjectorNames,
    merge_size,
    pictures,
    sectioned,
)

_BLOCK = {"attn_out": "attn.proj", "ln1": "norm1", "ln2": "norm2"}
_FC = {"ffn_up": "mlp.fc1", "ffn_down": "mlp.fc2"}
_GATED = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
_LINEAR = {"ffn_up": "mlp.linear_fc1", "ffn_down": "mlp.linear_fc2"}
_VISUAL = "model.visual"
USUAL_WINDOW = 112
"""The side of an attention window in pixels (Qwen2.5-VL), where the file does not say."""
PIXELS = {"qwen2": (56 * 56, 28 * 28 * 16384), "qwen3": (256 * 256, 4096 * 4096)}
"""The fewest and most pixels of an image, as published, where the file does not say."""


def _names(pair: Pair, block: Mapping[str, str], whole: Mapping[str, str]) -> ProjectorNames:
    if pair.is_swapped():
        block = {**block, "ffn_up": block["ffn_down"], "ffn_down": block["ffn_up"]}
    patches = f"{_VISUAL}.patch_embed.proj"
    return ProjectorNames(
        block=_BLOCK | dict(block),
        blocks=f"{_VISUAL}.blocks",
        whole={"v.patch_embd": patches, **{old: f"{_VISUAL}.{new}" for old, new in whole.items()}},
        qkv="attn.qkv",
        frames=True,
    )


_MERGER = {"v.post_ln": "merger.ln_q", "mm.0": "merger.mlp.0", "mm.2": "merger.mlp.2"}
_MERGER3 = {
    "v.post_ln": "merger.norm",
    "mm.0": "merger.linear_fc1",
    "mm.2": "merger.linear_fc2",
    "v.position_embd": "pos_embed",
}


def _deep_blocks(pair: Pair) -> list[int]:
    """Return the blocks whose outputs go to layers of the text model."""
    flags = pair.find("is_deepstack_layers", list) or []
    return [block for block, is_deep in enumerate(flags) if is_deep]


def _deep_names(pair: Pair) -> dict[str, str]:
    words = {"norm": "norm", "fc1": "linear_fc1", "fc2": "linear_fc2"}
    return {
        f"v.deepstack.{block}.{old}": f"deepstack_merger_list.{place}.{new}"
        for place, block in enumerate(_deep_blocks(pair))
        for old, new in words.items()
    }


def _config(pair: Pair, model_type: str, name: str, **encoder: Any) -> Json:
    """Return the settings that all of them have."""
    return {
        "model_type": model_type,
        "architectures": [name],
        "vision_config": {
            "depth": pair.number("block_count"),
            "num_heads": pair.number("attention.head_count"),
            "patch_size": pair.number("patch_size"),
            "spatial_merge_size": merge_size(pair),
            "temporal_patch_size": 2,
            **encoder,
        },
        "image_token_id": pair.token("<|image_pad|>")[0],
        "video_token_id": pair.token_id("<|video_pad|>"),
        "vision_start_token_id": pair.required("<|vision_start|>"),
        "vision_end_token_id": pair.required("<|vision_end|>"),
    }


def _qwen2(pair: Pair) -> Json:
    size = pair.number("embedding_length")
    ratio = pair.inner() / size
    encoder = {
        "embed_dim": size,
        "hidden_size": pair.hidden_size,
        "mlp_ratio": int(ratio) if ratio.is_integer() else ratio,
        "hidden_act": "quick_gelu",
    }
    return _config(pair, "qwen2_vl", "Qwen2VLForConditionalGeneration", **encoder)


def _qwen2_5(pair: Pair) -> Json:
    depth, every = pair.number("block_count"), pair.find("n_wa_pattern", int) or 0
    encoder = {
        "hidden_size": pair.number("embedding_length"),
        "intermediate_size": pair.inner(),
        "out_hidden_size": pair.hidden_size,
        "window_size": pair.find("window_size", int) or USUAL_WINDOW,
        "fullatt_block_indexes": [n for n in range(depth) if not every or (n + 1) % every == 0],
        "hidden_act": "silu",
        "tokens_per_second": 2,
    }
    return _config(pair, "qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration", **encoder)


_QWEN3 = {
    "qwen3vl": ("qwen3_vl", "Qwen3VLForConditionalGeneration"),
    "qwen3vlmoe": ("qwen3_vl_moe", "Qwen3VLMoeForConditionalGeneration"),
    "qwen35": ("qwen3_5", "Qwen3_5ForConditionalGeneration"),
    "qwen35moe": ("qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration"),
}
"""general.architecture of the text model -> model_type and class of both together."""


def _qwen3(pair: Pair) -> Json:
    encoder = {
        "hidden_size": pair.number("embedding_length"),
        "intermediate_size": pair.inner(),
        "out_hidden_size": pair.hidden_size,
        "num_position_embeddings": pair.matrix("v.position_embd.weight")[0],
        "deepstack_visual_indexes": _deep_blocks(pair),
        "hidden_act": "gelu_pytorch_tanh",
    }
    model_type, name = _QWEN3[pair.text.architecture]
    return _config(pair, model_type, name, **encoder)


def _text3(pair: Pair) -> Json:
    return sectioned(pair, f"{_QWEN3[pair.text.architecture][0]}_text", mrope_interleaved=True)


def _processor(pair: Pair, name: str, bounds: tuple[int, int]) -> Json:
    lower, upper = (pair.find(f"image_{word}_pixels", int) for word in ("min", "max"))
    size = {"shortest_edge": lower or bounds[0], "longest_edge": upper or bounds[1]}
    settings = {
        "patch_size": pair.number("patch_size"),
        "merge_size": merge_size(pair),
        "temporal_patch_size": 2,
        "resample": 3,
    }
    images = pictures(pair, "Qwen2VLImageProcessor", size=size, **settings)
    return {"processor_class": name, "image_processor": images}


PROJECTORS = {
    "qwen2vl_merger": Projector(
        texts=("qwen2vl",),
        config=_qwen2,
        text=lambda pair: sectioned(pair, "qwen2_vl_text"),
        names=lambda pair: _names(pair, _FC, _MERGER),
        processor=lambda pair: _processor(pair, "Qwen2VLProcessor", PIXELS["qwen2"]),
        width=("mm.2.weight", 0),
    ),
    "qwen2.5vl_merger": Projector(
        texts=("qwen2vl",),
        config=_qwen2_5,
        text=lambda pair: sectioned(pair, "qwen2_5_vl_text"),
        names=lambda pair: _names(pair, _GATED, _MERGER),
        processor=lambda pair: _processor(pair, "Qwen2_5_VLProcessor", PIXELS["qwen2"]),
        width=("mm.2.weight", 0),
    ),
    "qwen3vl_merger": Projector(
        texts=tuple(_QWEN3),
        config=_qwen3,
        text=_text3,
        names=lambda pair: _names(pair, _LINEAR, _MERGER3 | _deep_names(pair)),
        processor=lambda pair: _processor(pair, "Qwen3VLProcessor", PIXELS["qwen3"]),
        width=("mm.2.weight", 0),
    ),
}
"""clip.projector_type -> how such files are read."""
