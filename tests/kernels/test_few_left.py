"""FewLeft: filters and draws of the tokens that are left are those of the whole rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dovetail_kernels.sample.draw import _draw, draw
from dovetail_kernels.sample.few import BLOCK_TOKENS, FEW, FewLeft, largest
from dovetail_kernels.sample.filters import _filter_top, filter_top


def rows(seed: int, counts: list[int], vocab: int = 5000) -> torch.Tensor:
    """Return rows with so many tokens left, some of them equal. Shapes: [S, V], row maximum 0"""
    chance = torch.Generator().manual_seed(seed)
    logits = torch.full((len(counts), vocab), -torch.inf)
    for row, count in enumerate(counts):
        ids = torch.randperm(vocab, generator=chance)[:count]
        logits[row, ids] = (8 * torch.randn(count, generator=chance)).round() / 4
    return logits - logits.amax(dim=1, keepdim=True)


@pytest.mark.parametrize("counts", [[1], [40], [1, 40, 7], [600, 3, 2]])
def test_draws_are_those_of_whole_rows(counts: list[int]) -> None:
    for seed in range(50):
        logits = rows(seed, counts)
        assert FewLeft.of(logits) is not None
        uniform = torch.rand(len(counts), dtype=torch.float64)
        assert draw(logits, uniform).tolist() == _draw(logits, uniform).tolist()


@pytest.mark.parametrize("counts", [[1], [40], [1, 40, 7], [600, 3, 2]])
def test_filters_leave_what_they_leave_of_whole_rows(counts: list[int]) -> None:
    chance = np.random.default_rng(0)
    for seed in range(50):
        logits = rows(seed, counts)
        whole, few = logits.clone(), logits.clone()
        top_k = chance.choice([0, 1, 5, 20, 4999], size=len(counts)).astype(np.int64)
        top_p = chance.choice([0.1, 0.5, 0.95, 1.0], size=len(counts))
        least = np.log(chance.choice([1e-30, 0.05, 0.5], size=len(counts))).astype(np.float32)
        _filter_top(whole, top_k, top_p, least)
        filter_top(few, top_k, top_p, least)
        assert torch.equal(whole, few)


def test_many_or_none_are_not_few() -> None:
    assert FewLeft.of(rows(0, [5000 // FEW])) is not None
    assert FewLeft.of(rows(0, [3, 5000 // FEW + 1])) is None
    nothing = torch.full((1, 100), -torch.inf)
    assert FewLeft.of(nothing) is None
    assert FewLeft.of(torch.zeros((1, 100), device="meta")) is None


def test_what_is_put_back_is_at_its_place() -> None:
    logits = rows(1, [4, 2])
    ids = [row.isfinite().nonzero().flatten() for row in logits]
    few = FewLeft.of(logits)
    assert few is not None and few.logits.shape == (2, 4)
    few.put_back(torch.arange(8.0).reshape(2, 4))
    assert logits[0, ids[0]].tolist() == [0, 1, 2, 3] and logits[1, ids[1]].tolist() == [4, 5]
    assert logits.isfinite().sum() == 6
    assert few.token_ids(torch.tensor([3, 0])).tolist() == [int(ids[0][3]), int(ids[1][0])]


@pytest.mark.parametrize("vocab", [100, 40 * BLOCK_TOKENS, 100 * BLOCK_TOKENS + 17])
def test_the_largest_are_those_of_a_sort(vocab: int) -> None:
    chance = torch.Generator().manual_seed(0)
    for count in (1, 2, 17, 50):
        for scale in (0.5, 4.0, 1000.0):  # many equal ones, some, none
            logits = (torch.randn((3, vocab), generator=chance) * scale).round()
            logits[1, : vocab // 2] = -torch.inf
            logits[2, 3:] = -torch.inf
            wanted = logits.sort(dim=1, descending=True).values[:, :count]
            assert torch.equal(largest(logits, count), wanted)
