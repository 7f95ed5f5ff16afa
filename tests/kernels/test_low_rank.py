"""Rows with different adapters, natively: rows alone, threads, what is not read, recording."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from dovetail_kernels import load_op
from dovetail_kernels.check import check_case
from dovetail_kernels.cpu.library import Library, library, missing_reason
from dovetail_kernels.cpu.program import Pool, record
from dovetail_kernels.low_rank.native import LowRank
from dovetail_kernels.low_rank.reference import reference

NATIVE = library()
ISAS = NATIVE.isas() if NATIVE else ["none"]
CPU = torch.device("cpu")
PARTS, INPUTS, LARGEST, SLOTS = (150, 40, 33), 77, 40, 6
pytestmark = pytest.mark.skipif(NATIVE is None, reason=str(missing_reason()))


@pytest.fixture(params=ISAS)
def source(request: pytest.FixtureRequest) -> Iterator[Library]:
    assert NATIVE is not None
    threads = NATIVE.num_threads()
    yield Library(NATIVE.path, request.param)
    NATIVE.set_threads(threads)


def normal(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class Weights:
    """Random adapters, and rows that have them."""

    def __init__(self, rows: int, dtype: torch.dtype = torch.bfloat16) -> None:
        self.down = (normal(SLOTS, len(PARTS), LARGEST, INPUTS, seed=1) / 9).to(dtype)
        self.up = (normal(SLOTS, LARGEST, sum(PARTS), seed=2) / 6).to(dtype)
        self.ranks = torch.tensor([16, 40, 0, 9, 1, 33], dtype=torch.int32)
        self.slots = (torch.arange(rows, dtype=torch.int32) * 5 + 1) % (SLOTS + 1) - 1
        self.x = normal(rows, INPUTS, seed=3)
        self.base = normal(rows, sum(PARTS), seed=4)

    def made(self, source: Library) -> LowRank:
        return LowRank(self.down, self.up, self.ranks, PARTS, source=source)

    def wanted(self) -> torch.Tensor:
        weights = self.down, self.up, self.ranks
        return reference(self.x, self.slots, *weights, PARTS, self.base)


def test_cases(source: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dovetail_kernels.cpu.library.library", lambda: source)
    op = load_op("low_rank")
    faults = {c.name: check_case(op, c, "native", CPU) for c in op.cases()}
    assert {case: fault for case, fault in faults.items() if fault} == {}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_is_its_own(source: Library, dtype: torch.dtype) -> None:
    """Alone, beside others, on one thread or three: the same bits."""
    weights = Weights(67, dtype)
    adapters = weights.made(source)
    source.set_threads(3)
    whole = adapters(weights.x, weights.slots, weights.base)
    source.set_threads(1)
    assert torch.equal(adapters(weights.x, weights.slots, weights.base), whole)
    for first, last in ((0, 1), (1, 3), (4, 9), (20, 66)):
        some = slice(first, last)
        found = adapters(weights.x[some], weights.slots[some], weights.base[some])
        assert torch.equal(found, whole[some])
    one = torch.full_like(weights.slots, 1)
    together = adapters(weights.x, one)
    for row in (0, 13, 64, 66):
        assert torch.equal(adapters(weights.x[row : row + 1], one[:1])[0], together[row])


def test_what_is_not_a_rows_own_is_not_read(source: Library) -> None:
    """NaN in other slots, beyond a slot's rank and in other rows."""
    weights = Weights(30)
    clean = weights.made(source)(weights.x, weights.slots, weights.base)
    weights.down[2], weights.up[2] = torch.nan, torch.nan
    for slot, rank in enumerate(weights.ranks.tolist()):
        weights.down[slot, :, rank:] = torch.nan
        weights.up[slot, rank:] = torch.nan
    assert torch.equal(weights.made(source)(weights.x, weights.slots, weights.base), clean)
    weights.x[7] = torch.nan
    spoilt = weights.made(source)(weights.x, weights.slots, weights.base)
    assert weights.ranks[weights.slots[7]] > 0
    assert spoilt[7].isnan().all()
    kept = [row for row in range(30) if row != 7]
    assert torch.equal(spoilt[kept], clean[kept])


def test_rows_without_an_adapter_are_base(source: Library) -> None:
    """Also rows whose slot has rank 0, and numbers that no slot has."""
    weights = Weights(5)
    slots = torch.tensor([-1, 2, SLOTS, -7, 1 << 30], dtype=torch.int32)
    adapters = weights.made(source)
    assert torch.equal(adapters(weights.x, slots, weights.base), weights.base)
    assert torch.equal(adapters(weights.x, slots, weights.base[0]), weights.base[:1].expand(5, -1))
    assert torch.equal(adapters(weights.x, slots), torch.zeros(5, sum(PARTS)))
    assert adapters(weights.x[:0], slots[:0]).shape == (0, sum(PARTS))


def test_rows_may_lie_apart(source: Library) -> None:
    weights = Weights(11)
    wide, tall = normal(11, 200, seed=5), normal(11, 300, seed=6)
    x, base = wide[:, 9 : 9 + INPUTS], tall[:, 50 : 50 + sum(PARTS)]
    adapters = weights.made(source)
    wanted = adapters(x.contiguous(), weights.slots, base.contiguous())
    assert torch.equal(adapters(x, weights.slots, base), wanted)


def test_a_recorded_call_follows_slots_ranks_and_weights() -> None:
    assert NATIVE is not None
    weights = Weights(9)
    adapters = weights.made(NATIVE)
    with torch.inference_mode():
        program = record(
            lambda: adapters(weights.x, weights.slots, weights.base), Pool(), owner=weights
        )

        def agrees() -> bool:
            return torch.allclose(program.run(), weights.wanted(), rtol=2e-5, atol=2e-5)

        assert len(program) == 1 and agrees()
        weights.slots.copy_(torch.tensor([3, 3, 3, -1, 5, 1, 1, 0, 2]))
        assert agrees()
        weights.ranks.copy_(torch.tensor([0, 7, 3, 40, 1, 2]))
        assert agrees()
        weights.down.mul_(2), weights.up[1].zero_()
        weights.base.neg_()
        assert agrees()
        weights.slots.fill_(-1)
        assert torch.equal(program.run(), weights.base)
