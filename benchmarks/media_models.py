"""Models of random weights that take images, for benchmarks.media: as large as small ones are.

`base` and `large` are LLaVA's layout (CLIP B/16 before six layers of 768, CLIP L/14 at 336 pixels
before eight of 1024), `windows` is Qwen2.5-VL's (eight of the 32 blocks of its encoder, which
attend in windows, before six layers of 768).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

LLAVA: dict[str, tuple[dict[str, int], dict[str, int]]] = {
    "base": (
        {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
         "num_attention_heads": 12, "image_size": 224, "patch_size": 16},
        {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 6,
         "num_attention_heads": 12, "num_key_value_heads": 4},
    ),
    "large": (
        {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
         "num_attention_heads": 16, "image_size": 336, "patch_size": 14},
        {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 8,
         "num_attention_heads": 16, "num_key_value_heads": 8},
    ),
}  # fmt: skip
WINDOWS = "windows"
SIZES = (*LLAVA, WINDOWS)
COMMON = {"vocab_size": 32000, "max_position_embeddings": 2048}
IMAGE = "<image>"
QWEN = {
    "image_token_id": "<|image_pad|>",
    "video_token_id": "<|video_pad|>",
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
}


def type_of(folder: Path) -> str:
    """Return the type of a model, by transformers' name."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return str(config["model_type"])


def place_of(folder: Path) -> str:
    """Return what stands for an image in prompts of a model."""
    return IMAGE if type_of(folder) == "llava" else "<|vision_start|><|image_pad|><|vision_end|>"


def write_model(folder: Path, size: str, dtype: str) -> None:
    """Write a model of random weights with its processor."""
    import torch
    import transformers as hf

    from dovetail_testing.tiny.models import write_tiny_tokenizer

    write_tiny_tokenizer(folder)
    tokenizer = hf.AutoTokenizer.from_pretrained(folder)
    tokens = list(QWEN.values()) if size == WINDOWS else [IMAGE]
    tokenizer.add_special_tokens({"additional_special_tokens": tokens})
    config, processor = (_qwen if size == WINDOWS else _llava)(tokenizer, size)
    torch.manual_seed(0)
    model: Any = hf.AutoModelForImageTextToText.from_config(config)
    model.to(getattr(torch, dtype)).save_pretrained(folder)
    processor.save_pretrained(folder)


def _llava(tokenizer: Any, size: str) -> tuple[Any, Any]:
    """Return a config and a processor of LLaVA's layout."""
    import transformers as hf

    vision, text = LLAVA[size]
    pixels = vision["image_size"]
    config = hf.LlavaConfig(
        vision_config=hf.CLIPVisionConfig(**vision, projection_dim=vision["hidden_size"]),
        text_config=hf.LlamaConfig(**text, **COMMON),
        image_token_id=tokenizer.convert_tokens_to_ids(IMAGE),
    )
    pictures = hf.CLIPImageProcessorPil(
        size={"shortest_edge": pixels}, crop_size={"height": pixels, "width": pixels}
    )
    processor = hf.LlavaProcessor(
        image_processor=pictures,
        tokenizer=tokenizer,
        patch_size=vision["patch_size"],
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        image_token=IMAGE,
    )
    return config, processor


def _qwen(tokenizer: Any, size: str) -> tuple[Any, Any]:
    """Return a config and a processor of Qwen2.5-VL's layout: some 230 vectors of a picture."""
    import transformers as hf

    from dovetail.multimodal.processors import processor_class

    _, text = LLAVA["base"]
    config = hf.Qwen2_5_VLConfig(
        vision_config={
            "depth": 8,
            "hidden_size": 1280,
            "intermediate_size": 3420,
            "num_heads": 16,
            "patch_size": 14,
            "window_size": 112,
            "out_hidden_size": text["hidden_size"],
            "fullatt_block_indexes": [3, 7],
        },
        text_config={
            **text,
            **COMMON,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e6,
                "mrope_section": [8, 12, 12],
            },
        },
        **{name: tokenizer.convert_tokens_to_ids(token) for name, token in QWEN.items()},
    )
    pictures = hf.Qwen2VLImageProcessorPil(
        patch_size=14, merge_size=2, min_pixels=56 * 56, max_pixels=448 * 448
    )
    return config, processor_class("qwen2_5_vl", "Qwen2_5_VLProcessor")(pictures, tokenizer)
