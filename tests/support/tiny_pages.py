"""Tiny checkpoints of ColPali, ColQwen2, ColQwen2.5 and ColModernVBERT with real processors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from dovetail.multimodal.processors import processor_class
from dovetail_testing.tiny.models import randomize
from support.tiny_llava import TEXT
from support.tiny_media import (
    MEDIA_FAMILIES,
    QWEN,
    media_tokenizer,
)

FAMILIES = ("colqwen2", "colqwen2_5", "colpali", "colmodernvbert")
TILES = ("<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>")


def write_pages(folder: Path, family: str) -> tuple[Any, Any]:
    """Write a checkpoint; return transformers' model and its processor."""
    config, model_class, processor = _MADE[family](folder)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        model = model_class(config)
    randomize(model, seed=11)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return model.eval(), processor


def page_vectors(model: Any, processor: Any, given: Any) -> np.ndarray:
    """Return transformers' vectors of a query or a page. Shapes: [n, O]"""
    if isinstance(given, str):
        features = processor.process_queries(text=[given])
    else:
        features = processor.process_images(images=[given])
    features.pop("labels", None)
    with torch.inference_mode():
        return model(**features).embeddings[0].float().numpy()


def _colqwen2(folder: Path, base: str = "Qwen2VLForConditionalGeneration") -> Any:
    import transformers as hf

    tokenizer = media_tokenizer(folder, (*QWEN, "<|im_start|>", "<|im_end|>", "<|endoftext|>"))
    ids = {name: tokenizer.convert_tokens_to_ids(name) for name in QWEN}
    vlm, _ = MEDIA_FAMILIES[base][1](ids)
    config = hf.ColQwen2Config(vlm_config=vlm.to_dict(), embedding_dim=24)
    pictures = hf.Qwen2VLImageProcessorPil(
        patch_size=8, merge_size=2, min_pixels=16 * 16, max_pixels=48 * 48
    )
    made = processor_class("colqwen2", "ColQwen2Processor")(pictures, tokenizer)
    return config, hf.ColQwen2ForRetrieval, made


def _colqwen2_5(folder: Path) -> Any:
    return _colqwen2(folder, "Qwen2_5_VLForConditionalGeneration")


def _colpali(folder: Path) -> Any:
    import transformers as hf

    tokenizer = media_tokenizer(folder, ("<image>",))
    vision = {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "image_size": 32, "patch_size": 8, "projection_dim": 32,
    }  # fmt: skip
    pictures = hf.SiglipImageProcessorPil(size={"height": 32, "width": 32})
    pictures.image_seq_length = 16
    made = processor_class("colpali", "ColPaliProcessor")(pictures, tokenizer)
    text = {**TEXT, "model_type": "gemma", "head_dim": 8, "vocab_size": len(tokenizer)}
    vlm = hf.PaliGemmaConfig(
        vision_config=vision, text_config=text, projection_dim=32,
        image_token_id=made.image_token_id,
    )  # fmt: skip
    config = hf.ColPaliConfig(vlm_config=vlm.to_dict(), embedding_dim=24)
    return config, hf.ColPaliForRetrieval, made


def _colmodernvbert(folder: Path) -> Any:
    import transformers as hf

    tokenizer = media_tokenizer(folder, TILES)
    pictures = hf.Idefics3ImageProcessorPil(
        size={"longest_edge": 64}, max_image_size={"longest_edge": 32}
    )
    made = processor_class("colmodernvbert", "ColModernVBertProcessor")(
        pictures, tokenizer, image_seq_len=4
    )
    text = {
        "model_type": "modernbert", "hidden_size": 32, "intermediate_size": 48,
        "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": len(tokenizer),
        "max_position_embeddings": 512, "local_attention": 16, "global_attn_every_n_layers": 2,
        "pad_token_id": tokenizer.pad_token_id, "bos_token_id": 0, "eos_token_id": 1,
        "cls_token_id": 0, "sep_token_id": 1,
    }  # fmt: skip
    vision = {
        "model_type": "siglip_vision_model", "hidden_size": 32, "intermediate_size": 48,
        "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 32, "patch_size": 8,
    }  # fmt: skip
    vlm = hf.ModernVBertConfig(
        text_config=text, vision_config=vision, pixel_shuffle_factor=2,
        image_token_id=made.image_token_id,
    )  # fmt: skip
    config = hf.ColModernVBertConfig(vlm_config=vlm.to_dict(), embedding_dim=24)
    return config, hf.ColModernVBertForRetrieval, made


_MADE = {
    "colqwen2": _colqwen2,
    "colqwen2_5": _colqwen2_5,
    "colpali": _colpali,
    "colmodernvbert": _colmodernvbert,
}
