"""Kimi K2.5: MoonViT's patches of images of any size, four to a vector, before DeepSeek V3.

Source: KimiK25Model in https://github.com/ggml-org/llama.cpp/tree/master/conversion; PermuteForRope
in core_model_loading.py of transformers 5. Imports no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail_plugins.gguf.projectors.projector import (
    Json,
    Pair,
    Projector,
    ProjectorNames,
    pictures,
    scale_factor,
    vision,
)

if TYPE_CHECKING:
    import torch

_TOWER, _PROJECTOR = "model.vision_tower", "model.mm_projector"
_BLOCK = {
    **{f"attn_{one}": f"attn.{one}_proj" for one in ("q", "k", "v")},
    "attn_out": "attn.proj",
    "ln1": "norm1",
    "ln2": "norm2",
    "ffn_up": "mlp.fc1",
    "ffn_down": "mlp.fc2",
}
_IMAGE = "<|media_pad|>"
_VIDEO = "<|kimi_k25_video_placeholder|>"
_AROUND = {"vision_start": "<|media_begin|>", "vision_end": "<|media_end|>"}
_EPS = 1e-5
_PATCHES, _SIDE = 16384, 512
"""The most patches of an image, and along its side, as published."""


def _by_part(rows: torch.Tensor, pair: Pair) -> torch.Tensor:
    """Return rows whose directions (x, y) of every head come last: (x or y, frequency, part of the
    pair) become (part, frequency, x or y)."""
    heads = pair.number("attention.head_count")
    parts = rows.unflatten(0, (heads, 2, -1, 2)).transpose(1, 3)
    return parts.flatten(0, 3)


def _names(pair: Pair) -> ProjectorNames:
    place = f"{_TOWER}.patch_embed"
    return ProjectorNames(
        block=_BLOCK,
        blocks=f"{_TOWER}.layers",
        whole={
            "v.patch_embd": f"{place}.proj",
            "v.position_embd.weight": f"{place}.pos_emb.position_embeddings",
            "v.post_ln": f"{_TOWER}.final_layernorm",
            "mm.input_norm": f"{_PROJECTOR}.pre_norm",
            "mm.1": f"{_PROJECTOR}.in_proj",
            "mm.2": f"{_PROJECTOR}.out_proj",
        },
        changes={"attn_q": _by_part, "attn_k": _by_part},
    )


def _config(pair: Pair) -> Json:
    table = pair.shape("v.position_embd.weight")
    if len(table) != 3:
        raise pair.fault("the tensor v.position_embd.weight has no rows and columns of an image.")
    encoder = vision(
        pair,
        "kimi_k25_vision",
        hidden_act="gelu_pytorch_tanh",
        pos_emb_height=table[0],
        pos_emb_width=table[1],
        merge_kernel_size=[scale_factor(pair)] * 2,
    )
    video = pair.token_id(_VIDEO)
    return {
        "model_type": "kimi_k25",
        "architectures": ["Kimi_K25ForConditionalGeneration"],
        "vision_config": encoder,
        "projection_hidden_size": pair.shape("mm.input_norm.weight")[0],
        "projection_layer_norm_eps": pair.small("attention.layer_norm_epsilon", _EPS),
        "image_token_id": pair.token(_IMAGE)[0],
        **{f"{key}_token_id": pair.required(text) for key, text in _AROUND.items()},
        **({} if video is None else {"video_token_id": video}),
    }


def _processor(pair: Pair) -> Json:
    patch, max_pixels = pair.number("patch_size"), pair.find("image_max_pixels", int)
    images = pictures(
        pair,
        "Kimi_K25ImageProcessor",
        size={"max_height": _SIDE, "max_width": _SIDE},
        max_patches=max_pixels // patch**2 if max_pixels else _PATCHES,
        patch_size=patch,
        merge_size=scale_factor(pair),
        resample=3,
    )
    return {
        "processor_class": "Kimi_K25Processor",
        "image_processor": images,
        "tokens": {"image_token": pair.token(_IMAGE)[1]},
    }


PROJECTORS = {
    "kimik25": Projector(
        texts=("deepseek2",),
        config=_config,
        names=_names,
        processor=_processor,
        width=("mm.2.weight", 0),
        is_backed=True,
    ),
}
"""clip.projector_type -> how such files are read."""
