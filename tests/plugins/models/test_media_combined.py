"""Images beside all else that an engine does: what is drawn stays what it is without.

Preemption while images are computed in pieces, swapping, drafts, structured output, ranks: for a
family whose positions are plain, one that has three of them, and one that sees images both ways.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail import LLM, SamplingParams
from dovetail.errors import RequestError
from dovetail.multimodal.processors import load_processor
from support.inside import core_of
from support.tiny_media import write_media_checkpoint

PIL = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
GEMMA3, LLAVA = "Gemma3ForConditionalGeneration", "LlavaForConditionalGeneration"
QWEN2_5 = "Qwen2_5_VLForConditionalGeneration"
FAMILIES = [GEMMA3, LLAVA, QWEN2_5]
LONG = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
FLAGS: dict[str, Any] = {"dtype": "float32", "max_model_len": 120, "block_size": 8}


def picture(seed: int) -> Any:
    rng = np.random.default_rng(seed)
    return PIL.fromarray(rng.integers(0, 255, (40, 50, 3), dtype=np.uint8))


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_media_checkpoint(tmp_path_factory.mktemp("media"), request.param)


@pytest.fixture(scope="module")
def prompts(folder: Path) -> list[Any]:
    """Return prompts with one image, with two, and without."""
    place = load_processor(folder, "").image_token
    pictures = [picture(seed) for seed in range(4)]
    made: list[Any] = []
    for number in range(8):
        one, other = pictures[number % 4], pictures[(number + 1) % 4]
        if number % 3 == 2:
            made.append(f"word {number} the quick brown fox")
        elif number % 3 == 1:
            text = f"{number} {place} and {place}"
            made.append({"prompt": text, "multi_modal_data": {"image": [one, other]}})
        else:
            text = f"what is {place} here, {number}?"
            made.append({"prompt": text, "multi_modal_data": {"image": one}})
    return made


def drawn(llm: LLM, prompts: list[Any], params: SamplingParams = LONG) -> list[tuple[int, ...]]:
    results = llm.generate(prompts, params, use_tqdm=False)
    assert [one.error for one in results] == [None] * len(results)
    return [tuple(one.outputs[0].token_ids) for one in results]


@pytest.fixture(scope="module")
def usual(folder: Path) -> Iterator[LLM]:
    with LLM(model=str(folder), **FLAGS) as made:
        yield made


@pytest.fixture(scope="module")
def wanted(usual: LLM, prompts: list[Any]) -> list[tuple[int, ...]]:
    """Return what is drawn of each prompt alone."""
    return [drawn(usual, [prompt])[0] for prompt in prompts]


NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1}


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"speculative_config": NGRAM}, id="drafts"),
        pytest.param({"max_num_batched_tokens": 9, "max_num_seqs": 6}, id="small-steps"),
        pytest.param(
            {"max_num_batched_tokens": 40, "max_num_seqs": 8, "disable_chunked_mm_input": True},
            id="whole-images",
        ),
    ],
)
def test_together_as_alone(
    folder: Path, prompts: list[Any], wanted: Any, settings: dict[str, Any]
) -> None:
    with LLM(model=str(folder), **FLAGS, **settings) as llm:
        assert drawn(llm, prompts) == wanted


@pytest.mark.slow
@pytest.mark.parametrize(
    ("folder", "settings"),
    [
        pytest.param(GEMMA3, {"tensor_parallel_size": 2}, id="both-ways-ranks"),
        pytest.param(GEMMA3, {"pipeline_parallel_size": 2}, id="both-ways-stages"),
        pytest.param(QWEN2_5, {"pipeline_parallel_size": 2}, id="three-positions-stages"),
        pytest.param(
            LLAVA, {"tensor_parallel_size": 2, "mm_encoder_tp_mode": "data"}, id="ranks-by-items"
        ),
    ],
    indirect=["folder"],
)
def test_over_ranks_as_alone(
    folder: Path, prompts: list[Any], wanted: Any, settings: dict[str, Any]
) -> None:
    """By either --mm-encoder-tp-mode."""
    with LLM(model=str(folder), **FLAGS, **settings) as llm:
        assert drawn(llm, prompts) == wanted


@pytest.mark.parametrize("swap_space", [0, 0.01])
def test_preempted_among_images(
    folder: Path, prompts: list[Any], wanted: Any, swap_space: float
) -> None:
    """There is room for two or three of them, and steps are shorter than an image."""
    num_blocks = 24 if "Gemma3" in (folder / "config.json").read_text(encoding="utf-8") else 17
    small = {"max_num_batched_tokens": 14, "max_num_seqs": 6}
    small["num_gpu_blocks_override"] = num_blocks
    with LLM(model=str(folder), swap_space=swap_space, **FLAGS, **small) as llm:
        core, told = core_of(llm), []
        step = core.step

        def told_step() -> Any:
            output = step()
            told.append(output.stats)
            return output

        core.step = told_step
        assert drawn(llm, prompts) == wanted
        core.check_idle()
    counted = [one for one in told if one is not None]
    assert sum(one.preemptions for one in counted) > 0
    assert (sum(one.swaps for one in counted) > 0) == (swap_space > 0)


def test_structured_output_of_an_image(usual: LLM, prompts: list[Any]) -> None:
    from dovetail.interfaces.data.constraint import Regex

    compiled = usual.compile_constraint(Regex(pattern="(cat|dog) is (red|blue)"))
    params = SamplingParams(temperature=0.0, max_tokens=24, constraint=compiled)
    results = usual.generate(prompts, params, use_tqdm=False)
    alone = usual.generate(prompts[:1], params, use_tqdm=False)
    texts = [one.outputs[0].text for one in results]
    assert all(text.split(" is ")[0] in ("cat", "dog") for text in texts)
    assert alone[0].outputs[0].text == texts[0]


def test_an_image_that_no_step_computes_whole(folder: Path, prompts: list[Any]) -> None:
    small = {"max_num_batched_tokens": 4, "max_num_seqs": 2, "disable_chunked_mm_input": True}
    with LLM(model=str(folder), **FLAGS, **small) as llm:
        with pytest.raises(RequestError, match="one step"):
            llm.generate(prompts[:1], LONG)
        assert drawn(llm, [prompts[2]])
