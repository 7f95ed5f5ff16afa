"""The sampler with native kernels against the sampler in torch operations: the same answers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.logits import LogitsProcessor, RowTokens
from dovetail.interfaces.plugin import Info, NoOptions
from dovetail.sampling.sampler import Draws, Sampler
from dovetail_kernels.cpu.library import library

pytestmark = pytest.mark.skipif(library() is None, reason="the native library is not there")
ROWS = 12


class Favour(LogitsProcessor):
    """Adds 1 to token 3 of every row that names it (stage "bias"), or bans token 0 ("filter")."""

    info = Info(summary="test processor")

    def __init__(self, stage: str) -> None:
        super().__init__(NoOptions(), 0)
        self.stage = stage  # type: ignore[misc]

    @classmethod
    def wants(cls, params: SamplingParams) -> bool:
        return "favour" in params.logits_processors

    def add_row(self, tokens: RowTokens) -> None: ...

    def remove_row(self, row: int) -> None: ...

    def apply(self, logits: torch.Tensor, rows: list[tuple[int, int]]) -> None:
        for index, _ in rows:
            if self.stage == "bias":
                logits[index, 3] += 1.0
            elif logits[index, 0] < 0:
                logits[index, 0] = -math.inf


def wish(rng: np.random.Generator) -> SamplingParams:
    """Return anything that a request may ask for."""
    return SamplingParams(
        temperature=float(rng.choice([0.0, 0.2, 0.8, 1.0, 2.0])),
        top_k=int(rng.choice([0, -1, 1, 5, 40, 10**6])),
        top_p=float(rng.choice([1.0, 0.9, 0.3, 1e-6])),
        min_p=float(rng.choice([0.0, 0.0, 0.1, 1.0])),
        presence_penalty=float(rng.choice([0.0, 0.5])),
        frequency_penalty=float(rng.choice([0.0, 0.3])),
        repetition_penalty=float(rng.choice([1.0, 1.2])),
        logprobs=[None, 0, 3, 20, 300, -1][rng.integers(6)],
        logits_processors={"favour": {}} if rng.random() < 0.2 else {},
    )


def sampler_of(wishes: list[SamplingParams], stage: str, *, uses_kernels: bool) -> Sampler:
    sampler = Sampler(ROWS, {"favour": Favour(stage)}, uses_kernels=uses_kernels)
    for row, params in enumerate(wishes):
        tokens = RowTokens(row=row, params=params, prompt_ids=[1, 2, 3], output_ids=[2, 4, 4])
        sampler.add_row(tokens, seed=row * 77)
    return sampler


def close(one: Draws, other: Draws) -> bool:
    """Return whether two steps drew the same; logprobs may differ in the last bit."""
    for i, told in one.logprobs.items():
        if (told.rank, told.top_ids) != (other.logprobs[i].rank, other.logprobs[i].top_ids):
            return False
        values = (told.logprob, *told.top_logprobs)
        others = (other.logprobs[i].logprob, *other.logprobs[i].top_logprobs)
        if np.abs(np.subtract(values, others)).max() > 1e-9:
            return False
    same = one.token_ids == other.token_ids and one.faults == other.faults
    return same and one.logprobs.keys() == other.logprobs.keys()


@pytest.mark.parametrize("stage", ["bias", "filter"])
@pytest.mark.parametrize("vocab", [50, 1000, 20_000])
@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=pytest.mark.any_isa if seed else ()) for seed in range(4)]
)
def test_same_answers_step_after_step(seed: int, vocab: int, stage: str) -> None:
    """Penalties grow with what is drawn, so one token that differed would spoil all later ones."""
    rng = np.random.default_rng([seed, vocab])
    wishes = [wish(rng) for _ in range(ROWS)]
    native, plain = (sampler_of(wishes, stage, uses_kernels=uses) for uses in (True, False))
    generator = torch.Generator().manual_seed(seed)
    for position in range(15):
        logits = torch.randn(ROWS, vocab, generator=generator) * 3
        if position % 3 == 1:
            logits.round_()  # ties
        if position == 12:
            logits[1, 7], logits[2], logits[3, 0] = math.nan, -math.inf, math.inf
        rows = rng.permutation(ROWS)[: rng.integers(1, ROWS + 1)]
        logits = logits[torch.from_numpy(rows)]
        one, other = (
            s.sample(logits.clone(), rows, np.full(len(rows), position), logits.clone)
            for s in (native, plain)
        )
        assert close(one, other)


def test_large_vocabulary() -> None:
    vocab = 152_000
    wishes = [wish(np.random.default_rng(100 + row)) for row in range(ROWS)]
    native, plain = (sampler_of(wishes, "bias", uses_kernels=uses) for uses in (True, False))
    logits = torch.randn(ROWS, vocab, generator=torch.Generator().manual_seed(0)) * 2
    rows, positions = np.arange(ROWS), np.zeros(ROWS, dtype=np.int64)
    assert close(
        *(s.sample(logits.clone(), rows, positions, logits.clone) for s in (native, plain))
    )


def test_long_outputs_find_room() -> None:
    """A row's table of seen tokens grows while the native kernels write to it."""
    params = [SamplingParams(temperature=0.0, presence_penalty=0.5)] * 2
    sampler = sampler_of(params, "bias", uses_kernels=True)
    logits = torch.linspace(1.0, 0.9, 500).repeat(2, 1)
    rows = np.arange(2)
    drawn = [
        sampler.sample(logits, rows, np.full(2, i), logits.clone).token_ids for i in range(490)
    ]
    left = [token for token in range(500) if token not in (2, 4)]
    assert [ids[0] for ids in drawn] == left[:490] and all(a == b for a, b in drawn)
