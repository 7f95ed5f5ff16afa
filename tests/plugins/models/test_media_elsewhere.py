"""A model with images whose processor is missing: its text is served, and images are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from dovetail import LLM, SamplingParams
from dovetail.errors import RequestError
from dovetail_testing.tiny.models import write_tiny_tokenizer
from support.tiny_llava import TEXT, VISION

PIL = pytest.importorskip("PIL.Image", reason="Pillow is not installed")


def write_paligemma(folder: Path) -> None:
    """Write a checkpoint without the processor of its images."""
    import transformers as hf

    vision, text = hf.SiglipVisionConfig(**VISION), hf.GemmaConfig(**TEXT, head_dim=8)
    config = hf.PaliGemmaConfig(vision_config=vision, text_config=text, projection_dim=32)
    hf.PaliGemmaForConditionalGeneration(config).save_pretrained(folder)
    write_tiny_tokenizer(folder)


def test_images_are_refused_with_a_sentence(tmp_path: Path) -> None:
    write_paligemma(tmp_path)
    picture = PIL.new("RGB", (32, 32))
    with LLM(model=str(tmp_path), dtype="float32", max_model_len=100) as llm:
        with pytest.raises(RequestError, match="takes no images") as told:
            llm.generate([{"prompt": "x", "multi_modal_data": {"image": picture}}])
        assert told.value.fix and "serve a model that takes media" in told.value.fix
        params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
        (text,) = llm.generate(["the quick brown fox"], params, use_tqdm=False)
        assert len(text.outputs[0].token_ids) == 4
