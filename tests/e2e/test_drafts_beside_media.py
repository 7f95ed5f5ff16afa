"""Drafts beside pictures change no answer: a drafter that is blind only guesses worse."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail import SamplingParams
from support.drafts import Engine, assert_same
from support.inside import core_of
from support.tiny_media import write_media_checkpoint

PIL = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
pytest.importorskip("dovetail_plugins")

FAMILIES = {
    "LlavaForConditionalGeneration": "<image>",
    "Qwen2VLForConditionalGeneration": "<|vision_start|><|image_pad|><|vision_end|>",
}
"""Families, the second of which tells its layers other positions than the tokens' places."""
FLAGS: dict[str, Any] = {"max_model_len": 160, "max_num_batched_tokens": 24}
LETTERS = {"allowed_token_ids": [40, 41, 42]}
WISHES = (
    {"temperature": 0.0},
    {"temperature": 0.0, **LETTERS},
    {"seed": 3, "temperature": 1.0, **LETTERS},
    {"temperature": 0.0},
    {"temperature": 0.0, "repetition_penalty": 1.2, "logprobs": 1},
)


def text_part(folder: Path, target: Path) -> Path:
    """Write the model's language model as a checkpoint of its own, which sees no picture."""
    import torch
    import transformers

    whole = transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
    settings = whole.config.get_text_config()
    is_llama = settings.model_type == "llama"
    made = transformers.LlamaForCausalLM if is_llama else transformers.Qwen2ForCausalLM
    kind = transformers.LlamaConfig if is_llama else transformers.Qwen2Config
    names = ("rope_parameters", "model_type", "architectures", "layer_types")
    kept = {k: v for k, v in settings.to_dict().items() if k not in names}
    text = made(kind(**kept))
    text.model.load_state_dict(whole.model.language_model.state_dict())
    text.lm_head.load_state_dict(whole.lm_head.state_dict())
    text.save_pretrained(target)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(folder / name, target / name)
    return target


def prompts(place: str) -> list[Any]:
    """Return prompts with one, two and no pictures."""
    rng = np.random.default_rng(1)
    seen = [PIL.fromarray(rng.integers(0, 255, (40, 50, 3), dtype=np.uint8)) for _ in range(2)]
    return [
        {"prompt": f"look {place} what is it?", "multi_modal_data": {"image": seen[:1]}},
        {"prompt": f"{place} and {place} now", "multi_modal_data": {"image": seen}},
        {"prompt": f"again {place}", "multi_modal_data": {"image": seen[1:]}},
        "the quick brown fox",
        {"prompt": f"{place} one two one two", "multi_modal_data": {"image": seen[:1]}},
    ]


@pytest.mark.parametrize("family", FAMILIES)
def test_answers_about_pictures_are_the_same(family: str, tmp_path: Path) -> None:
    folder = write_media_checkpoint(tmp_path / "model", family)
    asked = prompts(FAMILIES[family])
    params = [SamplingParams(max_tokens=20, ignore_eos=True, **wish) for wish in WISHES]
    engine = Engine(folder, **FLAGS)
    with engine.llm:
        plain = engine.answers(params, asked)
    blind = str(text_part(folder, tmp_path / "text"))
    for draft in ({"method": "ngram"}, {"method": "draft_model", "model": blind}):
        speculation = {**draft, "num_speculative_tokens": 3}
        engine = Engine(folder, speculative_config=speculation, **FLAGS)
        with engine.llm:
            for _ in range(2):  # the second time pictures come from the prefix cache
                assert_same(engine.answers(params, asked), plain)
            core_of(engine.llm).check_idle()
        assert engine.count("draft_tokens") > engine.count("accepted_tokens") > 0, draft
        assert engine.count("prefix_hit_tokens") > 0
