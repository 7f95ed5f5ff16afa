"""Places in the pipeline: what a processor of each stage is shown, and what follows from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch

from dovetail.errors import BrokenPlugin
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.logits import OWN_STEPS, PIPELINE, STAGES, LogitsProcessor, RowTokens
from dovetail.interfaces.plugin import Info, NoOptions
from dovetail.sampling.native import NativeBackend
from dovetail.sampling.pending import DoneDraws
from dovetail.sampling.sampler import Draws, Sampler
from dovetail.sampling.step import DrawStep
from dovetail_kernels.cpu.library import library

VOCAB = 64
LATE = STAGES[STAGES.index("before_temperature") :]


class Placed(LogitsProcessor):
    """Remembers the logits of the rows that name it, and changes them by a function."""

    info = Info(summary="test processor")

    def __init__(self, stage: str, change: Callable[[torch.Tensor], None] | None = None) -> None:
        super().__init__(NoOptions(), VOCAB)
        self.stage = stage
        self.change = change
        self.seen: list[torch.Tensor] = []

    @classmethod
    def wants(cls, params: SamplingParams) -> bool:
        return "placed" in params.logits_processors

    def add_row(self, tokens: RowTokens) -> None: ...

    def remove_row(self, row: int) -> None: ...

    def apply(self, logits: torch.Tensor, rows: Sequence[tuple[int, int]]) -> None:
        for index, _ in rows:
            self.seen.append(logits[index].clone())
            if self.change is not None:
                self.change(logits[index])


def logits_of(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, VOCAB, generator=torch.Generator().manual_seed(seed)) * 2


def sampler_of(
    wishes: Sequence[SamplingParams], *processors: Placed, uses_kernels: bool = True
) -> Sampler:
    named: dict[str, LogitsProcessor] = {f"p{i}": one for i, one in enumerate(processors)}
    sampler = Sampler(16, named, uses_kernels=uses_kernels)
    for row, params in enumerate(wishes):
        tokens = RowTokens(row=row, params=params, prompt_ids=[1, 2], output_ids=[3, 4])
        sampler.add_row(tokens, seed=100 + row)
    return sampler


def draw(sampler: Sampler, logits: torch.Tensor, position: int = 2) -> Draws:
    count = len(logits)
    positions = np.full(count, position)
    return sampler.sample(logits.clone(), np.arange(count), positions, lambda: logits.clone())


def placed(**params: float) -> SamplingParams:
    return SamplingParams(logits_processors={"placed": {}}, **params)  # type: ignore[arg-type]


def test_every_name_is_a_step_or_a_stage() -> None:
    assert sorted(PIPELINE) == sorted((*OWN_STEPS, *STAGES))
    assert [name for name in PIPELINE if name in OWN_STEPS] == list(OWN_STEPS)
    assert all(PIPELINE[PIPELINE.index(s) + 1] == s[7:] for s in STAGES if s.startswith("before_"))


def test_an_unknown_stage_is_an_error() -> None:
    with pytest.raises(BrokenPlugin, match=r'no stage "before_lunch".*before_top_k'):
        sampler_of([], Placed("before_lunch"))


@pytest.mark.parametrize("uses_kernels", [True, False])
def test_each_stage_sees_what_the_steps_before_it_leave(uses_kernels: bool) -> None:
    params = placed(temperature=2.0, frequency_penalty=9.0, min_p=0.1, top_k=8, top_p=0.6)
    processors = [Placed(stage) for stage in reversed(STAGES)]
    logits = logits_of(1)
    drawn = draw(sampler_of([params], *processors, uses_kernels=uses_kernels), logits)
    seen = {one.stage: one.seen[0] for one in processors}
    for stage in ("allow", "ban", "bias"):
        assert torch.equal(seen[stage], logits[0])
    penalised = logits[0].clone()
    penalised[[3, 4]] -= 9.0
    assert torch.equal(seen["before_temperature"], penalised)
    scaled = (penalised - penalised.max()) / 2.0
    assert torch.equal(seen["filter"], scaled)
    kept = {stage: int(seen[stage].isfinite().sum()) for stage in LATE}
    assert kept["before_top_k"] == int((scaled >= np.log(0.1)).sum()) < VOCAB
    assert kept["before_top_p"] == 8 < kept["before_top_k"]
    share = scaled.topk(8).values.double().softmax(0)
    assert kept["before_draw"] == int(((share.cumsum(0) - share) < 0.6).sum()) < 8
    assert seen["before_draw"][drawn.token_ids[0]].isfinite()


@pytest.mark.parametrize("uses_kernels", [True, False])
@pytest.mark.parametrize("stage", LATE)
def test_a_processor_that_changes_nothing_changes_no_draw(stage: str, uses_kernels: bool) -> None:
    params: list[dict[str, float]] = [
        {"temperature": 0.0, "repetition_penalty": 1.5},
        {"temperature": 0.8, "top_k": 5, "top_p": 0.7},
        {"temperature": 1.2, "min_p": 0.05, "top_p": 0.9},
        {"temperature": 0.7, "presence_penalty": 1.0, "min_p": 0.1, "top_k": 9, "top_p": 0.8},
    ]
    logits = logits_of(4, seed=3).round()  # with many ties
    with_it = sampler_of([placed(**one) for one in params], Placed(stage))
    mixed = sampler_of([placed(**params[0]), *(SamplingParams(**one) for one in params[1:])],  # type: ignore[arg-type]
                       Placed(stage))  # fmt: skip
    without = sampler_of(
        [SamplingParams(**one) for one in params],  # type: ignore[arg-type]
        uses_kernels=uses_kernels,
    )
    for position in range(40):
        wanted = draw(without, logits, position)
        assert draw(with_it, logits, position) == wanted
        assert draw(mixed, logits, position) == wanted


@pytest.mark.skipif(library() is None, reason="needs the native library")
def test_rows_without_a_processor_stay_with_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """One row's processor does not make others slow; a fault and logprobs find their rows."""
    native: list[list[int]] = []
    own = NativeBackend.draw

    def watched(self: NativeBackend, logits: torch.Tensor, step: DrawStep) -> DoneDraws:
        native.append(step.row_list)
        return own(self, logits, step)

    def fail(line: torch.Tensor) -> None:
        raise ValueError("no")

    monkeypatch.setattr(NativeBackend, "draw", watched)
    plain = SamplingParams(temperature=1.5, logprobs=2)
    wishes = [plain, placed(temperature=1.5), plain, placed(temperature=1.5)]
    logits = logits_of(4)
    with_it = draw(sampler_of(wishes, Placed("before_draw", fail)), logits)
    assert native == [[0, 2]]
    assert sorted(with_it.faults) == [1, 3] and sorted(with_it.logprobs) == [0, 2]
    without = draw(sampler_of([plain] * 4), logits)
    assert [with_it.token_ids[i] for i in (0, 2)] == [without.token_ids[i] for i in (0, 2)]
    assert all(with_it.logprobs[i] == without.logprobs[i] for i in (0, 2))


@pytest.mark.parametrize("stage", ["before_top_k", "before_top_p", "before_draw"])
def test_the_best_may_be_removed_after_the_filter_stage(stage: str) -> None:
    def drop_best(line: torch.Tensor) -> None:
        line[line.argmax()] = -torch.inf

    params = placed(temperature=1.0, top_k=3)
    sampler, logits = sampler_of([params], Placed(stage, drop_best)), logits_of(1)
    found = {draw(sampler, logits, position).token_ids[0] for position in range(300)}
    order = logits[0].topk(4).indices.tolist()
    assert found == set(order[1:4] if stage == "before_top_k" else order[1:3])


def test_greedy_rows_pass_the_stage_before_the_temperature_alone() -> None:
    def favour(line: torch.Tensor) -> None:
        line[7] = 50.0

    wishes = [placed(temperature=0.0), SamplingParams(temperature=0.0)]
    logits = logits_of(2)
    best = logits.argmax(dim=1).tolist()
    assert draw(sampler_of(wishes, Placed("before_temperature", favour)), logits).token_ids == [
        7,
        best[1],
    ]
    for stage in LATE[1:]:
        assert draw(sampler_of(wishes, Placed(stage, favour)), logits).token_ids == best


@pytest.mark.parametrize("stage", LATE)
def test_logits_without_a_token_end_their_row(stage: str) -> None:
    def nothing(line: torch.Tensor) -> None:
        line.fill_(-torch.inf)

    wishes = [SamplingParams(temperature=0.9, top_k=4), placed(temperature=0.9, top_k=4)]
    logits = logits_of(2)
    drawn = draw(sampler_of(wishes, Placed(stage, nothing)), logits)
    assert list(drawn.faults) == [1]
    assert drawn.token_ids[0] == draw(sampler_of(wishes[:1]), logits[:1]).token_ids[0]
