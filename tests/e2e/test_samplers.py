"""Requests with samplers draw the same alone and together, after preemption, and with drafts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dovetail import SamplingParams
from dovetail.engine.client.results.outputs import GenerationResult
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support.drafts import FEW, KNOWN, PROMPT, ROOMY, Engine, assert_same, write_known

FIELDS: Sequence[dict[str, Any]] = (
    {"dry_multiplier": 2.0, "dry_allowed_length": 1, "dry_sequence_breakers": ["e", "qu"]},
    {"xtc_probability": 0.5, "xtc_threshold": 0.001},
    {"mirostat": 2, "mirostat_tau": 3.0, "mirostat_eta": 0.5},
    {"mirostat": 1, "mirostat_tau": 4.0, "mirostat_eta": 0.3},
    {"adaptive_target": 0.02, "adaptive_decay": 0.5},
    {"typical_p": 0.5, "top_a": 0.3},
    {"tfs_z": 0.5, "epsilon_cutoff": 3},
    {"dynatemp_range": 0.7, "dynatemp_exponent": 2, "eta_cutoff": 20},
    {"smoothing_factor": 0.6, "smoothing_curve": 2, "top_n_sigma": 2},
    {"no_repeat_ngram_size": 2},
    {"repeat_last_n": 5},
    {"encoder_repetition_penalty": 1.7},
    {"samplers": "ekxpmt", "xtc_probability": 0.7, "xtc_threshold": 0.002},
    {"sampler_order": [6, 5, 0, 1, 3, 4, 2], "min_keep": 3, "mirostat": 2, "repeat_last_n": 9},
    {},
)
PLAIN: dict[str, Any] = {
    "max_tokens": 24, "ignore_eos": True, "temperature": 0.9, "seed": 5, "top_k": 40, "top_p": 0.95,
    "repetition_penalty": 1.3, "logprobs": 1,
}  # fmt: skip


def wishes() -> list[SamplingParams]:
    """Return every kind of request, the last ones greedy or with two answers."""
    greedy = {**PLAIN, "temperature": 0.0}
    made = [SamplingParams(**PLAIN, extra_args=extra) for extra in FIELDS]
    made += [SamplingParams(**greedy, extra_args=FIELDS[at]) for at in (0, 9, 10, 12)]
    return [*made, *(SamplingParams(**PLAIN, n=2, extra_args=FIELDS[at]) for at in (1, 2))]


def prompts() -> list[str]:
    return [f"{PROMPT} {number % 4}" for number in range(len(wishes()))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("samplers") / "model", "LlamaForCausalLM")


@pytest.fixture(scope="module")
def alone(folder: Path) -> list[GenerationResult]:
    """Return each request's answer when no other runs."""
    engine = Engine(folder)
    with engine.llm:
        pairs = zip(wishes(), prompts(), strict=True)
        return [engine.answers([params], [prompt])[0] for params, prompt in pairs]


def test_samplers_change_what_is_drawn(alone: list[GenerationResult]) -> None:
    plain = {}
    for params, prompt, result in zip(wishes(), prompts(), alone, strict=True):
        if not params.extra_args:
            plain[prompt] = result.outputs[0].token_ids
    drawn = [result.outputs[0].token_ids for result in alone]
    assert len(set(drawn)) > len(drawn) - 3
    for result in alone[-2:]:
        first, second = result.outputs
        assert first.token_ids != second.token_ids


@pytest.mark.parametrize("num_blocks", [ROOMY, FEW])
@pytest.mark.parametrize("has_drafts", [False, True])
def test_the_same_alone_and_in_company(
    folder: Path,
    alone: list[GenerationResult],
    tmp_path: Path,
    num_blocks: int,
    has_drafts: bool,
) -> None:
    fields: dict[str, Any] = {"num_gpu_blocks_override": num_blocks}
    if has_drafts:
        path = write_known(tmp_path / "coming.json", alone)
        known = {"method": KNOWN, "num_speculative_tokens": 4, "path": str(path)}
        fields["speculative_config"] = known
    engine = Engine(folder, **fields)
    with engine.llm:
        assert_same(engine.answers(wishes(), prompts()), alone)
    assert (engine.count("preemptions") > 0) == (num_blocks == FEW)
    assert (engine.count("accepted_tokens") > 20) == has_drafts
