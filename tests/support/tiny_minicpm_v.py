"""Random checkpoints of MiniCPM-V 4.6: SigLIP's patches, merged by windows inside the encoder and
once more after it, before Qwen3.5."""

from __future__ import annotations

from typing import Any

from dovetail.multimodal.processors import processor_class
from support.tiny_llava import TEXT, VISION, Made

TOKENS = (
    *("<|image_pad|>", "<|video_pad|>", "<image>", "</image>"),
    *("<slice>", "</slice>", "<image_id>", "</image_id>"),
)
NAMES = (
    *("image_token", "video_token", "image_start_token", "image_end_token"),
    *("slice_start_token", "slice_end_token", "image_id_start_token", "image_id_end_token"),
)
"""What the tokenizer calls them."""
_TEXT: dict[str, Any] = {
    **TEXT,
    "model_type": "qwen3_5_text",
    "head_dim": 16,
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e4,
        "mrope_section": [2, 1, 1],
        "mrope_interleaved": True,
        "partial_rotary_factor": 0.5,
    },
}
_PATCH = 4
_SLICE = 32


def made(ids: dict[str, int]) -> Made:
    """Return a config, and what makes its processor. An image of 40 x 50 has slices."""
    import transformers as hf

    vision = {**VISION, "patch_size": _PATCH, "image_size": 64, "num_hidden_layers": 3}
    config = hf.MiniCPMV4_6Config(
        text_config=_TEXT,
        vision_config={**vision, "model_type": "minicpmv4_6_vision"},
        insert_layer_id=1,
        image_size=64,
        image_token_id=ids[TOKENS[0]],
        video_token_id=ids[TOKENS[1]],
    )
    return config, _processor


def _processor(tokenizer: Any) -> Any:
    from transformers.models.minicpmv4_6 import image_processing_pil_minicpmv4_6 as module

    pictures = module.MiniCPMV4_6ImageProcessorPil(scale_resolution=_SLICE, patch_size=_PATCH)
    maker = processor_class("minicpmv4_6", "MiniCPMV4_6Processor")
    return maker(pictures, None, tokenizer, chat_template=tokenizer.chat_template)
