"""Acceptance by the sampler: 100,000 draws against the model's distribution, by a chi-square test,
and rows in the runner whose drafts come with what they were sampled from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from dovetail.interfaces.acceptance import Acceptance
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.data.step import NewRow, RowStep, StepPlan
from dovetail.interfaces.logits import RowTokens
from dovetail.interfaces.plugin import Info, NoOptions
from dovetail.runner.drafts.sampled import SampledDrafts
from dovetail.runner.drafts.verify import RowDraws, drawn_positions, verify_drafts
from dovetail.runner.rows.batch import Batch
from dovetail.sampling.acceptance import DRAFT_STREAM, Proposals
from dovetail.sampling.sampler import Draws, Sampler
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


FEW = 4
"""Tokens of the chain below."""
AFTER = torch.randn(FEW, FEW, generator=torch.Generator().manual_seed(1))
GUESSED = AFTER + torch.randn(FEW, FEW, generator=torch.Generator().manual_seed(2))
"""Logits of the next token, by the last one: the model's, and the drafter's."""
Q = GUESSED.softmax(1)
HEAPS = Q.double().cumsum(1).numpy()
PLAIN = SamplingParams()


class ChainDrafter:
    """Samples drafts from GUESSED, as a drafter on the worker does; knows nothing of the rest."""

    def __init__(self, *, knows: Sequence[int]) -> None:
        self._knows = set(knows)
        self._tables: dict[int, torch.Tensor] = {}

    def propose(
        self, rows: np.ndarray, last: np.ndarray, positions: np.ndarray, count: int
    ) -> np.ndarray:
        """Return `count` drafts of each row after its token `last`, the first one at `positions`.

        Shapes: [S] each -> [S, count]
        """
        drafts = np.zeros((len(rows), count), dtype=np.int64)
        tables = []
        for place in range(count):
            tables.append(Q[torch.from_numpy(last)])
            lots = uniforms(SEEDS[rows] ^ DRAFT_STREAM, positions + place)
            last = np.minimum((HEAPS[last] <= lots[:, None]).sum(axis=1), FEW - 1)
            drafts[:, place] = last
        of_rows = torch.stack(tables, dim=1) if tables else Q.new_zeros(len(rows), 0, FEW)
        self._tables |= dict(zip(rows.tolist(), of_rows, strict=True))
        return drafts

    def of(self, row: int, drafts: Sequence[int]) -> torch.Tensor | None:
        return self._tables[row][: len(drafts)] if row in self._knows else None


class Chain:
    """A model that is a table, driven by verify_drafts; every row begins with token 0."""

    def __init__(self, acceptance: Acceptance | None, ways: Sequence[SamplingParams]) -> None:
        self.rows = np.arange(len(ways))
        self.sampler = Sampler(len(ways), {}, acceptance=acceptance)
        self.batch = Batch(len(ways), 16, 0, 4)
        self.told: list[list[int]] = [[] for _ in ways]
        self.draws: list[RowDraws] = []
        for row, way in enumerate(ways):
            self.batch.add_row(NewRow(
                row=row, request_id=str(row), token_ids=(0,), num_prompt_tokens=1,
                num_computed_tokens=0, blocks=(), sampling=way, seed=int(SEEDS[row]),
            ))  # fmt: skip
            self.sampler.add_row(
                RowTokens(row=row, params=way, prompt_ids=(0,), output_ids=[]), int(SEEDS[row])
            )

    def run(self, drafter: Any, num_tokens: int, num_drafts: int) -> list[list[int]]:
        """Return what each row draws, `num_tokens` or a few more."""
        while live := [row for row in self.rows.tolist() if len(self.told[row]) < num_tokens]:
            rows = np.array(live)
            lengths = self.batch.lengths[rows]
            last = self.batch.tokens[rows, lengths - 1].astype(np.int64)
            drafts = drafter.propose(rows, last, lengths - 1, num_drafts)
            starts = (lengths - 1).tolist()
            parts = zip(live, starts, drafts.tolist(), strict=True)
            steps = tuple(row_step(row, start, tuple(own)) for row, start, own in parts)
            inputs = self.batch.gather(StepPlan(step_id=1, rows=steps))
            sampling = np.arange(len(live))
            after = AFTER[torch.from_numpy(inputs.token_ids[drawn_positions(inputs, sampling)])]
            self.draws = verify_drafts(
                self.sampler, self.batch, inputs, sampling, after.clone, drafter
            )
            for row, one in zip(live, self.draws, strict=True):
                self.told[row] += one.token_ids
        return self.told


def row_step(row: int, start: int, drafts: tuple[int, ...]) -> RowStep:
    return RowStep(
        row=row, start=start, num_tokens=1 + len(drafts), samples=True, new_blocks=(),
        drafts=drafts,
    )  # fmt: skip


class SamplingDrafter:
    """Drafts as a model on the worker does, by the sampler and with what it keeps."""

    def __init__(self, chain: Chain) -> None:
        self._own = SampledDrafts(chain.sampler)
        self.of = self._own.of

    def propose(
        self, rows: np.ndarray, last: np.ndarray, positions: np.ndarray, count: int
    ) -> np.ndarray:
        """Return `count` drafts of each row, after one more for which there is no room."""
        self._own.begin(rows)
        drafts = []
        for place in range(count + 1):
            last = self._own.sample(GUESSED[torch.from_numpy(last)], rows, positions + place)
            drafts.append(last)
        return np.stack(drafts[:count], axis=1)


def joint_distribution() -> np.ndarray:
    """Return how likely three tokens in a row are, after token 0. Shapes: [FEW ** 3]"""
    after = AFTER.double().softmax(1).numpy()
    told: np.ndarray = np.einsum("a,ab,bc->abc", after[0], after, after).ravel()
    return told


@pytest.mark.parametrize("knows", ["all", "half", "none"])
def test_several_sampled_drafts_in_a_step_keep_the_joint_distribution(knows: str) -> None:
    """Also where some drafts are handed in with what they were sampled from, and others are not:
    then a draft counts as certain, which costs acceptance and nothing else."""
    known = {"all": range(ROWS), "half": range(0, ROWS, 2), "none": ()}[knows]
    chain = Chain(RejectionSampler(NoOptions()), [PLAIN] * ROWS)
    told = np.array([one[:3] for one in chain.run(ChainDrafter(knows=known), 3, 3)])
    found = np.bincount(told @ [FEW * FEW, FEW, 1], minlength=FEW**3)
    expected = joint_distribution() * ROWS
    chi_squared = float(((found - expected) ** 2 / expected).sum())
    assert chi_squared < 103.4  # of 63 degrees of freedom, once in a thousand times


@pytest.mark.parametrize("most", [2, 64])
def test_drafts_sampled_on_the_worker_keep_the_joint_distribution(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where they are sampled among fewer tokens than there are."""
    monkeypatch.setattr("dovetail.sampling.drafts.MOST_TOKENS", most)
    chain = Chain(RejectionSampler(NoOptions()), [PLAIN] * ROWS)
    told = np.array([one[:3] for one in chain.run(SamplingDrafter(chain), 3, 2)])
    found = np.bincount(told @ [FEW * FEW, FEW, 1], minlength=FEW**3)
    expected = joint_distribution() * ROWS
    assert ((found - expected) ** 2 / expected).sum() < 103.4


def test_what_drafts_were_sampled_from_is_kept_by_row() -> None:
    ways = [SamplingParams(temperature=0.5, top_k=2), SamplingParams(temperature=0.0)]
    chain, rows = Chain(None, ways), np.arange(2)
    own = SampledDrafts(chain.sampler)
    first, second = (own.sample(GUESSED[:2], rows, np.full(2, place)) for place in (0, 1))
    assert first[1] == second[1] == int(GUESSED[1].argmax())
    assert own.of(1, [int(first[1])]) is None  # it was not sampled
    tables = own.of(0, [int(first[0]), int(second[0])])
    assert tables is not None and len(tables) == 2
    logits = GUESSED[0] / 0.5
    logits[logits < logits.topk(2).values[-1]] = -torch.inf
    assert torch.allclose(tables[0], logits.softmax(0), atol=1e-6)
    assert own.of(0, [int(first[0])]) is not None
    assert own.of(0, [(int(first[0]) + 1) % FEW]) is None
    own.begin(rows)
    assert own.of(0, [int(first[0])]) is None


MIXED = (
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.7, logprobs=2),
    SamplingParams(repetition_penalty=1.5, logprobs=1),
    SamplingParams(temperature=0.0, logprobs=0, frequency_penalty=1.0),
    SamplingParams(temperature=1.3, top_p=0.9),
)


@pytest.mark.parametrize("acceptance", [RejectionSampler(NoOptions()), None])
def test_greedy_rows_are_the_same_to_the_bit(acceptance: Acceptance | None) -> None:
    """Beside rows that are not greedy; and those are the same whoever stands beside them."""
    known = range(len(MIXED)) if acceptance is not None else ()
    together = Chain(acceptance, MIXED).run(ChainDrafter(knows=known), 9, 3)
    without = Chain(None, MIXED).run(ChainDrafter(knows=()), 9, 0)
    assert together[0][:9] == without[0][:9] and together[3][:9] == without[3][:9]
    if acceptance is None:
        assert [one[:9] for one in together] == [one[:9] for one in without]


def test_a_row_draws_the_same_alone_and_in_a_batch() -> None:
    rule, known = RejectionSampler(NoOptions()), range(len(MIXED))
    together = Chain(rule, MIXED).run(ChainDrafter(knows=known), 9, 3)
    for row, way in enumerate(MIXED):
        quiet = [SamplingParams(temperature=0.0)] * row + [way]
        alone = Chain(rule, quiet).run(ChainDrafter(knows=[row]), 9, 3)
        assert alone[row][:9] == together[row][:9]


def test_logprobs_are_those_of_what_stands() -> None:
    chain = Chain(RejectionSampler(NoOptions()), [SamplingParams(logprobs=2)] * 50)
    chain.run(ChainDrafter(knows=range(50)), 1, 3)
    assert len({len(one.token_ids) for one in chain.draws}) > 1
    for one in chain.draws:
        assert [each.token_id for each in one.logprobs] == one.token_ids
        before = [0, *one.token_ids[:-1]]
        for each, last in zip(one.logprobs, before, strict=True):
            own = float(AFTER[last].log_softmax(0)[each.token_id])
            assert each.logprob == pytest.approx(own, abs=1e-5)


def typical(**options: float) -> TypicalAcceptanceSampler:
    return TypicalAcceptanceSampler(TypicalOptions(**options))


def test_typical_acceptance_keeps_likely_drafts_and_no_others() -> None:
    p = torch.tensor([[0.5, 0.3, 0.15, 0.05]], dtype=torch.float64)
    entropy = float(-(p * p.log()).sum())

    def accepted(rule: TypicalAcceptanceSampler) -> list[float]:
        return rule.chance(p.repeat(4, 1), torch.arange(4), None).tolist()

    assert accepted(typical()) == [1.0, 1.0, 1.0, 0.0]
    assert typical().options.alpha == pytest.approx(0.3)
    assert accepted(typical(posterior_threshold=0.4, posterior_alpha=9.0)) == [1.0, 0.0, 0.0, 0.0]
    alpha = 0.2 / np.exp(-entropy)
    assert accepted(typical(posterior_threshold=0.9, posterior_alpha=alpha)) == [1.0, 1.0, 0.0, 0.0]


def test_typical_acceptance_decides_on_drafts_that_were_not_sampled() -> None:
    """It accepts more, and the answers lean towards drafts; what it rejects leaves no trace."""
    ways = [PLAIN] * ROWS
    kinds = (None, typical(), typical(posterior_threshold=1.0, posterior_alpha=1e9))
    chains = [Chain(rule, ways).run(ChainDrafter(knows=()), 3, 3) for rule in kinds]
    exact, leaning, strict = ([tuple(one[:3]) for one in chain] for chain in chains)
    assert strict == exact  # no draft is likely enough
    assert leaning != exact
    lengths = [sum(map(len, chain)) for chain in chains]
    assert lengths[1] > 1.1 * lengths[0]
    found = np.bincount(np.array(leaning) @ [FEW * FEW, FEW, 1], minlength=FEW**3)
    expected = joint_distribution() * ROWS
    assert ((found - expected) ** 2 / expected).sum() > 1000


def test_typical_acceptance_leaves_greedy_rows_alone() -> None:
    greedy = [SamplingParams(temperature=0.0)] * 3
    drafted = Chain(typical(), greedy).run(ChainDrafter(knows=()), 9, 3)
    plain = Chain(None, greedy).run(ChainDrafter(knows=()), 9, 0)
    assert [one[:9] for one in drafted] == [one[:9] for one in plain]
