"""Random checkpoints of MiniMax M3: patches merged after an encoder with axial positions, before a
text model that picks blocks."""

from __future__ import annotations

from typing import Any

from dovetail.multimodal.processors import processor_class
from dovetail_testing.tiny.families import FAMILIES
from support.tiny_llava import TEXT, Made

TOKENS = ("]<]image[>[", "]<]video[>[", "]<]start of image[>[", "]<]end of image[>[")
_MODEL_TYPE, _FIELDS = FAMILIES["MiniMaxM3VLForCausalLM"]


def made(ids: dict[str, int]) -> Made:
    """Return a config, and what makes its processor."""
    import transformers as hf

    text = {**TEXT, **_FIELDS, "index_block_size": 16, "index_topk_blocks": 1}
    config = hf.MiniMaxM3VLConfig(
        text_config={**text, "model_type": _MODEL_TYPE},
        vision_config={
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "patch_size": 8,
            "image_size": 48,
        },
        image_token_index=ids[TOKENS[0]],
        video_token_index=ids[TOKENS[1]],
    )
    return config, _processor


def _processor(tokenizer: Any) -> Any:
    import transformers as hf

    pictures = hf.Qwen2VLImageProcessorPil(
        patch_size=8, merge_size=2, min_pixels=16 * 16, max_pixels=48 * 48
    )
    maker = processor_class("minimax_m3_vl", "MiniMaxM3VLProcessor")
    return maker(pictures, tokenizer, chat_template=tokenizer.chat_template)
