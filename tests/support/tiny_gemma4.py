"""Random checkpoints of Gemma 4 with images and sound: small, with per-layer inputs and shared
caches, or large, with images that are seen both ways."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dovetail.multimodal.processors import processor_class
from support.tiny_llava import TEXT, Made

TOKENS = ("<|image|>", "<|image>", "<image|>", "<|audio|>", "<|audio>", "<audio|>")
NAMES = ("image_token", "boi_token", "eoi_token", "audio_token", "boa_token", "eoa_token")
"""What the tokenizer calls them."""
_KINDS = ["sliding_attention", "full_attention"] * 2
_TEXT: dict[str, Any] = {
    **TEXT,
    "pad_token_id": 0,
    "num_hidden_layers": 4,
    "layer_types": _KINDS,
    "head_dim": 8,
    "global_head_dim": 16,
    "sliding_window": 12,
    "vocab_size_per_layer_input": TEXT["vocab_size"],
    "hidden_size_per_layer_input": 8,
    "final_logit_softcapping": 30.0,
}
_SMALL = {**_TEXT, "num_kv_shared_layers": 2, "use_double_wide_mlp": True}
_LARGE = {
    **_TEXT,
    "hidden_size_per_layer_input": 0,
    "use_bidirectional_attention": "vision",
    "attention_k_eq_v": True,
    "num_global_key_value_heads": 1,
    "enable_moe_block": True,
    "num_experts": 4,
    "top_k_experts": 2,
    "moe_intermediate_size": 16,
}
_VISION: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 8,
    "patch_size": 8,
    "position_embedding_size": 64,
    "pooling_kernel_size": 3,
}
_AUDIO: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "subsampling_conv_channels": [16, 8],
    "output_proj_dims": 24,
}
_MEL_BINS = 16


def limit(model: Any) -> None:
    """Give the limits of matrices, if there are any, values that matter. Mutates: model"""
    for name, buffer in model.named_buffers():
        if name.endswith((".input_min", ".output_min")):
            buffer.fill_(-0.9)
        elif name.endswith((".input_max", ".output_max")):
            buffer.fill_(1.1)


def small(ids: dict[str, int]) -> Made:
    """Return a config with both encoders, and what makes its processor."""
    clipped = {"use_clipped_linears": True}
    return _made(ids, _SMALL, vision_config={**_VISION, **clipped}, audio_config=_AUDIO)


def large(ids: dict[str, int]) -> Made:
    """Return a config with an encoder of images alone, and what makes its processor."""
    return _made(ids, _LARGE, vision_config={**_VISION, "standardize": True})


def _made(ids: dict[str, int], text: dict[str, Any], **encoders: Any) -> Made:
    import transformers as hf

    fields = ("image_token_id", "boi_token_id", "eoi_token_id", "audio_token_id", "boa_token_id")
    named = dict(zip((*fields, "eoa_token_index"), (ids[token] for token in TOKENS), strict=True))
    config = hf.Gemma4Config(
        text_config=text, video_token_id=text["vocab_size"] + 1, **named, **encoders
    )
    return config, _processor


def _processor(tokenizer: Any) -> Any:
    from transformers.models.gemma4 import feature_extraction_gemma4, image_processing_pil_gemma4

    pictures = image_processing_pil_gemma4.Gemma4ImageProcessorPil(
        patch_size=_VISION["patch_size"], max_soft_tokens=70
    )
    made: Callable[..., Any] = processor_class("gemma4", "Gemma4Processor")
    return made(
        feature_extraction_gemma4.Gemma4AudioFeatureExtractor(feature_size=_MEL_BINS),
        pictures,
        tokenizer,
        None,
        chat_template=tokenizer.chat_template,
    )
