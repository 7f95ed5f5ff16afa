"""Top-k and top-p against the obvious way: sort everything, keep a head, scatter back."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dovetail_kernels.sample import filters
from dovetail_kernels.sample.filters import PROBE_TOKENS


def filter_top(logits: torch.Tensor, top_k: np.ndarray, top_p: np.ndarray) -> None:
    filters.filter_top(logits, top_k, top_p, np.full(len(top_k), -np.inf, dtype=np.float32))


def obvious(logits: torch.Tensor, top_k: int, top_p: float) -> torch.Tensor:
    """Return one filtered row; no ties among logits."""
    order = logits.argsort(descending=True)
    kept = order[: top_k if 0 < top_k < len(logits) else len(logits)]
    share = logits[kept].double().softmax(dim=0)
    before = share.cumsum(dim=0) - share
    kept = kept[before < top_p] if top_p < 1.0 else kept
    out = torch.full_like(logits, -torch.inf)
    out[kept] = logits[kept]
    return out


@pytest.mark.parametrize("vocab", [5, 100, 4 * PROBE_TOKENS])
@pytest.mark.parametrize("spread", [0.01, 1.0, 8.0], ids=["flat", "usual", "peaked"])
def test_equals_the_obvious_way(vocab: int, spread: float) -> None:
    """All rows at once, with the filters of each on and off: no row disturbs another."""
    wishes = [
        (0, 1.0),
        (1, 1.0),
        (3, 1.0),
        (0, 0.9),
        (0, 0.1),
        (20, 0.5),
        (10**6, 0.999),
        (-1, 1e-6),
    ]
    generator = torch.Generator().manual_seed(vocab)
    logits = torch.randn(len(wishes), vocab, generator=generator) * spread
    wanted = torch.stack([obvious(row, *wish) for row, wish in zip(logits, wishes, strict=True)])
    found = logits.clone()
    filter_top(found, np.array([k for k, _ in wishes]), np.array([p for _, p in wishes]))
    assert torch.equal(found, wanted)
    for i, (top_k, top_p) in enumerate(wishes):
        alone = logits[i : i + 1].clone()
        filter_top(alone, np.array([top_k]), np.array([top_p]))
        assert torch.equal(alone[0], wanted[i])


def test_ties_are_kept_together() -> None:
    logits = torch.tensor([[3.0, 1.0, 1.0, 1.0, 0.0]])
    filter_top(logits, np.array([2]), np.array([1.0]))
    assert logits.isfinite().tolist() == [[True, True, True, True, False]]


def test_exact_boundary_does_not_depend_on_rounding() -> None:
    """Ten all but equal tokens and p = 0.3: three reach it, in whatever order 0.1 is added up."""
    for order in (torch.arange(10), torch.arange(10).flip(0)):
        logits = (order * -1e-14).unsqueeze(0)
        filter_top(logits, np.array([0]), np.array([0.3]))
        assert int(logits.isfinite().sum()) == 3


def test_flat_distribution_needs_more_than_the_probe() -> None:
    logits = torch.randn(1, 8 * PROBE_TOKENS, generator=torch.Generator().manual_seed(1)) * 0.01
    kept = logits.clone()
    filter_top(kept, np.array([0]), np.array([0.75]))
    share = logits.double().softmax(dim=1)[kept.isfinite()].sum()
    assert 0.75 <= share < 0.7505


def test_banned_tokens_stay_banned() -> None:
    logits = torch.tensor([[0.0, -torch.inf, 1.0, -torch.inf]])
    filter_top(logits, np.array([3]), np.array([1.0]))
    assert logits.isfinite().tolist() == [[True, False, True, False]]


def test_min_p_comes_first() -> None:
    """Half of the best token's probability keeps two; the nucleus is one of those two alone."""
    logits = torch.tensor([[0.0, 0.6, 0.9, 1.0]]).log().repeat(2, 1)
    filters.filter_top(
        logits, np.array([0, 0]), np.array([1.0, 0.5]), np.log([0.65, 0.65]).astype(np.float32)
    )
    assert logits.isfinite().tolist() == [[False, False, True, True], [False, False, False, True]]
