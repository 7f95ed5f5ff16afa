"""Verification of drafts on a tiny transformer: whatever is guessed, the row draws the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest
import torch

from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.data.spec import Selection
from dovetail.interfaces.data.step import NewRow, RowResult, RowStep, StepPlan
from dovetail.interfaces.logits import LogitsProcessor, RowTokens
from dovetail.interfaces.plugin import Info
from dovetail.runner.drafts.verify import one_by_one
from dovetail.runner.model_runner import ModelRunner
from dovetail_testing.scripted_steps import DriveOutput, DriveRequest
from dovetail_testing.tiny.transformer import VOCAB, WINDOW_TOKENS, tiny_layout, tiny_run
from support.inside import batch_of, layout_of, update_rows

ROW_BLOCKS = 20
Guess = Callable[[DriveRequest, Sequence[int]], tuple[int, ...]]


class NotTwice(LogitsProcessor):
    """Bans the token drawn last, and from the sixth on all odd ones."""

    info = Info(summary="test processor: looks at the tokens drawn so far")
    stage = "ban"

    def __init__(self, options: Any, vocab_size: int) -> None:
        super().__init__(options, vocab_size)
        self.rows: dict[int, RowTokens] = {}

    @classmethod
    def wants(cls, params: SamplingParams) -> bool:
        return params.min_tokens > 0

    def add_row(self, tokens: RowTokens) -> None:
        self.rows[tokens.row] = tokens

    def remove_row(self, row: int) -> None:
        self.rows.pop(row, None)

    def apply(self, logits: torch.Tensor, rows: Sequence[tuple[int, int]]) -> None:
        for index, row in rows:
            drawn = self.rows[row].output_ids
            if drawn:
                logits[index, drawn[-1]] = -torch.inf
            if len(drawn) > 5:
                logits[index, 1::2] = -torch.inf


PROCESSOR = Selection(
    kind="logits_processor", name="not_twice", target=f"{__file__}:{NotTwice.__name__}"
)
WAYS = (
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=1.2, top_k=30, logprobs=3),
    SamplingParams(temperature=0.9, repetition_penalty=1.4, frequency_penalty=0.6),
    SamplingParams(temperature=0.0, min_tokens=1, logprobs=0),
    SamplingParams(temperature=0.7, top_p=0.8, min_tokens=1, presence_penalty=1.0),
)


def runner(**changes: Any) -> ModelRunner:
    made = ModelRunner(tiny_run(logits_processors=(PROCESSOR,), **changes), torch.device("cpu"))
    made.load()
    made.allocate(tiny_layout(list(made.kv_layers()), num_blocks=320))
    return made


def requests() -> list[DriveRequest]:
    random = Random(2)
    return [
        DriveRequest(
            request_id=str(i),
            prompt_ids=tuple(random.randrange(VOCAB) for _ in range(3 + 7 * i)),
            num_tokens=14,
            sampling=way,
            seed=100 + i,
        )
        for i, way in enumerate(WAYS)
    ]


class Rows:
    """Requests as rows with all their blocks from the start; plans name drafts."""

    def __init__(self, made: ModelRunner, asked: Sequence[DriveRequest]) -> None:
        self.made, self.asked = made, asked
        self.groups = len(layout_of(made).groups)
        self.outputs = [DriveOutput() for _ in asked]
        self.num_steps = 0

    def new_row(self, row: int, request: DriveRequest) -> NewRow:
        first = [1 + (row * self.groups + g) * ROW_BLOCKS for g in range(self.groups)]
        return NewRow(
            row=row,
            request_id=request.request_id,
            token_ids=request.prompt_ids,
            num_prompt_tokens=len(request.prompt_ids),
            num_computed_tokens=0,
            blocks=tuple(tuple(range(start, start + ROW_BLOCKS)) for start in first),
            sampling=request.sampling,
            seed=request.seed,
        )

    def row_step(self, row: int, start: int, count: int, drafts: tuple[int, ...]) -> RowStep:
        return RowStep(
            row=row,
            start=start,
            num_tokens=count + len(drafts),
            samples=True,
            new_blocks=((),) * self.groups,
            drafts=drafts,
        )

    def step(self, steps: Sequence[RowStep], **plan: Any) -> tuple[RowResult, ...]:
        self.num_steps += 1
        result = self.made.step(StepPlan(step_id=self.num_steps, rows=tuple(steps), **plan))
        for row in result.rows:
            output = self.outputs[row.row]
            output.token_ids += row.token_ids
            output.logprobs += row.logprobs
            output.faults += [row.fault] if row.fault else []
        return result.rows

    def run(self, guess: Guess) -> list[DriveOutput]:
        """Return what every request drew, the row of request 0 joining last."""
        late = self.new_row(0, self.asked[0])
        fresh = [self.new_row(row, one) for row, one in enumerate(self.asked)][1:]
        whole = [self.row_step(n.row, 0, n.num_prompt_tokens, ()) for n in fresh]
        self.step(whole, new_rows=tuple(fresh))
        while steps := self.decodes(guess):
            joins = self.num_steps == 1
            extra = [self.row_step(0, 0, late.num_prompt_tokens, ())] if joins else []
            self.step([*steps, *extra], new_rows=(late,) if joins else ())
        self.made.step(StepPlan(step_id=0, rows=(), freed_rows=tuple(range(len(self.asked)))))
        return self.outputs

    def decodes(self, guess: Guess) -> list[RowStep]:
        steps = []
        for row, (request, output) in enumerate(zip(self.asked, self.outputs, strict=True)):
            left = request.num_tokens - len(output.token_ids)
            if output.token_ids and left > 0 and not output.faults:
                start = len(request.prompt_ids) + len(output.token_ids) - 1
                drafts = guess(request, output.token_ids)[: left - 1]
                steps.append(self.row_step(row, start, 1, drafts))
        return steps


def nothing(request: DriveRequest, drawn: Sequence[int]) -> tuple[int, ...]:
    return ()


@pytest.mark.parametrize("truth", [1.0, 0.6, 0.0])
@pytest.mark.parametrize("window", [None, WINDOW_TOKENS], ids=["full", "window"])
def test_drafts_change_nothing(window: int | None, truth: float) -> None:
    made = runner(hf_config={"window": window})
    plain = Rows(made, requests())
    expected = plain.run(nothing)
    random = Random(7)

    def guess(request: DriveRequest, drawn: Sequence[int]) -> tuple[int, ...]:
        coming = expected[int(request.request_id)].token_ids[len(drawn) :]
        coming = [t if random.random() < truth else random.randrange(VOCAB) for t in coming]
        return tuple(coming[: random.randrange(6)])

    drafted = Rows(made, requests())
    found = drafted.run(guess)
    assert [one.token_ids for one in found] == [one.token_ids for one in expected]
    if truth:
        assert drafted.num_steps < plain.num_steps
    for ours, theirs in zip(found, expected, strict=True):
        assert len(ours.logprobs) == len(theirs.logprobs)
        for one, other in zip(ours.logprobs, theirs.logprobs, strict=True):
            assert (one.token_id, one.rank, one.top_ids) == (
                other.token_id,
                other.rank,
                other.top_ids,
            )
            assert one.logprob == pytest.approx(other.logprob, abs=1e-5)
            assert one.top_logprobs == pytest.approx(other.top_logprobs, abs=1e-5)


def replaying(**script: Any) -> tuple[ModelRunner, DriveRequest]:
    config = {"replay": [{"tokens": [7, 8, 9, 10]} | script]}
    made = runner(model="dovetail_testing.models:ReplayModel", hf_config=config)
    return made, DriveRequest(request_id="0", prompt_ids=(1, 2), num_tokens=9)


def first_draft(made: ModelRunner, one: DriveRequest, drafts: tuple[int, ...]) -> Rows:
    rows = Rows(made, [one])
    rows.step([rows.row_step(0, 0, 2, ())], new_rows=(rows.new_row(0, one),))
    rows.step([rows.row_step(0, 2, 1, drafts)])
    return rows


@pytest.mark.parametrize(
    ("drafts", "told"), [((8, 9), [7, 8, 9, 10]), ((8, 5), [7, 8, 9]), ((5, 9), [7, 8])]
)
def test_one_token_more_than_came_true(drafts: tuple[int, ...], told: list[int]) -> None:
    assert first_draft(*replaying(), drafts).outputs[0].token_ids == told


def test_a_fault_after_the_first_draw_waits_for_the_next_step() -> None:
    """The tokens before it may end the request, and then it never happened."""
    rows = first_draft(*replaying(nan_at=2), (8, 9, 10))
    assert (rows.outputs[0].token_ids, rows.outputs[0].faults) == ([7, 8], [])
    assert batch_of(rows.made).lengths[0] == 4
    rows.step([rows.row_step(0, 3, 1, (9,))])
    assert rows.outputs[0].token_ids == [7, 8] and "not finite" in rows.outputs[0].faults[0]


def test_a_fault_at_a_draft_that_does_not_come_true_is_none() -> None:
    rows = first_draft(*replaying(nan_at=2), (5, 9))
    assert (rows.outputs[0].token_ids, rows.outputs[0].faults) == ([7, 8], [])


def test_attention_sees_rows_of_one_token() -> None:
    """Position by position, as in single steps; rows without drafts stay whole."""
    made = runner()
    rows = Rows(made, requests()[:2])
    fresh = [rows.new_row(row, one) for row, one in enumerate(rows.asked)]
    update_rows(made, StepPlan(step_id=0, rows=(), new_rows=tuple(fresh)))
    steps = (rows.row_step(0, 2, 1, (9, 5)), rows.row_step(1, 0, 10, ()))
    spread = one_by_one(batch_of(made).gather(StepPlan(step_id=1, rows=steps)))
    assert spread.rows.tolist() == [0, 0, 0, 1]
    assert spread.seq_lens.tolist() == [3, 4, 5, 10]
    assert spread.query_start.tolist() == [0, 1, 2, 3, 13]
    assert spread.positions.tolist() == [2, 3, 4, *range(10)]


def test_a_model_sees_drafts_and_processors_do_not() -> None:
    rows = first_draft(*replaying(), ())
    batch = batch_of(rows.made)
    inputs = batch.gather(StepPlan(step_id=9, rows=(rows.row_step(0, 3, 1, (9, 5)),)))
    assert list(batch.views(inputs)[0].token_ids) == [1, 2, 7, 8, 9, 5]
    assert list(batch.output_ids(0)) == [7, 8]
    assert inputs.token_ids.tolist() == [8, 9, 5]


def test_drafts_anywhere_but_behind_the_last_token_are_refused() -> None:
    made, one = replaying()
    rows = Rows(made, [one])
    with pytest.raises(AssertionError, match="does not have"):
        rows.step([rows.row_step(0, 0, 2, (5,))], new_rows=(rows.new_row(0, one),))
