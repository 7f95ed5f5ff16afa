"""The whole pipeline: order, batch invariance, what is skipped, and whose fault a fault is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.logits import LogitsProcessor, RowTokens
from dovetail.interfaces.plugin import Info, NoOptions
from dovetail.sampling.sampler import Draws, Sampler

VOCAB = 50
GREEDY = SamplingParams(temperature=0.0)
WISHES = (
    GREEDY,
    SamplingParams(),
    SamplingParams(temperature=0.5, top_k=5, logprobs=3),
    SamplingParams(temperature=1.5, top_p=0.7),
    SamplingParams(temperature=0.0, logprobs=0),
    SamplingParams(temperature=0.0, repetition_penalty=2.0, logprobs=1),
    SamplingParams(temperature=0.9, frequency_penalty=1.0, top_k=10, top_p=0.8),
    SamplingParams(temperature=1e-30),
)


class Settings:
    uses_kernels = True


settings = Settings()


class Recording(LogitsProcessor):
    """Adds to the logits of the tokens in `options.value`, or raises for some rows."""

    info = Info(summary="test processor")
    stage = "bias"

    def __init__(self, *, stage: str = "bias", change=None, bad_rows: Sequence[int] = ()) -> None:
        super().__init__(NoOptions(), VOCAB)
        self.stage = stage  # type: ignore[misc]
        self.change, self.bad_rows = change, bad_rows
        self.calls: list[list[tuple[int, int]]] = []
        self.seen: list[torch.Tensor] = []

    @classmethod
    def wants(cls, params: SamplingParams) -> bool:
        return "recording" in params.logits_processors

    def add_row(self, tokens: RowTokens) -> None:
        if tokens.params.logits_processors["recording"].get("raises_at_once"):
            raise ValueError("bad options")

    def remove_row(self, row: int) -> None: ...

    def apply(self, logits: torch.Tensor, rows: Sequence[tuple[int, int]]) -> None:
        self.calls.append(list(rows))
        self.seen.append(logits.clone())
        for index, row in rows:
            logits[index, 0] = 99.0  # half-done work that must not survive a failure
            if row in self.bad_rows:
                raise RuntimeError("broken for this row")
            logits[index, 0] = self.seen[-1][index, 0]
            if self.change is not None:
                self.change(logits[index])


def using(**options: Any) -> SamplingParams:
    return SamplingParams(temperature=0.0, logits_processors={"recording": options})


def logits_of(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, VOCAB, generator=torch.Generator().manual_seed(seed)) * 2


@pytest.fixture(autouse=True, params=[True, False], ids=["native", "torch"])
def uses_kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every test run with the native kernels, if there are any, and without."""
    monkeypatch.setattr(settings, "uses_kernels", request.param)


def sampler_with(wishes: Sequence[SamplingParams], **processors: LogitsProcessor) -> Sampler:
    sampler = Sampler(32, processors, uses_kernels=settings.uses_kernels)
    for row, params in enumerate(wishes):
        tokens = RowTokens(row=row, params=params, prompt_ids=[1, 2], output_ids=[3, 3, 4])
        sampler.add_row(tokens, seed=100 + row)
    return sampler


def sample(sampler: Sampler, logits: torch.Tensor, rows: Sequence[int], position: int = 3) -> Draws:
    return sampler.sample(
        logits.clone(), np.array(rows), np.full(len(rows), position), lambda: logits.clone()
    )


def test_a_row_draws_the_same_alone_and_in_any_batch() -> None:
    logits = logits_of(len(WISHES))
    rows = list(range(len(WISHES)))
    for position in range(8):
        together = sample(sampler_with(WISHES), logits, rows, position)
        backwards = sample(sampler_with(WISHES), logits.flip(0), rows[::-1], position)
        assert together.token_ids == backwards.token_ids[::-1]
        for row in rows:
            alone = sample(sampler_with(WISHES), logits[row : row + 1], [row], position)
            assert alone.token_ids == [together.token_ids[row]]
            assert alone.logprobs.get(0) == together.logprobs.get(row)


def test_greedy_takes_the_first_best() -> None:
    logits = torch.zeros(3, VOCAB)
    logits[0, 7] = logits[0, 9] = 1.0
    logits[2, 49] = 0.1
    assert sample(sampler_with([GREEDY] * 3), logits, [0, 1, 2]).token_ids == [7, 0, 49]


def test_tiny_temperature_is_greedy() -> None:
    logits = logits_of(1)
    drawn = sample(sampler_with([SamplingParams(temperature=1e-30)]), logits, [0])
    assert drawn.token_ids == [int(logits.argmax())] and not drawn.faults


def test_distribution_after_all_filters() -> None:
    params = SamplingParams(temperature=2.0, top_k=4, top_p=0.9)
    sampler, logits = sampler_with([params]), logits_of(1)
    drawn = [sample(sampler, logits, [0], position).token_ids[0] for position in range(1200)]
    scaled = (logits[0] / 2.0).double()
    best = scaled.topk(4)
    share = best.values.softmax(dim=0)
    kept = int(((share.cumsum(0) - share) < 0.9).sum())
    wanted = share[:kept] / share[:kept].sum()
    found = [drawn.count(int(i)) / 1200 for i in best.indices[:kept]]
    assert sum(found) == 1.0
    assert np.abs(np.array(found) - wanted.numpy()).max() < 0.05


@pytest.mark.parametrize("narrow", [torch.bfloat16, torch.float16])
def test_narrow_logits_are_widened(narrow: torch.dtype) -> None:
    logits = logits_of(len(WISHES)).to(narrow)
    rows = list(range(len(WISHES)))
    wide = sample(sampler_with(WISHES), logits.float(), rows)
    assert sample(sampler_with(WISHES), logits, rows).token_ids == wide.token_ids


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("row", range(len(WISHES)))
def test_not_finite_logits_cost_one_row(bad: float, row: int) -> None:
    logits, rows = logits_of(len(WISHES)), list(range(len(WISHES)))
    clean = sample(sampler_with(WISHES), logits, rows)
    spoiled = logits.clone()
    spoiled[row, 5] = bad
    found = sample(sampler_with(WISHES), spoiled, rows)
    assert list(found.faults) == [row] and "not finite" in found.faults[row]
    assert [t for i, t in enumerate(found.token_ids) if i != row] == [
        t for i, t in enumerate(clean.token_ids) if i != row
    ]
    assert row not in found.logprobs
    alone = sample(sampler_with(WISHES), spoiled[row : row + 1], [row])
    assert list(alone.faults) == [0]


def test_a_fault_stays_with_the_row_until_it_is_freed() -> None:
    sampler, logits = sampler_with([GREEDY, GREEDY]), logits_of(2)
    spoiled = logits.clone()
    spoiled[1] = float("nan")
    assert list(sample(sampler, spoiled, [0, 1]).faults) == [1]
    assert list(sample(sampler, logits, [0, 1]).faults) == [1]
    sampler.remove_row(1)
    sampler.add_row(RowTokens(row=1, params=GREEDY, prompt_ids=[1], output_ids=[]), seed=0)
    assert sample(sampler, logits, [0, 1]).faults == {}


def test_a_raising_processor_costs_its_row() -> None:
    processor = Recording(bad_rows=[2])
    sampler = sampler_with([using(), GREEDY, using(), using()], recording=processor)
    logits = logits_of(4)
    found = sample(sampler, logits, [0, 1, 2, 3])
    assert list(found.faults) == [2]
    assert (
        found.faults[2] == 'logits processor "recording" failed: RuntimeError: broken for this row'
    )
    best = logits.argmax(dim=1).tolist()
    assert [found.token_ids[i] for i in (0, 1, 3)] == [best[i] for i in (0, 1, 3)]


@pytest.mark.parametrize("stage", ["allow", "ban", "bias", "filter"])
def test_raising_in_any_stage(stage: str) -> None:
    processor = Recording(stage=stage, bad_rows=[0])
    warm = SamplingParams(temperature=1.0, logits_processors={"recording": {}})
    found = sample(sampler_with([warm, warm], recording=processor), logits_of(2), [0, 1])
    assert list(found.faults) == [0]


def test_a_processor_that_refuses_a_row_costs_that_row() -> None:
    sampler = sampler_with([using(raises_at_once=True), GREEDY], recording=Recording())
    found = sample(sampler, logits_of(2), [0, 1])
    assert list(found.faults) == [0] and "bad options" in found.faults[0]


@pytest.mark.parametrize(
    ("value", "text"),
    [(-torch.inf, "no token is left"), (float("nan"), "left logits that are not")],
)
@pytest.mark.parametrize("stage", ["ban", "filter"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_processor_that_ruins_logits(
    value: float, text: str, stage: str, temperature: float
) -> None:
    processor = Recording(stage=stage, change=lambda row: row.fill_(value))
    params = SamplingParams(temperature=temperature, logits_processors={"recording": {}})
    found = sample(sampler_with([GREEDY, params], recording=processor), logits_of(2), [0, 1])
    if stage == "filter" and temperature == 0.0:
        assert not found.faults and not processor.calls
    else:
        assert list(found.faults) == [1] and text in found.faults[1]


def test_unused_processors_are_not_called() -> None:
    processor = Recording()
    sampler = sampler_with([GREEDY, SamplingParams(), using()], recording=processor)
    sample(sampler, logits_of(2), [0, 1])
    assert processor.calls == []
    sample(sampler, logits_of(3), [1, 2, 0])
    assert processor.calls == [[(1, 2)]]


def test_stages_run_in_order() -> None:
    """allow, ban, bias, penalties, temperature, filter: each sees what came before it."""

    def add(amount: float):
        return lambda row: row.add_(amount)

    stages = {"filter": 0.0, "bias": 4.0, "allow": 1.0, "ban": 2.0}
    found = {s: Recording(stage=s, change=add(a)) for s, a in stages.items()}
    params = SamplingParams(
        temperature=2.0, presence_penalty=2.0, logits_processors={"recording": {}}
    )
    logits = logits_of(1)
    sample(sampler_with([params], **found), logits, [0])
    start = logits[0, 0]
    assert found["allow"].seen[0][0, 0] == start
    assert found["ban"].seen[0][0, 0] == start + 1
    assert found["bias"].seen[0][0, 0] == start + 1 + 2
    seen = found["filter"].seen[0][0]
    biased = logits[0] + 7
    biased[[3, 4]] -= 2.0
    assert torch.allclose(seen, (biased - biased.max()) / 2.0, atol=1e-5)


def test_logprobs_are_those_of_the_raw_logits() -> None:
    processor = Recording(change=lambda row: row[4:].fill_(-torch.inf))
    params = SamplingParams(
        temperature=0.0, logprobs=2, repetition_penalty=2.0, logits_processors={"recording": {}}
    )
    logits = logits_of(1)
    found = sample(sampler_with([params], recording=processor), logits, [0])
    told, raw = found.logprobs[0], logits[0].log_softmax(dim=0)
    assert found.token_ids[0] < 4
    assert told.logprob == pytest.approx(raw[found.token_ids[0]].item(), abs=1e-5)
    assert list(told.top_ids) == raw.topk(2).indices.tolist()
    assert told.rank == int((raw > raw[found.token_ids[0]]).sum()) + 1


def test_penalties_learn_what_was_drawn() -> None:
    sampler = sampler_with([SamplingParams(temperature=0.0, presence_penalty=2.0)])
    logits = torch.zeros(1, VOCAB)
    logits[0, 10], logits[0, 11] = 1.0, 0.5
    assert [sample(sampler, logits, [0]).token_ids[0] for _ in range(3)] == [10, 11, 0]


class OwnMinP(Recording):
    """A filter that says it is nothing but min-p."""

    field = "min_p"


def test_a_lone_min_p_is_done_by_the_sampler() -> None:
    """With another filter beside it, it is called in its turn."""
    params = SamplingParams(min_p=1.0, logits_processors={"recording": {}})
    logits = logits_of(1)
    lone, first = OwnMinP(stage="filter"), OwnMinP(stage="filter")
    second = Recording(stage="filter")
    drawn = sample(sampler_with([params], min_p=lone), logits, [0])
    assert lone.calls == [] and drawn.token_ids == [int(logits.argmax())]
    sample(sampler_with([params], min_p=first, other=second), logits, [0])
    assert first.calls == second.calls == [[(0, 0)]]
