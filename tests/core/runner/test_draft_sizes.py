"""How drafts are laid out and padded, so that few sizes of steps are recorded."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.data.step import NewRow, RowStep, StepPlan
from dovetail.interfaces.logits import RowTokens
from dovetail.runner.drafts.rows import DraftRows
from dovetail.runner.replay.recorded import LARGER, MAX_DRAFTED_ROWS, padded, sizes_ahead
from dovetail.runner.replay.recorded_inputs import RowInputs
from dovetail.runner.rows.batch import Batch, StepInputs
from dovetail.sampling.sampler import Sampler
from dovetail_kernels.cpu.library import missing_reason

VOCAB = 50


def test_few_sizes_hold_every_number_of_rows() -> None:
    sizes = [padded(count) for count in range(1, MAX_DRAFTED_ROWS + 1)]
    assert all(size >= count for count, size in enumerate(sizes, 1))
    assert sizes[:16] == list(range(1, 17))
    assert len(set(sizes)) == 16 + 12 + 6 + 12 and max(sizes) == MAX_DRAFTED_ROWS
    ahead = list(sizes_ahead(MAX_DRAFTED_ROWS))
    assert set(ahead) <= set(sizes) and len(ahead) < 25
    for size in sizes[1:]:
        assert any(size <= one <= LARGER * size for one in ahead), size


@pytest.mark.skipif(missing_reason() is not None, reason="there is no native library")
def test_lines_are_drawn_as_one_after_the_other() -> None:
    ways = (
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=0.9, top_k=9),
        SamplingParams(temperature=1.2, min_p=0.05),
        SamplingParams(repetition_penalty=1.3),
    )
    sampler = Sampler(len(ways), {})
    for row, way in enumerate(ways):
        sampler.add_row(RowTokens(row=row, params=way, prompt_ids=(1,), output_ids=[]), 20 + row)
    rows, positions = np.array([0, 0, 1, 1, 1, 2]), np.array([3, 4, 0, 1, 2, 9])
    logits = torch.randn(len(rows), VOCAB, generator=torch.Generator().manual_seed(1))
    found = sampler.sample_lines(logits.clone(), rows, positions)
    one_by_one = [
        sampler.sample(
            logits[i : i + 1].clone(), rows[i : i + 1], positions[i : i + 1], logits.clone
        )
        for i in range(len(rows))
    ]
    assert found == [draws.token_ids[0] for draws in one_by_one]
    assert sampler.sample_lines(logits[:2], np.array([0, 3]), np.array([0, 0])) is None
    broken = logits.clone()
    broken[1] = torch.nan
    assert sampler.sample_lines(broken, rows, positions) is None
    assert not sampler.sample(logits[:1].clone(), rows[:1], positions[:1], logits.clone).faults


def batch_of_two() -> Batch:
    """Return a batch whose rows 0 and 2 have 5 and 9 tokens, of which the last is not computed."""
    batch = Batch(3, 40, 1, 4)
    for row, count, blocks in ((0, 5, (1, 2)), (2, 9, (3, 4, 5))):
        batch.add_row(NewRow(
            row=row, request_id=str(row), token_ids=tuple(range(count)), num_prompt_tokens=3,
            num_computed_tokens=count - 1, blocks=(blocks,), sampling=SamplingParams(), seed=row,
        ))  # fmt: skip
    return batch


def drafted_step(batch: Batch, *drafts: tuple[int, ...]) -> StepInputs:
    """Return a step of rows 0 and 2 with these drafts."""
    steps = tuple(
        RowStep(
            row=row, start=int(batch.lengths[row]) - 1, num_tokens=1 + len(own), samples=True,
            new_blocks=((),), drafts=own,
        )
        for row, own in zip((0, 2), drafts, strict=True)
    )  # fmt: skip
    return batch.gather(StepPlan(step_id=1, rows=steps))


@pytest.mark.parametrize("shares_rows", [False, True])
def test_recorded_drafts_lie_behind_their_row_or_alone(shares_rows: bool) -> None:
    batch = batch_of_two()
    inputs = drafted_step(batch, (7,), (8, 9))
    places = RowInputs(batch.tables, 8, shares_rows=shares_rows)
    places.fill(inputs, None)
    places.pad(5, 6)
    (layout,) = places.layouts(6)
    counts = np.diff(layout.query_start.numpy()).tolist()
    seen = [length for length, count in zip(layout.seq_lens.tolist(), counts, strict=True) if count]
    if shares_rows:
        assert counts == [2, 3, 0, 0, 0, 1]
        assert seen == [6, 11, 1]  # the last one is padding, of the null block
    else:
        assert counts == [1] * 6
        assert seen == [5, 6, 9, 10, 11, 1]
    assert layout.block_table[0, :2].tolist() == [1, 2]
    assert layout.slots.tolist() == [8, 9, 20, 21, 22, 0]


@pytest.mark.parametrize("noted", [([21, 22], [23, 24, 25]), ([21, 22], [23, 24, 26])])
def test_drafts_that_came_true_are_a_rows_own_and_computed(noted: tuple[list[int], ...]) -> None:
    """By what the step verified, or, where it verified none, by the tokens."""
    rows, batch = np.array([0, 2]), batch_of_two()
    state = DraftRows(batch, 4, shift=0, keeps=False, is_ahead=False)
    for row in rows.tolist():
        state.begin(row, int(batch.lengths[row]), SamplingParams())
    inputs = drafted_step(batch, (), (23, 24, 25))
    state.note_drafts(rows, batch.lengths[rows], noted, [1, 2])
    batch.accept(rows, [0, 3], [21, 32])
    assert batch.tokens[2, 9:13].tolist() == [23, 24, 25, 32]
    assert batch.lengths[rows].tolist() == [6, 13]
    state.settle(inputs)
    assert state.computed[rows].tolist() == [5, 11]  # the last draft is not computed


def test_drafts_that_no_step_verified_are_compared_with_the_tokens() -> None:
    rows, batch = np.array([0, 2]), batch_of_two()
    state = DraftRows(batch, 4, shift=0, keeps=False, is_ahead=False)
    state.note_drafts(rows, batch.lengths[rows], [[21, 22, 23], [24, 25, 26]], [2, 2])
    for token_ids in ([21, 24], [22, 29]):
        batch.append(rows, token_ids)
    state.settle_ended(rows)
    assert state.computed[rows].tolist() == [6, 10]
