"""Models that see videos against transformers: greedy text of prompts with frames."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail import LLM, SamplingParams
from dovetail.multimodal.content import Video
from dovetail.multimodal.patches import FrameSettings, patches_of, read_frames
from dovetail.multimodal.processors import load_processor
from support.tiny_media import write_media_checkpoint

PIL = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
FAMILIES = [
    "Qwen2VLForConditionalGeneration",
    "Qwen2_5_VLForConditionalGeneration",
    "Qwen3VLForConditionalGeneration",
]
GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
PLACE = "<|vision_start|><|video_pad|><|vision_end|>"


def frames(seed: int, count: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 255, (count, 40, 50, 3), dtype=np.uint8)


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_media_checkpoint(tmp_path_factory.mktemp("video"), request.param)


def settings_of(folder: Path) -> tuple[Any, FrameSettings]:
    processor = load_processor(folder, "")
    settings = FrameSettings.of(processor, folder)
    processor.video_processor = settings.part
    return processor, settings


def test_a_standing_picture_has_the_patches_of_an_image(folder: Path) -> None:
    """transformers' image processor shows each picture twice: so does a video that stands still."""
    processor, settings = settings_of(folder)
    picture = frames(0, 1)[0]
    image = processor.image_processor([PIL.fromarray(picture)], return_tensors="pt")
    settings = replace(settings, by_volume=False)  # as it bounds images
    patches, grid = patches_of(np.stack([picture, picture]), settings)
    assert grid.tolist() == image["image_grid_thw"][0].tolist()
    np.testing.assert_allclose(patches, image["pixel_values"], atol=1e-5)
    three, grid = patches_of(np.stack([picture] * 3), settings)
    assert grid[0] == 2
    np.testing.assert_array_equal(three[len(patches) :], patches)


def word_of(processor: Any) -> str:
    """Return what stands for a video in a prompt: Qwen3-VL marks each frame itself."""
    return str(processor.video_token) if "Qwen3" in type(processor).__name__ else PLACE


def clips() -> list[Video]:
    return [
        Video(frames=frames(1, 4), frame_indices=(0, 10, 20, 30), num_frames=40, fps=10.0),
        Video(frames=frames(2, 6), frame_indices=(0, 1, 2, 3, 4, 5), num_frames=6, fps=2.0),
        Video(frames=frames(3, 3), frame_indices=(0, 30, 60), num_frames=90, fps=30.0),
    ]


@pytest.fixture(scope="module")
def wanted(folder: Path) -> list[list[int]]:
    """Return what transformers' model draws after a text with each clip, and with an image."""
    import torch
    import transformers

    processor, settings = settings_of(folder)
    auto = transformers.AutoModelForImageTextToText
    model = auto.from_pretrained(folder, dtype=torch.float32)
    place = processor.video_token
    found = []
    for clip in clips():
        made = read_frames(processor, settings, clip)
        text = f"see {word_of(processor)} now".replace(place, made.text)
        ids = processor.tokenizer(text, return_tensors="pt")["input_ids"]
        kinds = 2 * (ids == model.config.video_token_id).int()
        more: dict[str, Any] = {}
        if "2_5" in type(model).__name__:
            more["second_per_grid_ts"] = torch.tensor([made.step_s])
        drawn = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            pixel_values_videos=made.patches,
            video_grid_thw=made.grid[None],
            mm_token_type_ids=kinds,
            max_new_tokens=8,
            min_new_tokens=8,
            do_sample=False,
            **more,
        )
        found.append(drawn[0, ids.shape[1] :].tolist())
    return found


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="whole"),
        pytest.param({"max_num_batched_tokens": 16, "max_num_seqs": 4}, id="in-pieces"),
    ],
)
def test_greedy_text_is_that_of_transformers(
    folder: Path, wanted: list[list[int]], settings: dict[str, Any]
) -> None:
    processor = load_processor(folder, "")
    place = word_of(processor)
    prompts: list[Any] = [
        {"prompt": f"see {place} now", "multi_modal_data": {"video": [clip]}} for clip in clips()
    ]
    with LLM(model=str(folder), dtype="float32", max_model_len=400, **settings) as llm:
        told = llm.generate([*prompts, "the quick fox"], GREEDY, use_tqdm=False)
        alone = [llm.generate([one], GREEDY, use_tqdm=False)[0] for one in prompts]
        again = llm.generate(prompts[:1], GREEDY, use_tqdm=False)[0]
    assert [list(one.outputs[0].token_ids) for one in told[:3]] == wanted
    assert [list(one.outputs[0].token_ids) for one in alone] == wanted
    assert again.num_cached_tokens and again.num_cached_tokens >= 16
