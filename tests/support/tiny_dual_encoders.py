"""Tiny checkpoints of CLIP, SigLIP and SigLIP 2 with real processors, and their vectors."""

from __future__ import annotations

import base64
import io
import string
from pathlib import Path
from typing import Any

import numpy as np
import torch

LENGTHS = {"clip": 24, "siglip": 16, "siglip2": 24}
FAMILIES = tuple(LENGTHS)
TEXT = {
    "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 2,
}  # fmt: skip
VISION = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "patch_size": 8,
}  # fmt: skip


def picture(width: int, height: int, seed: int = 0) -> Any:
    """Return an image of PIL with random pixels."""
    from PIL import Image

    pixels = np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def data_url(image: Any) -> str:
    """Return an image as a data: URL."""
    return f"data:image/png;base64,{base64_png(image)}"


def base64_png(image: Any) -> str:
    """Return an image as base64 of a PNG."""
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return base64.b64encode(buffer.getvalue()).decode()


def part(image: Any) -> dict[str, Any]:
    """Return an image as a part of a message."""
    return {"type": "image_url", "image_url": {"url": data_url(image)}}


def write_dual_encoder(folder: Path, family: str) -> tuple[Any, Any]:
    """Write a checkpoint; return transformers' model and its processor."""
    processor = _PROCESSORS[family]()
    size = len(processor.tokenizer)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        model = _model(family, size, processor.tokenizer)
        for parameter in model.parameters():
            if parameter.dim() > 1:
                torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return model.eval(), processor


def vector_of(model: Any, processor: Any, given: Any, length: int) -> np.ndarray:
    """Return transformers' vector of a text or an image, of length 1. Texts of SigLIP are padded to
    `length` without a mask, as its model card does."""
    with torch.inference_mode():
        if not isinstance(given, str):
            features = processor(images=[given], return_tensors="pt")
            found = model.get_image_features(**features).pooler_output[0]
        else:
            ids = processor.tokenizer(given)["input_ids"]
            if model.config.model_type != "clip":
                ids = ids + [processor.tokenizer.pad_token_id] * (length - len(ids))
            found = model.get_text_features(input_ids=torch.tensor([ids])).pooler_output[0]
    return (found / found.norm()).numpy()


def _model(family: str, size: int, tokenizer: Any) -> Any:
    import transformers

    text = TEXT | {
        "vocab_size": size, "max_position_embeddings": LENGTHS[family],
        "eos_token_id": tokenizer.eos_token_id, "pad_token_id": 1, "bos_token_id": 0,
    }  # fmt: skip
    if family == "clip":
        config: Any = transformers.CLIPConfig(
            text_config={**text, "projection_dim": 40},
            vision_config={**VISION, "image_size": 32},
            projection_dim=40,
        )
        return transformers.CLIPModel(config)
    text["projection_size"] = VISION["hidden_size"]
    if family == "siglip":
        config = transformers.SiglipConfig(
            text_config=text, vision_config={**VISION, "image_size": 32}
        )
        return transformers.SiglipModel(config)
    config = transformers.Siglip2Config(
        text_config=text, vision_config={**VISION, "num_patches": 16, "patch_size": 16}
    )
    return transformers.Siglip2Model(config)


def _clip() -> Any:
    from transformers import CLIPProcessor, CLIPTokenizer
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    letters = [*string.ascii_lowercase, *(f"{one}</w>" for one in string.ascii_lowercase)]
    merged = ["ca", "cat</w>", "th", "the</w>"]
    special = ["<|startoftext|>", "<|endoftext|>"]
    vocab = {one: at for at, one in enumerate([*letters, *merged, *special])}
    merges = [("c", "a"), ("ca", "t</w>"), ("t", "h"), ("th", "e</w>")]
    tokenizer = CLIPTokenizer(vocab=vocab, merges=merges)
    images = CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size=32)
    return CLIPProcessor(image_processor=images, tokenizer=tokenizer)


def _siglip() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast, SiglipProcessor
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

    words = ["<unk>", "</s>", "a", "photo", "of", "the", "cat", "dog"]
    backend = Tokenizer(models.WordLevel({one: at for at, one in enumerate(words)}, "<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="</s>", pad_token="</s>", unk_token="<unk>"
    )
    images = SiglipImageProcessorPil(size={"height": 32, "width": 32})
    return SiglipProcessor(image_processor=images, tokenizer=tokenizer)


def _siglip2() -> Any:
    from transformers import Siglip2Processor, Siglip2Tokenizer
    from transformers.models.siglip2.image_processing_pil_siglip2 import Siglip2ImageProcessorPil

    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    vocab = {one: at for at, one in enumerate([*special, "▁", *string.ascii_lowercase])}
    images = Siglip2ImageProcessorPil()
    return Siglip2Processor(image_processor=images, tokenizer=Siglip2Tokenizer(vocab, merges=[]))


_PROCESSORS = {"clip": _clip, "siglip": _siglip, "siglip2": _siglip2}
