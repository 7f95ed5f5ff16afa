"""DraftBlocks: which blocks hold a drafter's keys, as rows take, fill, swap and leave them."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail.interfaces.data.step import KVGroup, KVLayout, RowStep
from dovetail.runner.drafts.blocks import DraftBlocks
from dovetail.runner.rows.block_table import BlockTable

SIZE = 4


@pytest.fixture
def table() -> BlockTable:
    table = BlockTable(2, 8, SIZE)
    table.fill_row(0, [1, 2, 3])
    return table


@pytest.fixture
def blocks(table: BlockTable) -> DraftBlocks:
    layout = KVLayout(
        groups=(KVGroup(layers=("a",)),),
        num_tensors=1,
        num_blocks=9,
        block_tokens=SIZE,
        block_bytes=64,
        num_host_blocks=3,
    )
    return DraftBlocks(layout, table)


def rows(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)


def test_a_prefix_counts_as_far_as_it_was_filled(blocks: DraftBlocks) -> None:
    blocks.fill(rows(0), rows(11))  # two blocks and a part
    assert blocks.begin(0, [1, 2, 3, 4], 12) == 8
    assert blocks.begin(0, [1, 2, 3, 4], 8) == 8
    assert blocks.begin(0, [1, 3, 2], 12) == SIZE  # a hole ends it
    assert blocks.begin(0, [0, 1], 8) == 8  # of the null block nobody reads


def test_blocks_that_are_taken_anew_are_empty(blocks: DraftBlocks) -> None:
    blocks.fill(rows(0), rows(12))
    step = RowStep(row=1, start=0, num_tokens=1, samples=True, new_blocks=((2,),))
    blocks.take([step])
    assert blocks.begin(0, [1, 2, 3], 12) == SIZE
    assert blocks.begin(0, [3, 1], SIZE) == SIZE  # what is behind the cached tokens is emptied
    assert blocks.begin(0, [1], SIZE) == 0


def test_copies_take_it_along(blocks: DraftBlocks) -> None:
    blocks.fill(rows(0), rows(8))
    blocks.swap([(1, 0), (2, 2), (3, 1)], [])
    blocks.swap([], [(0, 6), (2, 7), (1, 8)])
    assert blocks.begin(0, [6, 7, 8], 12) == 8


def test_what_was_skipped_is_not_filled(table: BlockTable, blocks: DraftBlocks) -> None:
    blocks.begin(0, [1, 2, 3], 0)
    blocks.skip(0, SIZE + 1)
    blocks.fill(rows(0), rows(12))
    assert blocks.begin(1, [3, 1], 8) == SIZE
    assert blocks.begin(1, [3, 2], 8) == SIZE
