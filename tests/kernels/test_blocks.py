"""Packed weights lie one after the other in blocks, and a block goes with the last of them."""

from __future__ import annotations

import gc

import pytest
import torch

from dovetail_kernels.cpu.blocks import (
    BLOCK_BYTES,
    LARGE_PAGE_BYTES,
    SCRATCH_BYTES,
    START_BYTES,
    Blocks,
    Scratch,
)
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
    monkeypatch.setattr("dovetail_kernels.gemm.native_pack.BLOCKS", Blocks())
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


def test_scratch_is_lent_again_when_its_last_tensor_is_gone(native: Library) -> None:
    scratch = Scratch()

    def lent(num_bytes: int) -> torch.Tensor:
        return torch.from_numpy(scratch.lend(num_bytes, native))

    with scratch.reused():
        first = lent(4 << 20)
        place = first.data_ptr()
        part = first.view(2, -1)[1]
        assert lent(3 << 20).data_ptr() != place, "the first is in use"
        del first
        assert lent(3 << 20).data_ptr() != place, "a part of it is"
        del part
        assert lent(4 << 20).data_ptr() == place
        smaller = lent(3 << 20)
        assert smaller.data_ptr() != place, "the smallest that fits"
        assert lent(3 << 20).data_ptr() == place, "the other is in use"
        last = lent(4 << 20)
        last.fill_(7)
    assert scratch.lend(4 << 20, native).ctypes.data != place, "the block is over"
    assert bool((last == 7).all())


def test_scratch_holds_no_more_than_its_bound(native: Library) -> None:
    scratch = Scratch()
    with scratch.reused():
        for part in range(1, 12):
            scratch.lend(part * SCRATCH_BYTES // 12, native)
            assert scratch._num_bytes <= SCRATCH_BYTES
        scratch.lend(2 * SCRATCH_BYTES, native)
        assert scratch._num_bytes <= SCRATCH_BYTES, "what is larger is not lent again"
    assert scratch._num_bytes == 0 and not scratch._free
