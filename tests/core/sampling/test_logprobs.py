"""Logprobs against log_softmax and a full sort; always finite."""

from __future__ import annotations

import math

import pytest
import torch

from dovetail.sampling.logprobs import FLOOR, token_logprobs


def test_equals_log_softmax_and_sort() -> None:
    logits = torch.randn(4, 300, generator=torch.Generator().manual_seed(2)) * 3
    ids, num_top = [5, 0, 299, 17], [0, 3, -1, 1]
    wanted = logits.double().log_softmax(dim=1)
    for i, one in enumerate(token_logprobs(logits, ids, num_top)):
        order = wanted[i].argsort(descending=True).tolist()
        size = 300 if num_top[i] < 0 else num_top[i]
        assert one.token_id == ids[i] and one.rank == order.index(ids[i]) + 1
        assert one.logprob == pytest.approx(wanted[i, ids[i]].item(), abs=1e-5)
        assert list(one.top_ids) == order[:size]
        assert one.top_logprobs == pytest.approx(wanted[i, order[:size]].tolist(), abs=1e-5)


def test_impossible_tokens_have_the_floor() -> None:
    logits = torch.tensor([[0.0, -torch.inf, 50_000.0]])
    banned, far = token_logprobs(logits.expand(2, -1), [1, 0], [3, 0])
    assert banned.logprob == far.logprob == FLOOR
    assert all(math.isfinite(x) for x in banned.top_logprobs) and banned.rank == 3


def test_never_above_zero() -> None:
    (one,) = token_logprobs(torch.tensor([[1e4, 0.0]]), [0], [2])
    assert one.logprob == 0.0 and one.rank == 1


def test_a_row_does_not_depend_on_what_its_neighbours_ask() -> None:
    logits = torch.randint(0, 4, (3, 64), generator=torch.Generator().manual_seed(0)).float()
    together = token_logprobs(logits, [1, 2, 3], [2, 10, -1])
    alone = [token_logprobs(logits[i : i + 1], [i + 1], [n])[0] for i, n in enumerate((2, 10, -1))]
    assert together == alone
