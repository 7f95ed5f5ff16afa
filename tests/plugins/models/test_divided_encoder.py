"""An image that comes while answers are drawn: its encoder's pass is divided over steps, in each of
which the answers go on, and what is drawn is what is drawn without."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail import LLM, SamplingParams
from dovetail.interfaces.data.media import Encode
from dovetail.interfaces.data.step import StepPlan
from dovetail.llm.prompts import listed
from dovetail.multimodal.processors import load_processor
from support.inside import (
    core_of,
    encoder_passes_of,
    encodings_of,
    engine_of,
    is_computing,
    runner_of,
)
from support.tiny_media import write_media_checkpoint

PIL = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
LLAVA = "LlavaForConditionalGeneration"
FLAGS: dict[str, Any] = {"dtype": "float32", "max_model_len": 200, "block_size": 8}
LONG = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
SHORT = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
TEXTS = ("the quick brown fox", "a lazy dog")


def asked(folder: Path, seed: int) -> Any:
    """Return a prompt with an image."""
    rng = np.random.default_rng(seed)
    image = PIL.fromarray(rng.integers(0, 255, (40, 50, 3), dtype=np.uint8))
    place = load_processor(folder, "").image_token
    return {"prompt": f"what is {place} here?", "multi_modal_data": {"image": image}}


def drawn(results: Sequence[Any]) -> list[tuple[int, ...]]:
    assert [one.error for one in results] == [None] * len(results)
    return [tuple(one.outputs[0].token_ids) for one in results]


class Watched:
    """An engine whose plans are kept: those since answers run."""

    def __init__(self, llm: LLM) -> None:
        self.engine: Any = engine_of(llm)
        self.plans: list[StepPlan] = []
        encodings = encodings_of(self.engine.core)
        take = encodings.take

        def kept(plan: StepPlan, requests: Any) -> StepPlan:
            self.plans.append(take(plan, requests))
            return self.plans[-1]

        encodings.take = kept
        self._outputs: dict[int, Any] = {}

    def begin(self, prompt: Any, params: SamplingParams) -> int:
        """Submit a prompt and return its key."""
        (one,) = listed(prompt)
        return int(self.engine.submit(self.engine.prepare(one, params)))

    def run(self, num_steps: int | None = None) -> None:
        """Run so many steps, None: all."""
        while self.engine.has_work and num_steps != 0:
            self._outputs |= dict(self.engine.step().outputs)
            num_steps = None if num_steps is None else num_steps - 1

    def result(self, key: int) -> tuple[int, ...]:
        """Return the tokens of a finished request."""
        output = self._outputs[key]
        assert output.is_finished
        (delta,) = output.deltas
        return tuple(delta.token_ids)

    def pieces(self) -> list[tuple[StepPlan, Encode]]:
        """Return what was encoded, with its plan."""
        return [(plan, piece) for plan in self.plans for piece in plan.encode]


def verify_divided(folder: Path, **settings: Any) -> None:
    """Check what is drawn of an image that comes while texts are answered, and how."""
    with LLM(model=str(folder), **FLAGS, **settings) as llm:
        prompts = [*listed(TEXTS), *listed(asked(folder, 1))]
        wanted = [drawn(llm.generate([p], LONG, use_tqdm=False))[0] for p in prompts[:2]]
        late = drawn(llm.generate(prompts[2:], SHORT, use_tqdm=False))[0]
        core_of(llm).reset_prefix_cache()
        encodings_of(core_of(llm)).forget_memory()
        watched = Watched(llm)
        running = [watched.begin(prompt, LONG) for prompt in TEXTS]
        watched.run(5)
        image = watched.begin(asked(folder, 1), SHORT)
        watched.run()
        assert watched.result(image) == late
        assert [watched.result(one) for one in running] == wanted
        pieces = watched.pieces()
        shares = [piece.share for _, piece in pieces]
        assert len(shares) > 1 and shares == sorted(set(shares)) and shares[-1] == 1
        for plan, piece in pieces:
            assert bool(piece.features) == (piece is pieces[0][1]), "pixels are sent once"
            assert sum(row.samples for row in plan.rows) >= len(running), "answers went on"


@pytest.mark.parametrize(
    "architecture",
    [LLAVA, "Gemma3ForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration"],
)
def test_answers_go_on_while_an_image_is_encoded(tmp_path: Path, architecture: str) -> None:
    verify_divided(write_media_checkpoint(tmp_path, architecture))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["weights", "data"])
def test_over_ranks(tmp_path: Path, mode: str) -> None:
    verify_divided(
        write_media_checkpoint(tmp_path, LLAVA), tensor_parallel_size=2, mm_encoder_tp_mode=mode
    )


def test_a_pass_that_nobody_waits_for_ends(tmp_path: Path) -> None:
    """Its thread is gone, and the same image is encoded from the start when it comes again."""
    folder = write_media_checkpoint(tmp_path, LLAVA)
    with LLM(model=str(folder), **FLAGS) as llm:
        (late,) = drawn(llm.generate(listed(asked(folder, 2)), SHORT, use_tqdm=False))
        core = core_of(llm)
        core.reset_prefix_cache()
        encodings_of(core).forget_memory()
        watched = Watched(llm)
        watched.begin(TEXTS[0], LONG)
        watched.run(5)
        first = watched.begin(asked(folder, 2), SHORT)
        watched.run(1)
        passes = encoder_passes_of(runner_of(llm))
        (running,) = passes.values()
        assert is_computing(running)
        watched.engine.abort(first)
        watched.run(2)
        assert not passes and not is_computing(running)
        again = watched.begin(asked(folder, 2), SHORT)
        watched.run()
        assert watched.result(again) == late
        watched.begin(TEXTS[0], LONG)
        watched.run(5)
        watched.begin(asked(folder, 3), SHORT)
        watched.run(1)
        (running,) = passes.values()
    assert not is_computing(running), "it ends with the engine"
