"""Models that take media against transformers: greedy text of prompts with images."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail import LLM, SamplingParams
from dovetail.errors import ConfigError
from dovetail.multimodal.processors import load_processor
from support.tiny_media import MEDIA_FAMILIES, write_media_checkpoint

PIL = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
FEW_BLOCKS = {"num_gpu_blocks_override": 60, "block_size": 16, "max_model_len": 400}
UNLIKE = [
    "Gemma3ForConditionalGeneration",
    "LlavaForConditionalGeneration",
    "Qwen3VLForConditionalGeneration",
]
"""Families that ask different things of attention and of a step."""


def picture(seed: int) -> Any:
    rng = np.random.default_rng(seed)
    return PIL.fromarray(rng.integers(0, 255, (40, 50, 3), dtype=np.uint8))


def text_before_the_picture(folder: Path, ids: list[int]) -> int:
    """Return how many tokens of a prompt stand before its first image."""
    processor = load_processor(folder, "")
    place = processor.tokenizer.convert_tokens_to_ids(processor.image_token)
    return ids.index(place)


@pytest.fixture(scope="module", params=sorted(MEDIA_FAMILIES))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_media_checkpoint(tmp_path_factory.mktemp("media"), request.param)


@pytest.fixture(scope="module")
def scenes(folder: Path) -> list[tuple[dict[str, Any], list[int]]]:
    """Return prompts with the greedy tokens that transformers draws after them."""
    import torch
    import transformers

    processor = load_processor(folder, "")
    auto = transformers.AutoModelForImageTextToText
    model = auto.from_pretrained(folder, dtype=torch.float32)
    model.generation_config.eos_token_id = None
    place = processor.image_token
    one, other, third = picture(0), picture(1), picture(2)
    prompts = [
        (f"look {place} what is it?", [one]),
        (f"{place} and {place} compare", [other, third]),
        ("the quick brown fox", []),
        (f"again {place} now", [one]),
    ]
    found = []
    for text, images in prompts:
        inputs = processor(text=[text], images=images or None, return_tensors="pt")
        drawn = model.generate(**inputs, max_new_tokens=8, do_sample=False)
        start = inputs["input_ids"].shape[1]
        prompt = {"prompt": text, "multi_modal_data": {"image": images}} if images else text
        found.append((prompt, drawn[0, start:].tolist()))
    return found


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(model=str(folder), dtype="float32", use_tqdm_on_load=False, **FEW_BLOCKS) as made:
        yield made


def verify(llm: LLM, scenes: list[tuple[dict[str, Any], list[int]]]) -> None:
    """Check what is drawn of all prompts at once, and of each alone."""
    prompts, wanted = [prompt for prompt, _ in scenes], [tokens for _, tokens in scenes]
    together = llm.generate(prompts, GREEDY, use_tqdm=False)
    alone = [llm.generate([prompt], GREEDY, use_tqdm=False)[0] for prompt in prompts]
    assert [list(one.outputs[0].token_ids) for one in together] == wanted
    assert [list(one.outputs[0].token_ids) for one in alone] == wanted


def test_greedy_text_is_that_of_transformers(llm: LLM, scenes: Any) -> None:
    verify(llm, scenes)


@pytest.mark.sampled(every=3)
def test_greedy_text_in_pieces(folder: Path, scenes: Any) -> None:
    """A step has less than a prompt, and, where images are computed whole, one of them."""
    config = json.loads((folder / "config.json").read_text())
    is_whole = config["text_config"].get("use_bidirectional_attention") == "vision"
    small = {"max_num_batched_tokens": 72 if is_whole else 16, "max_num_seqs": 4}
    with LLM(model=str(folder), dtype="float32", **FEW_BLOCKS, **small) as llm:
        verify(llm, scenes)


@pytest.mark.parametrize("folder", UNLIKE, indirect=True)
def test_greedy_text_by_torch_and_without_a_prefix_cache(folder: Path, scenes: Any) -> None:
    plain = {"attention_backend": "torch_sdpa", "enforce_eager": True}
    plain |= {"enable_prefix_caching": False}
    with LLM(model=str(folder), dtype="float32", **FEW_BLOCKS, **plain) as llm:
        verify(llm, scenes)


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.parametrize(
    ("family", "ways"),
    [
        ("LlavaForConditionalGeneration", ["tensor"]),
        ("Idefics3ForConditionalGeneration", ["pipeline"]),
        ("Qwen3VLMoeForConditionalGeneration", ["tensor", "pipeline"]),
    ],
    ids=["plain", "other-names", "deep"],
)
def test_two_ranks_see_what_one_sees(family: str, ways: list[str], tmp_path: Path) -> None:
    """Pictures in pieces of a prompt, a prefix hit, and no picture, with logprobs. Ranks divide
    layers, or are stages, whose layers may both take deep vectors."""
    folder = write_media_checkpoint(tmp_path, family)
    place = load_processor(folder, "").image_token
    prompt = {
        "prompt": f"look {place} what is it that you see here",
        "multi_modal_data": {"image": [picture(0)]},
    }
    asked = [prompt, "the quick brown fox", prompt]
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, logprobs=2)
    flags = {"max_num_batched_tokens": 16, "max_num_seqs": 4, **FEW_BLOCKS}
    told = []
    for sizes in ({}, *({f"{way}_parallel_size": 2} for way in ways)):
        with LLM(model=str(folder), dtype="float32", **flags, **sizes) as llm:
            told.append([*llm.generate(asked, params), *llm.generate([prompt], params)])
    assert {results[-1].num_cached_tokens > 0 for results in told} == {True}
    for alone, *divided in zip(*told, strict=True):
        (one,) = alone.outputs
        for (other,) in (result.outputs for result in divided):
            assert one.token_ids == other.token_ids
            for mine, theirs in zip(one.logprobs, other.logprobs, strict=True):
                assert theirs.top_logprobs == pytest.approx(mine.top_logprobs, abs=2e-4)


def likely(result: Any) -> list[float]:
    """Return the logprobs of an answer's likeliest tokens."""
    return [entry.top_logprobs[0] for entry in result.outputs[0].logprobs]


@pytest.mark.sampled(every=3)
def test_another_picture_is_another_prefix(llm: LLM, folder: Path) -> None:
    text = f"words of its own: {load_processor(folder, '').image_token} what is it?"
    prompt = {"prompt": text, "multi_modal_data": {"image": [picture(20)]}}
    wish = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, logprobs=1)
    first = llm.generate([prompt], wish, use_tqdm=False)[0]
    again = llm.generate([prompt], wish, use_tqdm=False)[0]
    other = {**prompt, "multi_modal_data": {"image": [picture(7)]}}
    changed = llm.generate([other], wish, use_tqdm=False)[0]
    assert first.num_cached_tokens == 0
    assert again.num_cached_tokens and again.num_cached_tokens >= 16
    assert changed.num_cached_tokens <= text_before_the_picture(folder, first.prompt_token_ids)
    assert list(again.outputs[0].token_ids) == list(first.outputs[0].token_ids)
    assert likely(again) == pytest.approx(likely(first), abs=2e-4)
    assert likely(changed) != pytest.approx(likely(first), abs=2e-4)


def test_places_and_pictures_must_agree(llm: LLM, scenes: Any) -> None:
    from dovetail.errors import RequestError

    image = {"image": [picture(0)]}
    for text in ("no place at all", scenes[1][0]["prompt"]):
        with pytest.raises(RequestError, match="places"):
            llm.generate([{"prompt": text, "multi_modal_data": image}], GREEDY)
    with pytest.raises(RequestError, match="audio"):
        sound = {"audio": [np.zeros(100, dtype=np.float32)]}
        llm.generate([{"prompt": "listen", "multi_modal_data": sound}], GREEDY)


def test_images_wider_than_a_window_are_refused(tmp_path: Path) -> None:
    """Their tokens would not all see each other; text has no such bound."""
    folder = write_media_checkpoint(tmp_path, "Gemma3ForConditionalGeneration", sliding_window=3)
    settings: dict[str, Any] = {"dtype": "float32", "use_tqdm_on_load": False, **FEW_BLOCKS}
    with pytest.raises(ConfigError, match="an image of 4 vectors does not fit into the window of"):
        LLM(str(folder), **settings)
    with LLM(str(folder), limit_mm_per_prompt={"image": 0}, **settings) as llm:
        assert llm.generate("the quick brown fox", GREEDY)[0].outputs[0].token_ids


@pytest.mark.parametrize(
    "family", ["LlavaForConditionalGeneration", "Gemma3ForConditionalGeneration"]
)
def test_names_that_published_checkpoints_have(family: str, tmp_path: Path) -> None:
    """They were written when an encoder's names began with a word more."""
    from safetensors.torch import load_file, save_file

    from dovetail.config.config import Config
    from dovetail.config.resolve import resolve
    from dovetail_plugins.inspect import trial

    file = write_media_checkpoint(tmp_path, family) / "model.safetensors"
    old, new = "vision_tower.", "vision_tower.vision_model."
    save_file({name.replace(old, new): one for name, one in load_file(file).items()}, file)
    run = resolve(Config.from_fields({"model": str(tmp_path), **FEW_BLOCKS})).run
    assert trial.tried(run).what == ""
