"""What each logprobs mode tells, against float64 arithmetic written from the definitions."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.data.step import TokenLogprobs
from dovetail.interfaces.logits import LogitsProcessor, RowTokens
from dovetail.interfaces.plugin import Info, NoOptions
from dovetail.sampling.logprobs import FLOOR
from dovetail.sampling.sampler import Draws, Sampler

VOCAB = 60
PROMPT, OUTPUT = [1, 2, 2], [3, 3, 4]
MODES = [(stage, scale) for stage in ("raw", "processed") for scale in ("logprobs", "logits")]
WISHES = (
    SamplingParams(temperature=0.0, logprobs=4),
    SamplingParams(temperature=0.0, logprobs=0, repetition_penalty=1.7, presence_penalty=0.5),
    SamplingParams(logprobs=5),
    SamplingParams(temperature=0.6, top_k=7, logprobs=9),
    SamplingParams(temperature=1.4, top_p=0.8, frequency_penalty=0.7, logprobs=-1),
    SamplingParams(temperature=0.7, min_p=0.05, repetition_penalty=1.3, logprobs=3),
    SamplingParams(temperature=0.9, top_k=12, top_p=0.6, logprobs=-1),
    SamplingParams(temperature=0.9, top_k=3),
    SamplingParams(temperature=0.0, logprobs=2, logits_processors={"bias": {}}),
    SamplingParams(temperature=0.5, logprobs=2, logits_processors={"bias": {}}, top_p=0.9),
    SamplingParams(temperature=0.0, logprobs=0, logprob_token_ids=(50, 11, 9)),
    SamplingParams(temperature=0.8, logprobs=0, top_k=9, logprob_token_ids=(3,)),
)


class Bias(LogitsProcessor):
    """Adds 2.5 to token 9 and bans token 11, for the rows that name it."""

    info = Info(summary="test processor")
    stage = "bias"

    @classmethod
    def wants(cls, params: SamplingParams) -> bool:
        return "bias" in params.logits_processors

    def add_row(self, tokens: RowTokens) -> None: ...

    def remove_row(self, row: int) -> None: ...

    def apply(self, logits: torch.Tensor, rows: Any) -> None:
        for index, _ in rows:
            logits[index, 9] += 2.5
            logits[index, 11] = -math.inf


class Only(Bias):
    """Leaves tokens below 30 alone to draw from, after the temperature."""

    stage = "filter"

    def apply(self, logits: torch.Tensor, rows: Any) -> None:
        for index, _ in rows:
            logits[index, 30:] = -math.inf


def sampled(
    stage: str, scale: str, *, uses_kernels: bool, processor: str = "bias", seed: int = 0
) -> tuple[torch.Tensor, Draws]:
    """Return the logits of one step with all wishes, and what was drawn."""
    made = {"bias": Bias(NoOptions(), VOCAB)} if processor == "bias" else {}
    if processor == "filter":
        made = {"bias": Only(NoOptions(), VOCAB)}
    sampler = Sampler(
        len(WISHES),
        made,
        uses_kernels=uses_kernels,
        tells_processed=stage == "processed",
        tells_logits=scale == "logits",
    )
    for row, params in enumerate(WISHES):
        tokens = RowTokens(row=row, params=params, prompt_ids=PROMPT, output_ids=OUTPUT)
        sampler.add_row(tokens, seed=row)
    logits = torch.randn(len(WISHES), VOCAB, generator=torch.Generator().manual_seed(seed)) * 2
    rows, positions = np.arange(len(WISHES)), np.full(len(WISHES), 3)
    return logits, sampler.sample(logits.clone(), rows, positions, logits.clone)


def processed(logits: torch.Tensor, params: SamplingParams, *, is_shaped: bool) -> torch.Tensor:
    """Return one row's logits after everything that happens before the draw."""
    x = logits.double().clone()
    has_processor = "bias" in params.logits_processors
    if has_processor and not is_shaped:
        x[9] += 2.5
        x[11] = -math.inf
    counts = Counter(OUTPUT)
    for token in {*PROMPT, *OUTPUT}:
        factor = params.repetition_penalty
        x[token] = x[token] / factor if x[token] > 0 else x[token] * factor
    for token, count in counts.items():
        x[token] -= params.frequency_penalty * count + params.presence_penalty
    if params.temperature == 0:
        return x
    x = x / params.temperature
    if has_processor and is_shaped:
        x[30:] = -math.inf
    if params.min_p:
        x[x < x.max() + math.log(params.min_p)] = -math.inf
    order = x.argsort(descending=True, stable=True)
    kept = order[: params.top_k] if params.top_k > 0 else order
    share = x[kept].softmax(dim=0)
    kept = kept[(share.cumsum(0) - share) < params.top_p] if params.top_p < 1 else kept
    left = torch.full_like(x, -math.inf)
    left[kept] = x[kept]
    return left


def check(entry: TokenLogprobs, told: torch.Tensor, params: SamplingParams) -> None:
    """The entry says of its token and of the first n, or of those that are named, what `told` says
    of all tokens."""
    told = told.clamp(min=FLOOR)
    order = told.argsort(descending=True, stable=True)
    assert params.logprobs is not None
    size = VOCAB if params.logprobs < 0 else params.logprobs
    if params.logprob_token_ids:
        order, size = torch.tensor(params.logprob_token_ids), len(params.logprob_token_ids)
    assert entry.logprob == pytest.approx(told[entry.token_id].item(), abs=2e-5)
    assert entry.rank == int((told > told[entry.token_id]).sum()) + 1
    assert list(entry.top_ids) == order[:size].tolist()
    assert entry.top_logprobs == pytest.approx(told[order[:size]].tolist(), abs=2e-5)


@pytest.mark.parametrize("uses_kernels", [True, False], ids=["native", "torch"])
@pytest.mark.parametrize(("stage", "scale"), MODES)
@pytest.mark.parametrize("processor", ["bias", "filter"])
def test_each_mode_tells_what_it_says(
    stage: str, scale: str, processor: str, uses_kernels: bool
) -> None:
    logits, draws = sampled(stage, scale, uses_kernels=uses_kernels, processor=processor)
    assert not draws.faults
    for row, params in enumerate(WISHES):
        if params.logprobs is None:
            assert row not in draws.logprobs
            continue
        told = logits[row].double()
        if stage == "processed":
            told = processed(logits[row], params, is_shaped=processor == "filter")
        told = told.log_softmax(dim=0) if scale == "logprobs" else told
        assert draws.logprobs[row].token_id == draws.token_ids[row]
        check(draws.logprobs[row], told, params)


@pytest.mark.parametrize("scale", ["logprobs", "logits"])
def test_a_drawn_token_is_one_of_those_left(scale: str) -> None:
    for seed in range(20):
        _, draws = sampled("processed", scale, uses_kernels=True, seed=seed)
        assert all(entry.logprob > FLOOR for entry in draws.logprobs.values())
        assert draws.logprobs[3].rank <= 7  # top_k 7
        assert draws.logprobs[3].top_logprobs[7:] == (FLOOR, FLOOR)


@pytest.mark.parametrize(("stage", "scale"), MODES)
def test_the_mode_changes_no_token_and_both_ways_tell_the_same(stage: str, scale: str) -> None:
    _, plain = sampled("raw", "logprobs", uses_kernels=True)
    native, by_torch = (
        sampled(stage, scale, uses_kernels=uses_kernels)[1] for uses_kernels in (True, False)
    )
    assert native.token_ids == by_torch.token_ids == plain.token_ids
    for row, entry in native.logprobs.items():
        other = by_torch.logprobs[row]
        assert (entry.rank, entry.top_ids) == (other.rank, other.top_ids)
        values, others = ((e.logprob, *e.top_logprobs) for e in (entry, other))
        assert values == pytest.approx(others, abs=1e-9)


def test_a_row_tells_the_same_alone_and_in_a_batch() -> None:
    logits, together = sampled("processed", "logits", uses_kernels=True)
    for row, params in enumerate(WISHES):
        sampler = Sampler(1, {"bias": Bias(NoOptions(), VOCAB)}, tells_processed=True,
                          tells_logits=True)  # fmt: skip
        tokens = RowTokens(row=0, params=params, prompt_ids=PROMPT, output_ids=OUTPUT)
        sampler.add_row(tokens, seed=row)
        alone = sampler.sample(
            logits[row : row + 1].clone(), np.array([0]), np.array([3]), logits.clone
        )
        assert alone.logprobs.get(0) == together.logprobs.get(row)
