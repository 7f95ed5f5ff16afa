"""Scores of a module's own code: what stands for them attends as the code would, or is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dovetail.errors import ConfigError
from dovetail_plugins.models._hf_attention import Seen
from dovetail_plugins.models._hf_scores import Scoring

TOKENS, HEADS, SIZE = 6, 2, 4
CAUSAL = torch.full((TOKENS, TOKENS), -torch.inf).triu(1)


def attended(
    module: nn.Module, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any, scale: float
) -> torch.Tensor:
    """Return what is attended to where tokens see all before them, by the formula."""
    assert isinstance(mask, Seen)
    scores = (q @ k.mT) * scale + CAUSAL
    return (scores.softmax(-1) @ v).transpose(1, 2)


def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any) -> torch.Tensor:
    scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(SIZE)
    chances = F.dropout(F.softmax(scores + mask, dim=-1), p=0.5, training=False)
    return torch.matmul(chances, v)


def batched(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any) -> torch.Tensor:
    q, k, v = (x.reshape(HEADS, TOKENS, SIZE) for x in (q, k, v))
    scores = torch.baddbmm(torch.zeros(HEADS, TOKENS, TOKENS), q, k.mT, beta=1.0, alpha=0.25)
    scores = scores.view(1, HEADS, TOKENS, -1) + mask
    chances = nn.functional.softmax(scores.view(HEADS, TOKENS, TOKENS), dim=2).to(v.dtype)
    return torch.bmm(chances, v).view(1, HEADS, TOKENS, SIZE)


def window(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any) -> torch.Tensor:
    kept = torch.ones(1, 1, TOKENS, TOKENS).tril().triu(-2)
    scores = torch.matmul(q, k.mT) * kept + -1e4 * (1 - kept)
    return torch.matmul(F.softmax(scores, dim=-1), v)


def gpt(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any) -> torch.Tensor:
    kept = torch.ones(1, 1, 2 * TOKENS, 2 * TOKENS).tril()
    scores = torch.matmul(q, k.mT) / math.sqrt(SIZE)
    kept = kept[:, :, : scores.size(-2), : scores.size(-1)]
    return torch.matmul(F.softmax(scores * kept + -1e4 * (1 - kept), dim=-1), v)


def biased(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any) -> torch.Tensor:
    scores = torch.matmul(q, k.mT) + torch.ones(TOKENS, TOKENS)
    return torch.matmul(F.softmax(scores + mask, dim=-1), v)


def scaled_late(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any) -> torch.Tensor:
    return torch.matmul(F.softmax((torch.matmul(q, k.mT) + mask) * 2, dim=-1), v)


def capped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any) -> torch.Tensor:
    return torch.matmul(F.softmax(torch.tanh(torch.matmul(q, k.mT)) + mask, dim=-1), v)


def other_axis(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any) -> torch.Tensor:
    return torch.matmul(F.softmax(torch.matmul(q, k.mT) + mask, dim=1), v)


def no_chances(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any) -> torch.Tensor:
    return torch.matmul(torch.matmul(q, k.mT) + mask, v)


def scored(way: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what a way gives with a mask of numbers, and with Scores in its place."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, HEADS, TOKENS, SIZE) for _ in range(3))
    scoring = Scoring(attended, Seen(window_tokens=None), is_trial=True)
    with scoring.running(nn.Identity()):
        got = way(q, k, v, Seen(window_tokens=None))
    return got, way(q, k, v, CAUSAL)


@pytest.mark.parametrize("way", [plain, batched, gpt])
def test_attends_as_the_code_does(way: Any) -> None:
    got, wanted = scored(way)
    assert torch.allclose(got, wanted, atol=1e-6)


@pytest.mark.parametrize(
    ("way", "reason"),
    [
        (window, "a mask of its own that is not causal"),
        (biased, "what is not a mask of transformers'"),
        (scaled_late, "scales scores behind a mask"),
        (capped, "applies tanh to scores"),
        (other_axis, "chances over another axis"),
        (no_chances, "scores before a softmax"),
    ],
)
def test_what_no_backend_does_is_refused(way: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        scored(way)
