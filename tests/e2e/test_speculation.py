"""Drafts change speed and nothing else: the same tokens, texts, ends and logprobs as without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dovetail import SamplingParams
from dovetail.engine.client.results.outputs import GenerationResult
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support.drafts import (
    FEW,
    KNOWN,
    PROMPT,
    REQUESTS,
    ROOMY,
    Engine,
    assert_same,
    params,
    prompts,
    write_known,
)
from support.inside import core_of


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
    return write_known(tmp_path_factory.mktemp("known") / "coming.json", plain)


@pytest.mark.parametrize(
    ("method", "is_ahead", "num_blocks"),
    [
        pytest.param("ngram", False, FEW, id="ngram-in_turn-few"),
        pytest.param("ngram", True, ROOMY, id="ngram-one_ahead-roomy"),
        pytest.param(KNOWN, False, ROOMY, id="known-in_turn-roomy"),
        pytest.param(KNOWN, True, FEW, id="known-one_ahead-few"),
    ],
)
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
        core = core_of(engine.llm)
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
            num_steps.append(core_of(engine.llm).num_steps)
    assert_same(found[1], found[0])
    assert num_steps[0] == 60 and num_steps[1] <= 40


def test_an_end_among_accepted_tokens(
    folder: Path, plain: list[GenerationResult], known: Path
) -> None:
    """A stop string, a stop token or the limit anywhere in a run of accepted drafts ends it."""
    asked = {"method": KNOWN, "num_speculative_tokens": 6, "path": str(known)}
    drawn = plain[0].outputs[0]
    ends: dict[str, list[Any]] = {
        "stop": [(drawn.text[i : i + 3],) for i in range(0, len(drawn.text) - 3, 2)],
        "stop_token_ids": [[token_id] for token_id in sorted(set(drawn.token_ids))],
        "max_tokens": list(range(1, 14)),
    }
    wishes = [
        SamplingParams(**{"temperature": 0.0, "max_tokens": 30, "ignore_eos": True, limit: end})
        for limit in ends
        for end in ends[limit]
    ]
    engine, without = Engine(folder, speculative_config=asked), Engine(folder)
    with engine.llm, without.llm:
        crowd = [PROMPT] * len(wishes)
        assert_same(engine.answers(wishes, crowd), without.answers(wishes, crowd))
        core_of(engine.llm).check_idle()
    assert engine.count("accepted_tokens") > 0


def test_finished_answers_are_drafted_from(folder: Path, plain: list[GenerationResult]) -> None:
    engine = Engine(folder, speculative_config={"method": "suffix", "num_speculative_tokens": 6})
    steps = []
    with engine.llm:
        for _ in range(2):
            before = core_of(engine.llm).num_steps
            assert_same(engine.answers(params(), prompts()), plain)
            steps.append(core_of(engine.llm).num_steps - before)
    assert steps[1] < 0.8 * steps[0]
    first = next(stats for stats in engine.stats if stats.drafts)
    assert sum(first.drafted_at) == first.draft_tokens


def test_typical_acceptance_of_whole_requests(
    folder: Path, plain: list[GenerationResult], known: Path
) -> None:
    """Greedy answers stay; sampled ones are whole, obey their limits, and have their logprobs."""
    asked = {"method": KNOWN, "num_speculative_tokens": 6, "path": str(known)}
    asked |= {"acceptance_method": "typical_acceptance_sampler", "posterior_threshold": 1e-6}
    engine = Engine(folder, speculative_config=asked, num_gpu_blocks_override=FEW)
    with engine.llm:
        found = engine.answers(params(), prompts())
        again = engine.answers(params(), prompts())
        core_of(engine.llm).check_idle()
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
