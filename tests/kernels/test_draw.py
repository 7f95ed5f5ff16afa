"""The draw: uniform numbers that depend on seed and position alone, and the right distribution."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dovetail_kernels.sample.definition import target_of, uniforms, weights
from dovetail_kernels.sample.draw import BLOCK_TOKENS, draw


def shifted(logits: torch.Tensor) -> torch.Tensor:
    return logits - logits.amax(dim=1, keepdim=True)


def uniform_of(seeds: list[int], positions: list[int]) -> np.ndarray:
    return uniforms(np.array(seeds, dtype=np.uint64), np.array(positions))


def test_uniforms_are_in_range_and_even() -> None:
    u = uniform_of([7] * 20_000, list(range(20_000)))
    assert u.min() >= 0.0 and u.max() < 1.0
    counts = np.histogram(u, bins=20, range=(0, 1))[0]
    assert ((counts - 1000) ** 2 / 1000).sum() < 45  # chi-square, 19 degrees, p = 0.0007


def test_uniforms_of_neighbouring_seeds_are_unrelated() -> None:
    first, second = (
        uniform_of([1] * 5000, list(range(5000))),
        uniform_of([2] * 5000, list(range(5000))),
    )
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.05
    assert not set(first.tolist()) & set(second.tolist())
    assert abs(np.corrcoef(first[:-1], first[1:])[0, 1]) < 0.05


def test_uniforms_need_no_batch() -> None:
    together = uniform_of([5, 6, 2**64 - 1], [0, 9, 4])
    assert [uniform_of([s], [p])[0] for s, p in ((5, 0), (6, 9), (2**64 - 1, 4))] == list(together)


def test_draw_follows_the_probabilities() -> None:
    logits = torch.tensor([[0.0, 1.0, -1.0, 2.0, -torch.inf]])
    wanted = logits.softmax(dim=1)[0].double()
    count = 40_000
    u = torch.from_numpy(uniform_of([3] * count, list(range(count))))
    found = draw(shifted(logits).expand(count, -1).contiguous(), u).bincount(minlength=5) / count
    assert found[4] == 0
    assert (found - wanted).abs().max() < 0.01


@pytest.mark.parametrize("vocab", [1, 2, BLOCK_TOKENS, BLOCK_TOKENS + 1, 1000])
def test_draw_equals_the_plain_inverse(vocab: int) -> None:
    """Blocks are only a faster way to search: Python's whole numbers find the same token."""
    logits = torch.randn(50, vocab, generator=torch.Generator().manual_seed(vocab)) * 3
    u = torch.from_numpy(uniform_of(list(range(50)), [1] * 50))
    plain = []
    for row, x in zip(weights(shifted(logits)).long().tolist(), u, strict=True):
        target = int(target_of(torch.tensor(sum(row)), x))
        sums = np.cumsum(np.array(row, dtype=object))
        plain.append(next(i for i, total in enumerate(sums) if total > target))
    assert draw(shifted(logits), u).tolist() == plain


def test_weights_are_whole_and_close_to_the_exponential() -> None:
    x = torch.cat([torch.linspace(-29, 0, 100_000), torch.tensor([-torch.inf, -1e30, -100.0])])
    found, wanted = weights(x), x.double().exp() * 2.0**40
    assert torch.equal(found, found.round())
    assert bool(((found - wanted).abs() <= 0.5 + wanted * 1e-6).all())
    assert found[-3:].tolist() == [0, 0, 0] and weights(torch.zeros(1)).item() == 2.0**40


@pytest.mark.parametrize("u", [0.0, 0.5, 1.0 - 2.0**-53])
def test_tokens_without_weight_are_never_drawn(u: float) -> None:
    logits = torch.full((3, 600), -torch.inf)
    logits[0, 0], logits[1, 299], logits[2, 599] = 0.0, 0.0, 0.0
    assert draw(logits, torch.full((3,), u, dtype=torch.float64)).tolist() == [0, 299, 599]


def test_draw_of_a_row_ignores_its_neighbours() -> None:
    logits = shifted(torch.randn(9, 5000, generator=torch.Generator().manual_seed(0)))
    u = torch.from_numpy(uniform_of(list(range(9)), [0] * 9))
    alone = [draw(logits[i : i + 1], u[i : i + 1]).item() for i in range(9)]
    assert draw(logits, u).tolist() == alone
