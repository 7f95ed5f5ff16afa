"""Acceptance by the sampler: 100,000 draws against the model's distribution, by a chi-square test,
and rows in the runner whose drafts come with what they were sampled from."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch

from dovetail.interfaces.acceptance import Acceptance
from dovetail.interfaces.logits import RowTokens
from dovetail.interfaces.plugin import Info, NoOptions
from dovetail.interfaces.sampling_params import SamplingParams
from dovetail.interfaces.spec import Selection
from dovetail.interfaces.step import NewRow, RowResult, RowStep, StepPlan
from dovetail.runner.model_runner import ModelRunner
from dovetail.sampling.acceptance import DRAFT_STREAM, Proposals
from dovetail.sampling.sampler import Draws, Sampler
from dovetail.testing.tiny import VOCAB, tiny_layout, tiny_run
from dovetail_kernels.sample.definition import uniforms
from dovetail_plugins.acceptance.rejection_sampler import RejectionSampler
from dovetail_plugins.acceptance.typical_acceptance_sampler import (
    TypicalAcceptanceSampler,
    TypicalOptions,
)

ROWS, TURNS, SIZE = 2000, 50, 12
LIMIT = 29.6
"""Chi-square of 10 degrees of freedom is above it once in a thousand times."""
WAY = SamplingParams(temperature=0.8, top_k=11)
LOGITS = 1.5 * torch.randn(SIZE, generator=torch.Generator().manual_seed(4))
SEEDS = np.arange(1_000_000, 1_000_000 + ROWS, dtype=np.uint64)
Propose = Callable[[np.ndarray, int], tuple[np.ndarray, torch.Tensor | None]]


class Careless(RejectionSampler):
    """Draws from p again after a rejection: the usual mistake, which the test must find."""

    info = Info(summary="test acceptance")

    def residual(self, p: torch.Tensor, drafts: torch.Tensor, q: torch.Tensor | None) -> None:
        return None


def model_distribution() -> np.ndarray:
    """Return what WAY makes of LOGITS, from the definitions. Shapes: [V] float64"""
    logits = LOGITS.double().numpy() / 0.8
    logits[np.argsort(logits)[: SIZE - 11]] = -np.inf
    weight = np.exp(logits - logits.max())
    told: np.ndarray = weight / weight.sum()
    return told


def ngram_like(seeds: np.ndarray, turn: int) -> tuple[np.ndarray, None]:
    """Return the token that the turn has, likely or not, for every row."""
    return np.full(len(seeds), turn % SIZE), None


def far_away(seeds: np.ndarray, turn: int) -> tuple[np.ndarray, torch.Tensor]:
    """Return tokens sampled from a distribution that likes what the model does not."""
    q = (-1.2 * LOGITS).softmax(0)
    lots = uniforms(seeds ^ DRAFT_STREAM, np.full(len(seeds), turn))
    drafts = np.searchsorted(q.double().cumsum(0).numpy(), lots * (1 - 1e-6), side="right")
    return drafts, q.expand(len(seeds), -1)


def counts(acceptance: Acceptance | None, propose: Propose) -> tuple[np.ndarray, int]:
    """Return how often each token stood in 100,000 places, and how many drafts did.

    `acceptance` None: draws decide alone, as they do in the runner on drafts not sampled.
    """
    sampler, rows = Sampler(ROWS, {}, acceptance=acceptance), np.arange(ROWS)
    for row in rows.tolist():
        tokens = RowTokens(row=row, params=WAY, prompt_ids=(3,), output_ids=[])
        sampler.add_row(tokens, int(SEEDS[row]))
    found, num_accepted = np.zeros(SIZE, dtype=np.int64), 0
    for turn in range(TURNS):
        drafts, q = propose(SEEDS, turn)
        proposals = (Proposals(indices=rows, token_ids=drafts, probabilities=q),)
        draws = sample(sampler, rows, turn, () if acceptance is None else proposals)
        tokens = np.array(draws.token_ids)
        found += np.bincount(tokens, minlength=SIZE)
        num_accepted += int((tokens == drafts).sum())
    return found, num_accepted


def sample(
    sampler: Sampler, rows: np.ndarray, turn: int, proposals: Sequence[Proposals] = ()
) -> Draws:
    logits = LOGITS.repeat(len(rows), 1)
    return sampler.sample(logits, rows, np.full(len(rows), turn), logits.clone, proposals)


def chi_square(found: np.ndarray) -> float:
    p = model_distribution()
    expected = p * found.sum()
    assert found[p == 0].sum() == 0
    return float(((found - expected) ** 2 / np.where(p > 0, expected, 1.0)).sum())


@pytest.mark.parametrize("propose", [None, ngram_like, far_away])
def test_rejection_keeps_the_distribution(propose: Propose | None) -> None:
    rule = None if propose is None else RejectionSampler(NoOptions())
    found, num_accepted = counts(rule, propose or ngram_like)
    assert found.sum() == 100_000 and num_accepted > 1000
    assert chi_square(found) < LIMIT


def test_the_chi_square_test_finds_a_lean_towards_drafts() -> None:
    found, _ = counts(Careless(NoOptions()), far_away)
    assert chi_square(found) > 50 * LIMIT
