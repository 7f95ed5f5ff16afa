"""Random checkpoints of LLaVA and its kin: CLIP's or SigLIP's encoder before a plain decoder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dovetail.multimodal.processors import processor_class
from dovetail_testing.tiny.families import VOCAB_SIZE

IMAGE_TOKEN = "<image>"
TEXT: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE + 8,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
VISION: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
}
SIZE = VISION["image_size"]
GRID = [[SIZE, 2 * SIZE], [2 * SIZE, SIZE], [2 * SIZE, 2 * SIZE]]
Made = tuple[Any, Callable[[Any], Any]]
"""A config, and what makes the processor of a tokenizer."""


def _beside_pictures(tokenizer: Any) -> dict[str, Any]:
    """Return what LLaVA's processors take beside the one of pictures."""
    return {
        "tokenizer": tokenizer,
        "patch_size": VISION["patch_size"],
        "vision_feature_select_strategy": "default",
        "num_additional_image_tokens": 1,
        "image_token": IMAGE_TOKEN,
        "chat_template": tokenizer.chat_template,
    }


def _llava(ids: dict[str, int]) -> Made:
    import transformers as hf

    config = hf.LlavaConfig(
        vision_config=hf.CLIPVisionConfig(**VISION, projection_dim=32),
        text_config=hf.LlamaConfig(**TEXT),
        image_token_id=ids[IMAGE_TOKEN],
    )

    def processor(tokenizer: Any) -> Any:
        pictures = hf.CLIPImageProcessorPil(
            size={"shortest_edge": SIZE}, crop_size={"height": SIZE, "width": SIZE}
        )
        return hf.LlavaProcessor(image_processor=pictures, **_beside_pictures(tokenizer))

    return config, processor


def _llava_next(ids: dict[str, int]) -> Made:
    import transformers as hf

    config = hf.LlavaNextConfig(
        vision_config=hf.CLIPVisionConfig(**VISION, projection_dim=32),
        text_config=hf.MistralConfig(**TEXT, sliding_window=None),
        image_token_id=ids[IMAGE_TOKEN],
        image_grid_pinpoints=GRID,
    )

    def processor(tokenizer: Any) -> Any:
        pictures = hf.LlavaNextImageProcessorPil(
            size={"shortest_edge": SIZE},
            crop_size={"height": SIZE, "width": SIZE},
            image_grid_pinpoints=GRID,
        )
        return hf.LlavaNextProcessor(image_processor=pictures, **_beside_pictures(tokenizer))

    return config, processor


def _vipllava(ids: dict[str, int]) -> Made:
    import transformers as hf

    config = hf.VipLlavaConfig(
        vision_config=hf.CLIPVisionConfig(**VISION, projection_dim=32),
        text_config=hf.LlamaConfig(**TEXT),
        image_token_id=ids[IMAGE_TOKEN],
        vision_feature_layers=[-1, -2],
    )
    return config, _llava(ids)[1]


VIDEO_TOKEN = "<video>"


def _with_video(ids: dict[str, int]) -> dict[str, int]:
    return {"image_token_id": ids[IMAGE_TOKEN], "video_token_id": ids[VIDEO_TOKEN]}


def _llava_next_video(ids: dict[str, int]) -> Made:
    import transformers as hf

    config = hf.LlavaNextVideoConfig(
        vision_config=hf.CLIPVisionConfig(**VISION, projection_dim=32),
        text_config=hf.LlamaConfig(**TEXT),
        image_grid_pinpoints=GRID,
        **_with_video(ids),
    )

    def processor(tokenizer: Any) -> Any:
        made = processor_class("llava_next_video", "LlavaNextVideoProcessor")
        return made(
            image_processor=hf.LlavaNextImageProcessorPil(
                size={"shortest_edge": SIZE},
                crop_size={"height": SIZE, "width": SIZE},
                image_grid_pinpoints=GRID,
            ),
            tokenizer=tokenizer,
            patch_size=VISION["patch_size"],
            vision_feature_select_strategy="default",
            num_additional_image_tokens=1,
            chat_template=tokenizer.chat_template,
        )

    return config, processor


def _llava_onevision(ids: dict[str, int]) -> Made:
    import transformers as hf

    config = hf.LlavaOnevisionConfig(
        vision_config=hf.SiglipVisionConfig(**VISION),
        text_config=hf.Qwen2Config(**TEXT),
        image_grid_pinpoints=GRID,
        **_with_video(ids),
    )

    def processor(tokenizer: Any) -> Any:
        made = processor_class("llava_onevision", "LlavaOnevisionProcessor")
        pictures = hf.LlavaOnevisionImageProcessorPil(
            size={"height": SIZE, "width": SIZE}, image_grid_pinpoints=GRID
        )
        return made(
            image_processor=pictures,
            tokenizer=tokenizer,
            num_image_tokens=(SIZE // VISION["patch_size"]) ** 2,
            vision_feature_select_strategy="full",
            chat_template=tokenizer.chat_template,
        )

    return config, processor


LLAVA_FAMILIES: dict[str, tuple[tuple[str, ...], Callable[[dict[str, int]], Made]]] = {
    "LlavaForConditionalGeneration": ((IMAGE_TOKEN,), _llava),
    "LlavaNextForConditionalGeneration": ((IMAGE_TOKEN,), _llava_next),
    "LlavaNextVideoForConditionalGeneration": ((IMAGE_TOKEN, VIDEO_TOKEN), _llava_next_video),
    "LlavaOnevisionForConditionalGeneration": ((IMAGE_TOKEN, VIDEO_TOKEN), _llava_onevision),
    "VipLlavaForConditionalGeneration": ((IMAGE_TOKEN,), _vipllava),
}
"""Architecture -> its special tokens, the one for an image first, and what makes its config and
processor of their ids."""
