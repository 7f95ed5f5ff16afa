"""How drafts are laid out and padded, so that few sizes of steps are recorded."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dovetail.interfaces.logits import RowTokens
from dovetail.interfaces.sampling_params import SamplingParams
from dovetail.runner.block_table import BlockTable
from dovetail.runner.draft_chain import _Places, known_lines
from dovetail.runner.recorded import MAX_DRAFTED_ROWS, padded
from dovetail.sampling.sampler import Sampler
from dovetail_kernels.cpu.library import missing_reason

VOCAB = 50


def test_few_sizes_hold_every_number_of_rows() -> None:
    sizes = [padded(count) for count in range(1, MAX_DRAFTED_ROWS + 1)]
    assert all(size >= count for count, size in enumerate(sizes, 1))
    assert sizes[:16] == list(range(1, 17))
    assert len(set(sizes)) == 16 + 12 + 6 + 12 and max(sizes) == MAX_DRAFTED_ROWS


def test_last_tokens_come_first_and_states_are_picked_alike() -> None:
    rows, starts, limits = np.array([4, 7, 2]), np.array([10, 0, 5]), np.array([11, 3, 7])
    known = known_lines(rows, starts, limits)
    lines = list(zip(known.rows.tolist(), known.positions.tolist(), strict=True))
    assert lines == [(4, 10), (7, 2), (2, 6), (7, 0), (7, 1), (2, 5)]
    by_rows = [(4, 10), (7, 0), (7, 1), (7, 2), (2, 5), (2, 6)]
    assert [by_rows[place] for place in known.picked] == lines


def test_a_row_that_begins_anew_reads_no_block_before() -> None:
    table = BlockTable(2, 6, 4)
    table.fill_row(0, [1, 2, 3])
    table.fill_row(1, [4, 5, 6, 7])
    rows, starts, limits = np.array([0, 1]), np.array([6, 13]), np.array([7, 15])
    known, wants = known_lines(rows, starts, limits), np.array([2, 2])
    places = _Places(table, 3)
    places.fill(known, np.arange(3), (2, 3, 2), wants, np.array([0, 3]))
    assert places.positions[:3].tolist() == [6, 14, 13]  # what the layers are told
    assert places.slots[:3].tolist() == [10, 30, 29]  # where they write
    assert places.lens[:3].tolist() == [7, 3, 2]  # how much they see
    assert places.blocks[:3, 0].tolist() == [1, 7, 7]
    assert places.draft_lens[1, :2].tolist() == [8, 4]
    assert places.draft_positions[1, :2].tolist() == [7, 15]


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
