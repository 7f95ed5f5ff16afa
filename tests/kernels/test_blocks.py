"""Packed weights lie one after the other in blocks, and a block goes with the last of them."""

from __future__ import annotations

import gc

import pytest

from dovetail_kernels.cpu.blocks import BLOCK_BYTES, LARGE_PAGE_BYTES, START_BYTES, Blocks
from dovetail_kernels.cpu.library import Library, library, missing_reason
from dovetail_kernels.gemm.cases import make_weight
from dovetail_kernels.gemm.native import Packed

pytestmark = pytest.mark.skipif(library() is None, reason=missing_reason() or "")


@pytest.fixture
def native() -> Library:
    found = library()
    assert found is not None
    return found


def test_weights_share_large_pages(native: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dovetail_kernels.gemm.native.BLOCKS", Blocks())
    first, second = (Packed(make_weight("int8", 512, 256), source=native).data for _ in range(2))
    size = -(-first.nbytes // START_BYTES) * START_BYTES
    assert second.data_ptr() - first.data_ptr() == size


def test_a_block_starts_on_a_large_page_and_is_left_when_full(native: Library) -> None:
    blocks = Blocks()
    first, second = blocks.empty(1000, native), blocks.empty(BLOCK_BYTES - START_BYTES, native)
    third = blocks.empty(1, native)
    assert first.data_ptr() % LARGE_PAGE_BYTES == third.data_ptr() % LARGE_PAGE_BYTES == 0
    assert second.data_ptr() == first.data_ptr() + START_BYTES
    assert not first.data_ptr() <= third.data_ptr() < first.data_ptr() + BLOCK_BYTES


def test_what_is_larger_than_a_block_has_its_own(native: Library) -> None:
    large = Blocks().empty(BLOCK_BYTES + 1, native)
    large[-1] = 7
    assert large.numel() == BLOCK_BYTES + 1 and large.data_ptr() % LARGE_PAGE_BYTES == 0


def test_a_block_goes_with_the_last_tensor(native: Library) -> None:
    blocks = Blocks()
    first, second = blocks.empty(10, native), blocks.empty(10, native)
    block = blocks._block
    assert block is not None
    second.fill_(5)
    del first
    gc.collect()
    assert block() is not None and second.tolist() == [5] * 10
    del second
    gc.collect()
    assert block() is None
    assert blocks.empty(10, native).numel() == 10
