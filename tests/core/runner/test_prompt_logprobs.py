"""Logprobs of prompts that a device is asked for and that are read later: those found at once."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dovetail.runner.endings import prompt_logprobs

WAYS = (prompt_logprobs._at_once, prompt_logprobs._queued)


def test_queued_ones_are_those_found_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_logprobs, "CHUNK_TOKENS", 4)
    draw = torch.Generator().manual_seed(0)
    hidden, head = torch.randn(10, 8, generator=draw), torch.randn(50, 8, generator=draw)
    tokens = np.arange(10) * 3
    for num_top in (0, 3, -1):
        now, later = (run(hidden, tokens, num_top, lambda h: h @ head.t(), False)() for run in WAYS)
        assert now is not None and later is not None and len(now) == 10
        for one, other in zip(now, later, strict=True):
            assert (one.token_id, one.rank, one.top_ids) == (
                other.token_id, other.rank, other.top_ids,
            )  # fmt: skip
            assert one.logprob == pytest.approx(other.logprob, abs=1e-9)
            assert one.top_logprobs == pytest.approx(other.top_logprobs, abs=1e-9)


def test_rows_that_are_not_finite_are_at_fault() -> None:
    hidden = torch.zeros(2, 3)
    hidden[1, 0] = torch.nan
    for run in WAYS:
        assert run(hidden, np.array([1, 2]), 1, lambda h: h, False)() is None
