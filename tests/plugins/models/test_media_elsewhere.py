"""Models with images that only transformers has: their text is served where it can be, and
images are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dovetail import LLM, SamplingParams
from dovetail.errors import ConfigError, RequestError
from dovetail.testing.tiny_models import write_tiny_tokenizer
from support.tiny_llava import TEXT, VISION

PIL = pytest.importorskip("PIL.Image", reason="Pillow is not installed")


def config_of(name: str) -> Any:
    import transformers as hf

    vision = hf.SiglipVisionConfig(**VISION)
    if name == "AyaVision":
        text = hf.Cohere2Config(**TEXT, sliding_window=64)
        return hf.AyaVisionConfig(vision_config=vision, text_config=text)
    text = hf.GemmaConfig(**TEXT, head_dim=8)
    return hf.PaliGemmaConfig(vision_config=vision, text_config=text, projection_dim=32)


def write(name: str, folder: Path) -> None:
    import transformers

    made = getattr(transformers, f"{name}ForConditionalGeneration")(config_of(name))
    made.save_pretrained(folder)
    write_tiny_tokenizer(folder)


def test_a_model_whose_text_part_alone_is_another(tmp_path: Path) -> None:
    write("AyaVision", tmp_path)
    with pytest.raises(ConfigError, match="does more than multiply"):
        LLM(model=str(tmp_path), dtype="float32", max_model_len=100)


def test_images_are_refused_with_a_sentence(tmp_path: Path) -> None:
    write("PaliGemma", tmp_path)
    picture = PIL.new("RGB", (32, 32))
    with LLM(model=str(tmp_path), dtype="float32", max_model_len=100) as llm:
        with pytest.raises(RequestError, match="takes no images") as told:
            llm.generate([{"prompt": "x", "multi_modal_data": {"image": picture}}])
        assert told.value.fix and "serve a model that takes media" in told.value.fix
        params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
        (text,) = llm.generate(["the quick brown fox"], params, use_tqdm=False)
        assert len(text.outputs[0].token_ids) == 4
