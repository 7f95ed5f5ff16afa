"""Adapters of models that take media equal PEFT's, named by a request or chosen by its media."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail import LLM, LoRARequest, SamplingParams
from dovetail.errors import ConfigError, RequestError
from dovetail.multimodal.processors import load_processor
from support.peft_adapters import made
from support.tiny_media import MEDIA_FAMILIES, write_media_checkpoint

PIL = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
GREEDY = SamplingParams(temperature=0.0, max_tokens=8, min_tokens=8)
"""Neither side may draw the token that ends a text."""
SMALL = {
    "dtype": "float32", "num_gpu_blocks_override": 60, "block_size": 16, "max_model_len": 400,
    "use_tqdm_on_load": False, "enable_lora": True, "max_loras": 2,
}  # fmt: skip
TEXT_MODEL = r"model\.(language|text)_model\..*\.(q_proj|v_proj|down_proj)"
TOWER = r".*(vision|visual).*\.(q_proj|fc1|qkv|gate_proj)"


@pytest.fixture(scope="module")
def picture() -> Any:
    rng = np.random.default_rng(0)
    return PIL.fromarray(rng.integers(0, 255, (40, 50, 3), dtype=np.uint8))


def drawn(model: Any, processor: Any, text: str, images: list[Any]) -> list[int]:
    """Return what transformers, or PEFT, draws after a prompt."""
    inputs = processor(text=[text], images=images or None, return_tensors="pt")
    found = model.generate(**inputs, max_new_tokens=8, min_new_tokens=8, do_sample=False)
    ids: list[int] = found[0, inputs["input_ids"].shape[1] :].tolist()
    return ids


def base_model(folder: Path) -> Any:
    import torch
    import transformers

    auto = transformers.AutoModelForImageTextToText
    return auto.from_pretrained(folder, dtype=torch.float32)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("family", sorted(MEDIA_FAMILIES))
def test_media_choose_an_adapter(family: str, tmp_path: Path, picture: Any) -> None:
    import peft

    folder = write_media_checkpoint(tmp_path / "base", family)
    base, processor = base_model(folder), load_processor(folder, "")
    config = peft.LoraConfig(r=4, lora_alpha=32, target_modules=TEXT_MODEL)
    tuned, other = (made(base, config, tmp_path / name, seed=i) for i, name in enumerate("ab"))
    seen, plain = f"look {processor.image_token} what is it?", "the quick brown fox"
    wanted = [drawn(model, processor, seen, [picture]) for model in (tuned, other, base)]
    wanted += [drawn(model, processor, plain, []) for model in (base, other)]
    assert len(set(map(tuple, wanted[:3]))) == 3, "the adapters change too little"
    image = {"prompt": seen, "multi_modal_data": {"image": [picture]}}
    named = LoRARequest("b", 1, str(tmp_path / "b"))
    with LLM(str(folder), default_mm_loras={"image": str(tmp_path / "a")}, **SMALL) as llm:
        asked = [image, image, plain, plain]
        loras = [None, named, None, named]
        found = llm.generate(asked, GREEDY, use_tqdm=False, lora_request=loras)
        assert [source.name for source in llm.adapters()] == ["image", "b"]
    tokens = [list(result.outputs[0].token_ids) for result in found]
    assert tokens == [wanted[0], wanted[1], wanted[3], wanted[4]]


def test_what_sees_is_not_changed(tmp_path: Path) -> None:
    """The encoder of media runs apart from the rows, and what it makes is kept for all of them."""
    import peft

    folder = write_media_checkpoint(tmp_path / "base", "LlavaForConditionalGeneration")
    made(base_model(folder), peft.LoraConfig(r=4, target_modules=TOWER), tmp_path / "tower")
    with LLM(str(folder), **SMALL) as llm, pytest.raises(RequestError) as caught:
        llm.load_adapter("tower", str(tmp_path / "tower"))
    assert "encoder of media" in caught.value.what and "vision_tower" in caught.value.what


@pytest.mark.parametrize(
    ("given", "where", "text"),
    [
        ({"audio": "x"}, "--default-mm-loras", 'no media of the kind "audio", only image'),
        ({"image": ""}, "--default-mm-loras image", "is not the path"),
        ({"image": "/no/such/folder"}, "--default-mm-loras image", "/no/such/folder"),
    ],
)
def test_what_cannot_be_is_refused(
    tmp_path: Path, given: dict[str, Any], where: str, text: str
) -> None:
    folder = write_media_checkpoint(tmp_path / "base", "LlavaForConditionalGeneration")
    with pytest.raises(ConfigError) as caught:
        LLM(str(folder), default_mm_loras=given, **SMALL)
    assert caught.value.where == where and text in str(caught.value)
