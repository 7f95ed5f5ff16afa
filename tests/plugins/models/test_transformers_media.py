"""Models that take media over transformers' code, tiny: greedy text equal to its own, or refused
with the reason. `make sweep` does it for all that transformers has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from dovetail.errors import DovetailError
from dovetail.llm.llm import LLM
from dovetail_plugins.models._hf_trial import rows_of
from support.inside import runner_of
from support.media_verdicts import FLAGS, media_verdict
from support.tiny_wholes import write_whole
from support.verdicts import BACKED, NATIVE, promise_of

pytest.importorskip("PIL.Image", reason="Pillow is not installed")
NATIVE_TEXT = {
    "qwen3_5": "Qwen3_5ForConditionalGeneration",  # layers that keep a state
    "hy_v4_vl": "HYV4VLForConditionalGeneration",  # positions of rows that end in a vector more
    "dots3_note": "Dots3NoteForConditionalGeneration",  # experts that see; sound; released names
    "glm5_next": "Glm5NextForConditionalGeneration",  # picked pools
    "nemotron_h_omni": "NemotronH_Omni_Reasoning_V3",  # joined matrices; sound of masked frames
}
NEEDS_TORCHVISION = ("nemotron_h_omni",)
RANKS = {"dots3_note": 2}
"""Of a model whose encoder has experts, which are whole on each rank."""
SERVED = {
    "aya_vision": "AyaVisionForConditionalGeneration",  # tiles, windows, a head that scales
    "glm4v": "Glm4vForConditionalGeneration",  # positions in three directions
    "idefics2": "Idefics2ForConditionalGeneration",  # a processor that tells token ids alone
    "paddleocr_vl": "PaddleOCRVLForConditionalGeneration",  # stored under other names
    "audioflamingo3": "AudioFlamingo3ForConditionalGeneration",  # sound
    "janus": "JanusForConditionalGeneration",  # makes images, too
    "qwen2_5_omni": "Qwen2_5OmniForConditionalGeneration",  # one part of it writes text
}
NOT_SERVED = {
    "hunyuan_vl": (
        "HunYuanVLForConditionalGeneration",
        "image placeholders must be formatted as",
    ),
    "git": ("GitForCausalLM", "does not go through transformers' attention interface"),
    "qwen3_vl": ("Qwen3VLForConditionalGeneration", "is given visual_pos_masks beside vectors"),
    "glm5_next": ("Glm5NextForConditionalGeneration", "layers of the kind indexed_attention"),
}


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("model_type", SERVED)
def test_greedy_text_is_that_of_transformers(tmp_path: Path, model_type: str) -> None:
    """One medium, two, none, and one again; all in one batch and each alone."""
    verdict = media_verdict(write_whole(tmp_path, model_type, SERVED[model_type]))
    assert (verdict.state, verdict.reason) == (BACKED, "")


def test_vectors_that_pad_a_shorter_sound_are_cut_off() -> None:
    """Granite Speech gives all sounds of a prompt as many as the longest."""
    vectors = torch.arange(12.0).view(2, 3, 2)
    places = torch.tensor([0, 1, 1, 1, 0, 1, 0], dtype=torch.bool)
    assert torch.equal(rows_of([vectors], places), vectors.flatten(0, 1)[:4])
    assert torch.equal(rows_of([vectors], places[:3]), vectors.flatten(0, 1))


def test_what_makes_images_is_left_out(tmp_path: Path) -> None:
    folder = write_whole(tmp_path, "janus", SERVED["janus"])
    with LLM(model=str(folder), max_model_len=96, **FLAGS) as llm:
        encoder: Any = runner_of(llm).model.encoder  # type: ignore[attr-defined]
        assert set(encoder._modules) == {"vision_model", "aligner"}


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("model_type", NATIVE_TEXT)
def test_greedy_text_of_own_text_models(tmp_path: Path, model_type: str) -> None:
    if model_type in NEEDS_TORCHVISION:
        pytest.importorskip("torchvision", reason="it reads images with torchvision alone")
    folder = write_whole(tmp_path, model_type, NATIVE_TEXT[model_type])
    verdict = media_verdict(folder, tensor_parallel_size=RANKS.get(model_type, 1))
    assert (verdict.state, verdict.reason) == (NATIVE, "")


@pytest.mark.parametrize("model_type", NOT_SERVED)
def test_refused_with_the_reason(tmp_path: Path, model_type: str) -> None:
    """By the engine, and by `dovetail inspect` before it."""
    architecture, reason = NOT_SERVED[model_type]
    folder = write_whole(tmp_path, model_type, architecture)
    fields = {"model": str(folder), **FLAGS, "max_model_len": 96, "model_impl": "transformers"}
    assert reason in promise_of(fields)
    with pytest.raises(DovetailError, match=reason):
        LLM(**fields)
