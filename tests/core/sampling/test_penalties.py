"""Penalties against the dense formula, and their state as tokens come."""

from __future__ import annotations

import torch

from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail_kernels.sample.native import Tables
from dovetail_kernels.sample.penalties import Penalties, uses_penalties

PARAMS = SamplingParams(repetition_penalty=1.5, frequency_penalty=0.5, presence_penalty=-0.25)
PROMPT, OUTPUT = [1, 2, 2, 7], [2, 9, 9, 9]


def obvious(logits: torch.Tensor, prompt: list[int], output: list[int]) -> torch.Tensor:
    """Return one penalised row, token by token."""
    out = logits.clone()
    for token in set(prompt) | set(output):
        value = out[token]
        out[token] = value / 1.5 if value > 0 else value * 1.5
        out[token] -= 0.5 * output.count(token) - 0.25 * (token in output)
    return out


def test_equals_the_obvious_way() -> None:
    logits = torch.randn(3, 12, generator=torch.Generator().manual_seed(0))
    penalties = Penalties(Tables(8))
    penalties.add_row(4, PARAMS, PROMPT, OUTPUT)
    penalties.add_row(6, PARAMS, [], [])
    found = logits.clone()
    penalties.apply(found, [4, 5, 6])
    assert torch.allclose(found[0], obvious(logits[0], PROMPT, OUTPUT))
    assert torch.equal(found[1:], logits[1:])


def test_tokens_recorded_one_by_one_equal_tokens_given_at_once() -> None:
    drawn = (torch.arange(200) * 7 % 50).tolist()
    slowly, at_once = Penalties(Tables(8)), Penalties(Tables(8))
    slowly.add_row(0, PARAMS, PROMPT, [])
    for token in drawn:
        slowly.record([3, 0], [5, token])
    at_once.add_row(0, PARAMS, PROMPT, drawn)
    left, right = torch.ones(1, 60), torch.ones(1, 60)
    slowly.apply(left, [0])
    at_once.apply(right, [0])
    assert torch.allclose(left, right)
    assert torch.allclose(left[0], obvious(torch.ones(60), PROMPT, drawn))


def test_prompt_counts_for_repetition_only() -> None:
    penalties = Penalties(Tables(8))
    penalties.add_row(0, SamplingParams(frequency_penalty=1.0, presence_penalty=1.0), PROMPT, [])
    logits = torch.ones(1, 10)
    penalties.apply(logits, [0])
    assert torch.equal(logits, torch.ones(1, 10))


def test_banned_tokens_stay_banned() -> None:
    penalties = Penalties(Tables(8))
    penalties.add_row(0, PARAMS, [1], [1])
    logits = torch.full((1, 4), -torch.inf)
    penalties.apply(logits, [0])
    assert torch.equal(logits, torch.full((1, 4), -torch.inf))


def test_removed_rows_are_forgotten() -> None:
    penalties = Penalties(Tables(8))
    penalties.add_row(0, PARAMS, PROMPT, OUTPUT)
    penalties.remove_row(0)
    penalties.remove_row(0)
    logits = torch.ones(1, 10)
    penalties.apply(logits, [0])
    assert torch.equal(logits, torch.ones(1, 10))


def test_who_needs_a_state() -> None:
    assert uses_penalties(PARAMS) and not uses_penalties(SamplingParams(temperature=0.3))
