"""Engines with drafters: requests of many kinds, a drafter that knows, answers compared."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dovetail import LLM, SamplingParams
from dovetail.engine.client.results.outputs import GenerationResult
from dovetail.engine.core import StepOutput
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.drafter import Drafter
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.stats import StepStats
from support.inside import core_of

ROOMY, FEW = 400, 30
PROMPT = "one two three one two three one two three one two"
SEED_7 = {"seed": 7, "temperature": 1.0}
REQUESTS: Sequence[tuple[str, dict[str, Any]]] = (
    (PROMPT, {"temperature": 0.0}),
    (PROMPT, {"temperature": 0.0, "logprobs": 3, "max_tokens": 17}),
    (PROMPT, {"seed": 5, "temperature": 0.6, "logprobs": 2, "top_k": 20}),
    ("the dog and the dog and the dog", {**SEED_7, "n": 2, "logprobs": 0}),
    ("a", {**SEED_7, "repetition_penalty": 1.3, "frequency_penalty": 0.4, "presence_penalty": 0.2}),
    ("abcabcabcabc", {"temperature": 0.0, "frequency_penalty": 1.0, "logprobs": 1}),
    ("x y z", {**SEED_7, "min_tokens": 9, "bad_words": ["e", "on"], "top_p": 0.7, "min_p": 0.01}),
    ("counting one two", {"seed": 1, "temperature": 2.0, "ignore_eos": False, "max_tokens": 40}),
    # Made-up weights seldom repeat themselves, few letters must.
    ("few letters", {"temperature": 0.0, "allowed_token_ids": [40, 41, 42], "logprobs": 1}),
    ("few letters", {**SEED_7, "allowed_token_ids": [40, 41, 42]}),
    ("prompt logprobs", {"seed": 9, "prompt_logprobs": 1, "max_tokens": 6}),
)


@dataclass(frozen=True, kw_only=True)
class KnownOptions:
    """Options of the drafter below."""

    path: str = ""


class Known(Drafter):
    """Knows what is coming, and is wrong with every fifth token."""

    info = Info(summary="test drafter")
    Options = KnownOptions

    def __init__(self, options: Any, model: ModelSpec, max_draft_tokens: int) -> None:
        self._coming: list[list[int]] = json.loads(Path(options.path).read_text())

    def propose(self, request_id: str, token_ids: Sequence[int], max_tokens: int) -> Sequence[int]:
        end = len(token_ids)
        for whole in self._coming:
            if whole[:end] == token_ids:
                coming = enumerate(whole[end : end + max_tokens], end)
                return [3 if place % 5 == 0 else token_id for place, token_id in coming]
        return ()

    def forget(self, request_id: str) -> None:
        pass


class Engine:
    """An LLM whose step statistics are kept."""

    def __init__(self, folder: Path, **fields: Any) -> None:
        flags: dict[str, Any] = {
            "num_gpu_blocks_override": ROOMY,
            "max_model_len": 96,
            "max_num_batched_tokens": 48,
            "block_size": 8,
            "dtype": "float32",
            "swap_space": 0,
            "use_tqdm_on_load": False,
            "plugin_options": {"scheduler": {"growth_blocks": 0}},
        }
        self.llm = LLM(model=str(folder), **(flags | fields))
        self.stats: list[StepStats] = []
        core = core_of(self.llm)
        step = core.step

        def watched() -> StepOutput:
            output = step()
            self.stats += [output.stats] if output.stats else []
            return output

        core.step = watched  # type: ignore[method-assign]

    def count(self, name: str) -> int:
        return sum(getattr(stats, name) for stats in self.stats)

    def answers(self, params: Sequence[SamplingParams], prompts: Any) -> list[GenerationResult]:
        results = self.llm.generate(prompts, list(params), use_tqdm=False)
        assert [result.error for result in results] == [None] * len(results)
        return results


KNOWN = f"{__file__}:Known"


def params(**changes: Any) -> list[SamplingParams]:
    plain = {"max_tokens": 30, "ignore_eos": True}
    return [SamplingParams(**(plain | one | changes)) for _, one in REQUESTS]


def prompts() -> list[str]:
    return [prompt for prompt, _ in REQUESTS]


def assert_same(found: Sequence[GenerationResult], wanted: Sequence[GenerationResult]) -> None:
    for ours, theirs in zip(found, wanted, strict=True):
        for one, other in zip(ours.outputs, theirs.outputs, strict=True):
            assert one.token_ids == other.token_ids
            assert one.text == other.text
            ends = (one.finish_reason, one.stop_reason)
            assert ends == (other.finish_reason, other.stop_reason)
            assert_same_logprobs(one.logprobs, other.logprobs)
        assert_same_logprobs(ours.prompt_logprobs, theirs.prompt_logprobs)


def assert_same_logprobs(ours: Any, theirs: Any) -> None:
    assert (ours is None) == (theirs is None)
    for one, other in zip(filter(None, ours or ()), filter(None, theirs or ()), strict=True):
        assert (one.token_id, one.rank, one.top_ids) == (other.token_id, other.rank, other.top_ids)
        assert one.logprob == pytest.approx(other.logprob, abs=1e-5)
        assert one.top_logprobs == pytest.approx(other.top_logprobs, abs=1e-5)


def write_known(path: Path, plain: Sequence[GenerationResult]) -> Path:
    """Write all that was drawn, prompts in front, for `Known`; return the file."""
    wholes = [[*r.prompt_token_ids, *one.token_ids] for r in plain for one in r.outputs]
    path.write_text(json.dumps(wholes))
    return path
