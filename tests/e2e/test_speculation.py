"""Drafts change speed and nothing else: the same tokens, texts, ends and logprobs as without."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dovetail import LLM, SamplingParams
from dovetail.engine.client.outputs import GenerationResult
from dovetail.engine.core import StepOutput
from dovetail.interfaces.drafter import Drafter
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.spec import ModelSpec
from dovetail.interfaces.stats import StepStats
from dovetail.testing.tiny_models import write_tiny_checkpoint

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
            "use_tqdm_on_load": False,
            "plugin_options": {"scheduler": {"growth_blocks": 0}},
        }
        self.llm = LLM(model=str(folder), **(flags | fields))
        self.stats: list[StepStats] = []
        core = self.llm._engine.core
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


def params(**changes: Any) -> list[SamplingParams]:
    plain = {"max_tokens": 30, "ignore_eos": True}
    return [SamplingParams(**(plain | one | changes)) for _, one in REQUESTS]


def prompts() -> list[str]:
    return [prompt for prompt, _ in REQUESTS]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("spec") / "model", "LlamaForCausalLM")


@pytest.fixture(scope="module")
def plain(folder: Path) -> list[GenerationResult]:
    """Return what is drawn without drafts."""
    engine = Engine(folder)
    with engine.llm:
        return engine.answers(params(), prompts())


@pytest.fixture(scope="module")
def known(plain: list[GenerationResult], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file of all that is drawn, prompts in front."""
    path = tmp_path_factory.mktemp("known") / "coming.json"
    wholes = [[*r.prompt_token_ids, *one.token_ids] for r in plain for one in r.outputs]
    path.write_text(json.dumps(wholes))
    return path


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
    for one, other in zip(ours or (), theirs or (), strict=True):
        assert (one.token_id, one.rank, one.top_ids) == (other.token_id, other.rank, other.top_ids)
        assert one.logprob == pytest.approx(other.logprob, abs=1e-5)
        assert one.top_logprobs == pytest.approx(other.top_logprobs, abs=1e-5)


@pytest.mark.parametrize("num_blocks", [ROOMY, FEW])
@pytest.mark.parametrize("is_ahead", [False, True], ids=["in_turn", "one_ahead"])
@pytest.mark.parametrize("method", ["ngram", f"{__file__}:Known"], ids=["ngram", "known"])
def test_the_same_with_and_without(
    folder: Path,
    plain: list[GenerationResult],
    known: Path,
    method: str,
    is_ahead: bool,
    num_blocks: int,
) -> None:
    asked: dict[str, Any] = {"method": method, "num_speculative_tokens": 6}
    if method != "ngram":
        asked["path"] = str(known)
    engine = Engine(
        folder,
        speculative_config=asked,
        async_scheduling=is_ahead,
        num_gpu_blocks_override=num_blocks,
    )
    with engine.llm:
        for _ in range(2):  # the second time prompts come from the prefix cache
            assert_same(engine.answers(params(), prompts()), plain)
        core = engine.llm._engine.core
        core.check_idle()
    assert engine.count("accepted_tokens") > 0
    assert engine.count("draft_tokens") > engine.count("accepted_tokens")
    assert (engine.count("preemptions") > 0) == (num_blocks == FEW)
    assert engine.count("prefix_hit_tokens") > 0


def test_a_repetitive_answer_takes_far_fewer_steps(folder: Path) -> None:
    letters = {"allowed_token_ids": [40, 41, 42]}
    greedy = [SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True, **letters)]
    found, num_steps = [], []
    for asked in ({}, {"method": "ngram", "num_speculative_tokens": 5}):
        engine = Engine(folder, speculative_config=asked)
        with engine.llm:
            found.append(engine.answers(greedy, ["few letters"]))
            num_steps.append(engine.llm._engine.core.num_steps)
    assert_same(found[1], found[0])
    assert num_steps[0] == 60 and num_steps[1] <= 40


@pytest.mark.parametrize("limit", ["stop", "stop_token_ids", "max_tokens"])
def test_an_end_among_accepted_tokens(
    folder: Path, plain: list[GenerationResult], known: Path, limit: str
) -> None:
    """A stop string, a stop token or the limit anywhere in a run of accepted drafts ends it."""
    asked = {"method": f"{__file__}:Known", "num_speculative_tokens": 6, "path": str(known)}
    drawn = plain[0].outputs[0]
    ends: dict[str, list[Any]] = {
        "stop": [(drawn.text[i : i + 3],) for i in range(0, len(drawn.text) - 3, 2)],
        "stop_token_ids": [[token_id] for token_id in sorted(set(drawn.token_ids))],
        "max_tokens": list(range(1, 14)),
    }
    wishes = [
        SamplingParams(**{"temperature": 0.0, "max_tokens": 30, "ignore_eos": True, limit: end})
        for end in ends[limit]
    ]
    engine, without = Engine(folder, speculative_config=asked), Engine(folder)
    with engine.llm, without.llm:
        crowd = [PROMPT] * len(wishes)
        assert_same(engine.answers(wishes, crowd), without.answers(wishes, crowd))
        engine.llm._engine.core.check_idle()
    assert engine.count("accepted_tokens") > 0


def test_finished_answers_are_drafted_from(folder: Path, plain: list[GenerationResult]) -> None:
    engine = Engine(folder, speculative_config={"method": "suffix", "num_speculative_tokens": 6})
    steps = []
    with engine.llm:
        for _ in range(2):
            before = engine.llm._engine.core.num_steps
            assert_same(engine.answers(params(), prompts()), plain)
            steps.append(engine.llm._engine.core.num_steps - before)
    assert steps[1] < 0.8 * steps[0]
    first = next(stats for stats in engine.stats if stats.drafts)
    assert sum(first.drafted_at) == first.draft_tokens


def test_typical_acceptance_of_whole_requests(
    folder: Path, plain: list[GenerationResult], known: Path
) -> None:
    """Greedy answers stay; sampled ones are whole, obey their limits, and have their logprobs."""
    asked = {"method": f"{__file__}:Known", "num_speculative_tokens": 6, "path": str(known)}
    asked |= {"acceptance_method": "typical_acceptance_sampler", "posterior_threshold": 1e-6}
    engine = Engine(folder, speculative_config=asked, num_gpu_blocks_override=FEW)
    with engine.llm:
        found = engine.answers(params(), prompts())
        again = engine.answers(params(), prompts())
        engine.llm._engine.core.check_idle()
    assert_same(again, found)
    changed = 0
    for (_, one), ours, theirs in zip(REQUESTS, found, plain, strict=True):
        if one.get("temperature") == 0.0:
            assert_same([ours], [theirs])
        for mine, other in zip(ours.outputs, theirs.outputs, strict=True):
            assert len(mine.token_ids) == len(other.token_ids) or not one.get("ignore_eos", True)
            assert set(mine.token_ids) <= set(one.get("allowed_token_ids", mine.token_ids))
            assert len(mine.logprobs or ()) == (len(mine.token_ids) if "logprobs" in one else 0)
            changed += mine.token_ids != other.token_ids
    assert changed and engine.count("preemptions") > 0
