"""Models that hear against transformers: greedy text of prompts with sounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail import LLM, SamplingParams
from dovetail.errors import RequestError
from dovetail.multimodal.processors import load_processor
from support.tiny_media import SOUND_FAMILIES, write_media_checkpoint

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
RATE_HZ = 16000


def sound(seed: int, seconds: float) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(seed)
    times = np.arange(int(seconds * RATE_HZ)) / RATE_HZ
    tones = np.sin(2 * np.pi * rng.integers(200, 3000) * times)
    return (0.5 * tones + 0.1 * rng.normal(size=len(times))).astype(np.float32)


@pytest.fixture(scope="module", params=[*sorted(SOUND_FAMILIES), "Gemma4ForConditionalGeneration"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_media_checkpoint(tmp_path_factory.mktemp("sound"), request.param)


@pytest.fixture(scope="module")
def scenes(folder: Path) -> list[tuple[Any, list[int]]]:
    """Return prompts with the greedy tokens that transformers draws after them."""
    import torch
    import transformers

    processor = load_processor(folder, "")
    model = transformers.AutoModelForMultimodalLM.from_pretrained(folder, dtype=torch.float32)
    model.generation_config.eos_token_id = None
    place = processor.audio_token
    short, long, other = sound(0, 0.4), sound(1, 0.95), sound(2, 0.6)
    found: list[tuple[Any, list[int]]] = []
    for text, sounds in [
        (f"hear {place} what is it?", [short]),
        (f"{place} and {place} compare", [long, other]),
        ("the quick brown fox", []),
        (f"again {place} now", [short]),
    ]:
        more = {"audio": sounds, "sampling_rate": RATE_HZ} if sounds else {}
        inputs = processor(text=[text], return_tensors="pt", **more)
        inputs.pop("num_audio_tokens", None)
        drawn = model.generate(**inputs, max_new_tokens=8, do_sample=False)
        prompt = {"prompt": text, "multi_modal_data": {"audio": sounds}} if sounds else text
        found.append((prompt, drawn[0, inputs["input_ids"].shape[1] :].tolist()))
    return found


FLAGS: dict[str, Any] = {"dtype": "float32", "max_model_len": 200}


def test_greedy_text_is_that_of_transformers(folder: Path, scenes: Any) -> None:
    """Together and alone, whole and in pieces."""
    wanted = [tokens for _, tokens in scenes]
    for settings in ({}, {"max_num_batched_tokens": 16, "max_num_seqs": 4}):
        with LLM(model=str(folder), **FLAGS, **settings) as llm:
            told = llm.generate([prompt for prompt, _ in scenes], GREEDY, use_tqdm=False)
            assert [list(one.outputs[0].token_ids) for one in told] == wanted
            alone = [llm.generate([prompt], GREEDY, use_tqdm=False)[0] for prompt, _ in scenes]
            assert [list(one.outputs[0].token_ids) for one in alone] == wanted


def test_another_rate_is_heard_as_the_models_own(folder: Path) -> None:
    """A tone at 48 kHz becomes nearly the same features as at 16 kHz; without its rate it does
    not."""
    from dovetail.config.config import Config
    from dovetail.config.resolve import resolve
    from dovetail.interfaces.data.media import tensor_of
    from dovetail.multimodal.reader import MediaReader

    spec = resolve(Config.from_fields({"model": str(folder), "max_model_len": 200}))
    assert spec.media is not None
    reader = MediaReader(spec.run.model, spec.media)

    def heard(content: Any) -> np.ndarray[Any, Any]:
        read = reader.read("audio", str(id(content)), lambda: content, {})
        features = {one.name: tensor_of(one) for one in read.features}
        return np.asarray(features["input_features"][0, :, 4:30])

    times = np.arange(48000) / 48000
    fine = np.sin(2 * np.pi * 440 * times[: 48000 // 2]).astype(np.float32)
    coarse = fine[::3].copy()
    usual = heard((coarse, RATE_HZ))
    assert np.abs(heard((fine, 48000)) - usual).mean() < 0.1
    assert np.abs(heard(fine[: len(coarse)]) - usual).mean() > 0.3


def test_what_is_no_sound(folder: Path) -> None:
    with LLM(model=str(folder), **FLAGS) as llm:
        place = load_processor(folder, "").audio_token
        for wrong in (np.zeros((2, 100), dtype=np.float32), np.zeros(0, dtype=np.float32)):
            prompt = {"prompt": place, "multi_modal_data": {"audio": [wrong]}}
            with pytest.raises(RequestError, match="samples"):
                llm.generate([prompt], GREEDY)
