"""Models that see videos against transformers: greedy text of prompts with frames."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dovetail import LLM, SamplingParams
from dovetail.multimodal.content import Video
from dovetail.multimodal.frames import read_pictures
from dovetail.multimodal.patches import FrameSettings, ReadFrames, patches_of, read_frames
from dovetail.multimodal.processors import load_processor
from dovetail.multimodal.pruning import kept_cells, pruned_text
from support.tiny_media import write_media_checkpoint

PIL = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
FAMILIES = [
    "Qwen2VLForConditionalGeneration",
    "Qwen2_5_VLForConditionalGeneration",
    "Qwen3VLForConditionalGeneration",
]
GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
MOST_PIXELS = 48 * 48
PLACE = "<|vision_start|><|video_pad|><|vision_end|>"


def frames(seed: int, count: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 255, (count, 40, 50, 3), dtype=np.uint8)


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = write_media_checkpoint(tmp_path_factory.mktemp("video"), request.param)
    if "Qwen3" in request.param:  # whose bound is for all frames together
        bounds = {"shortest_edge": 16 * 16, "longest_edge": 6 * MOST_PIXELS}
        stored = json.dumps({"patch_size": 8, "size": bounds})
        (made / "video_preprocessor_config.json").write_text(stored)
    return made


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
    settings = replace(settings, by_volume=False, most_pixels=MOST_PIXELS)  # as for images
    patches, grid = patches_of(np.stack([picture, picture]), settings)
    assert grid.tolist() == image["image_grid_thw"][0].tolist()
    np.testing.assert_allclose(patches, image["pixel_values"], atol=1e-5)
    three, grid = patches_of(np.stack([picture] * 3), settings)
    assert grid[0] == 2
    np.testing.assert_array_equal(three[len(patches) :], patches)


def test_the_cells_that_change_stay() -> None:
    generator = np.random.default_rng(0)
    cells = torch.from_numpy(generator.normal(size=(1, 6, 8))).repeat(4, 1, 1)
    cells[1, 2] += 1.0  # a step is compared with the one before it
    cells[2:, 2] += 1.0
    cells[3, 4] += 0.5
    patches = cells.reshape(-1, 4)
    assert kept_cells(patches, (4, 2, 3), 0.0) == ()
    # the first step, the two changes, and in the step without one its first cell
    assert kept_cells(patches, (4, 2, 3), 0.9) == (0, 1, 2, 3, 4, 5, 8, 12, 22)
    assert len(kept_cells(patches, (4, 2, 3), 0.5)) == 12
    assert pruned_text("a<v><v>b<v><v>c", "<v>", (0, 1, 3), 2) == "a<v><v>b<v>c"
    assert pruned_text("a<v><v><v><v>c", "<v>", (0, 1, 3), 2) == "a<v><v><v>c"


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


def drawn_without(model: Any, processor: Any, video: ReadFrames, kept: list[int]) -> list[int]:
    """Return what transformers' model draws where only some vectors of a video are there: all are
    encoded and have their positions, then those of the others are left out."""
    text = f"see {word_of(processor)} now".replace(processor.video_token, video.text)
    ids = processor.tokenizer(text, return_tensors="pt")["input_ids"]
    is_video = ids[0] == model.config.video_token_id
    times = {"second_per_grid_ts": [video.step_s]} if "2_5" in type(model).__name__ else {}
    positions, _ = model.model.get_rope_index(
        ids, video_grid_thw=video.grid[None], mm_token_type_ids=2 * is_video[None].int(), **times
    )
    seen = model.model.get_video_features(video.patches, video.grid[None], return_dict=True)
    vectors = torch.cat(list(seen.pooler_output))
    left = ~is_video
    left[is_video.nonzero()[kept]] = True
    inputs = model.get_input_embeddings()(ids)
    inputs[0, is_video] = vectors
    inputs, positions = inputs[:, left], positions[:, :, left]
    mask = is_video[None, left]
    found: list[int] = []
    while len(found) < 8:
        more: dict[str, Any] = {}
        if hasattr(seen, "deepstack_features"):
            more["visual_pos_masks"] = mask
            more["deepstack_visual_embeds"] = [
                torch.cat(list(layer))[kept] for layer in seen.deepstack_features
            ]
        states = model.model.language_model(
            inputs_embeds=inputs, position_ids=positions, use_cache=False, **more
        )
        best = model.lm_head(states.last_hidden_state[:, -1:]).argmax(-1)
        found.append(int(best))
        inputs = torch.cat([inputs, model.get_input_embeddings()(best)], 1)
        positions = torch.cat([positions, positions[:, :, -1:] + 1], 2)
        mask = torch.cat([mask, mask.new_zeros(1, 1)], 1)
    return found


def test_without_what_stands_still(folder: Path) -> None:
    """--video-pruning-rate: the places are counted, and the rest is as transformers sees it."""
    import transformers

    processor, settings = settings_of(folder)
    model = transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
    clip = clips()[1]
    video = read_frames(processor, settings, clip)
    grid = video.grid.tolist()
    shape = (grid[0], grid[1] // settings.merged, grid[2] // settings.merged)
    kept = list(kept_cells(video.patches, shape, 0.5))
    assert 0 < len(kept) < shape[0] * shape[1] * shape[2]
    prompt: Any = {
        "prompt": f"see {word_of(processor)} now",
        "multi_modal_data": {"video": [clip]},
    }
    limits: Any = {"dtype": "float32", "max_model_len": 400, "max_num_batched_tokens": 16}
    with LLM(model=str(folder), video_pruning_rate=0.5, **limits) as llm:
        first, again = (llm.generate(prompt, GREEDY, use_tqdm=False)[0] for _ in range(2))
    assert list(first.outputs[0].token_ids) == drawn_without(model, processor, video, kept)
    assert list(again.outputs[0].token_ids) == list(first.outputs[0].token_ids)
    whole = processor.tokenizer(video.text)["input_ids"].count(model.config.video_token_id)
    assert first.prompt_token_ids is not None
    assert first.prompt_token_ids.count(model.config.video_token_id) == len(kept) < whole


@pytest.mark.parametrize(
    "family", ["LlavaNextVideoForConditionalGeneration", "LlavaOnevisionForConditionalGeneration"]
)
def test_frames_that_are_pictures(family: str, tmp_path: Path) -> None:
    """A video, a video and an image, and text, together and in pieces."""
    import transformers

    made = write_media_checkpoint(tmp_path, family)
    size = {"height": 32, "width": 32}
    settings = {"size": size, "crop_size": size, "image_mean": [0.5] * 3, "image_std": [0.2] * 3}
    (made / "video_preprocessor_config.json").write_text(json.dumps(settings))
    processor = load_processor(made, "")
    model = transformers.AutoModelForImageTextToText.from_pretrained(made, dtype=torch.float32)
    model.generation_config.eos_token_id = None
    picture, (clip, other) = PIL.fromarray(frames(5, 1)[0]), clips()[:2]
    asked: list[tuple[str, dict[str, Any]]] = [
        ("see <video> now", {"video": [clip]}),
        ("see <image> and then <video>", {"image": [picture], "video": [other]}),
        ("the quick fox", {}),
    ]
    wanted, prompts = [], []
    for text, media in asked:
        features: dict[str, Any] = {}
        expanded = text
        if "image" in media:
            inputs = processor(text=["<image>"], images=[picture], return_tensors="pt")
            features |= {n: v for n, v in inputs.items() if n in ("pixel_values", "image_sizes")}
            places = processor.tokenizer.decode(inputs["input_ids"][0])
            expanded = expanded.replace("<image>", places)
        if "video" in media:
            pictures, places = read_pictures(processor, made, media["video"][0].frames)
            bytes_of = (pictures * 0.2 + 0.5) * 255  # by the checkpoint's norms
            torch.testing.assert_close(bytes_of, bytes_of.round(), atol=1e-3, rtol=0.0)
            features["pixel_values_videos"] = pictures
            expanded = expanded.replace("<video>", places)
        ids = processor.tokenizer(expanded, return_tensors="pt")
        drawn = model.generate(**ids, **features, max_new_tokens=8, do_sample=False)
        wanted.append(drawn[0, ids["input_ids"].shape[1] :].tolist())
        prompts.append({"prompt": text, "multi_modal_data": media} if media else text)
    limits: Any = {"dtype": "float32", "max_model_len": 400, "max_num_batched_tokens": 16}
    with LLM(model=str(made), **limits) as llm:
        told = llm.generate(prompts, GREEDY, use_tqdm=False)
    assert [list(one.outputs[0].token_ids) for one in told] == wanted
