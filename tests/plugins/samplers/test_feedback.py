"""Mirostat and adaptive-p over many steps, against their sources' formulas in plain numpy."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from dovetail_plugins.logits_processors.samplers.adaptive_p import AdaptiveP
from dovetail_plugins.logits_processors.samplers.mirostat import Mirostat
from support.sampler_rows import processor, random_logits, row

ROWS, STEPS, VOCAB = 25, 40, 300


def softmax(line: np.ndarray) -> np.ndarray:
    weight = np.exp(line.astype(np.float64) - line.max())
    return weight / weight.sum()


class PlainMirostat:
    """Both versions for one row; `mu` is the bound."""

    def __init__(self, fields: Mapping[str, float]) -> None:
        self.fields = fields
        self.mu = 2 * fields["mirostat_tau"]

    def logits(self, line: np.ndarray) -> np.ndarray:
        p = softmax(line)
        if self.fields["mirostat"] == 2:
            with np.errstate(divide="ignore"):
                is_left = -np.log2(p) <= self.mu
        else:
            is_left = p >= np.sort(p)[::-1][self.count(np.sort(p)[::-1]) - 1]
        is_left[line.argmax()] = True
        return np.where(is_left, line, -np.inf)

    def count(self, ranked: np.ndarray) -> int:
        above = below = 0.0
        for i in range(100):
            t = math.log((i + 2) / (i + 1))
            above += t * math.log(ranked[i] / ranked[i + 1])
            below += t * t
        s = above / below
        epsilon = s - 1
        k = ((epsilon * 2**self.mu) / (1 - VOCAB ** (-epsilon))) ** (1 / s)
        return int(min(round(k) + 1, VOCAB))

    def learn(self, line: np.ndarray, token_id: int) -> None:
        error = -math.log2(softmax(line)[token_id]) - self.fields["mirostat_tau"]
        self.mu -= self.fields["mirostat_eta"] * error


class PlainAdaptive:
    """Adaptive-p for one row."""

    def __init__(self, fields: Mapping[str, float]) -> None:
        self.target, self.decay = fields["adaptive_target"], fields["adaptive_decay"]
        self.total, self.shares = self.target / (1 - self.decay), 1 / (1 - self.decay)

    def logits(self, line: np.ndarray) -> np.ndarray:
        aim = np.clip(2 * self.target - self.total / self.shares, 0, 1)
        far = np.abs(softmax(line) - aim) / 0.3
        return np.where(np.isfinite(line), 5 - 10 * far**2 / (1 + far), -np.inf)

    def learn(self, line: np.ndarray, token_id: int) -> None:
        self.total = softmax(line)[token_id] + self.decay * self.total
        self.shares = 1 + self.decay * self.shares


def fields_of(number: int, kind: str) -> dict[str, float]:
    made = np.random.default_rng(number)
    if kind == "adaptive":
        return {"adaptive_target": made.uniform(0.05, 1), "adaptive_decay": made.uniform(0, 0.99)}
    version = 1 if kind == "zipf" else 2
    tau, eta = made.uniform(1, 5), made.uniform(0.05, 1)
    return {"mirostat": version, "mirostat_tau": tau, "mirostat_eta": eta}


@pytest.mark.parametrize("kind", ["zipf", "bound", "adaptive"])
def test_every_step_equals_the_formula(kind: str) -> None:
    """Some positions are computed twice, some rows leave and return, some get a token more than was
    drawn."""
    cls: Any = AdaptiveP if kind == "adaptive" else Mirostat
    plain_of: Any = PlainAdaptive if kind == "adaptive" else PlainMirostat
    made = processor(cls)
    outputs: list[list[int]] = [[] for _ in range(ROWS)]
    plain = [plain_of(fields_of(number, kind)) for number in range(ROWS)]
    pairs = [(number, number) for number in range(ROWS)]
    tokens = [
        dataclasses.replace(row(n, fields_of(n, kind), (), outputs[n]), request_id=f"r{n}")
        for n in range(ROWS)
    ]
    for one in tokens:
        made.add_row(one)
    dice = np.random.default_rng(9)
    for step in range(STEPS):
        logits = random_logits(ROWS, VOCAB, seed=step)
        logits[logits == -torch.inf] = -20.0
        found = logits.clone()
        made.apply(found, pairs)
        if step % 3 == 0:
            again = logits.clone()
            made.apply(again, pairs)
            assert torch.equal(again, found)
        for number, (ours, line) in enumerate(zip(found.numpy(), logits.numpy(), strict=True)):
            np.testing.assert_allclose(ours, plain[number].logits(line), atol=2e-4)
            drawn = int(dice.choice(VOCAB, p=softmax(ours)))
            plain[number].learn(line, drawn)
            outputs[number] += [drawn, 1] if step % 5 == 4 else [drawn]
            if step % 4 == 3:
                made.remove_row(number)
                made.add_row(tokens[number])


def test_another_engine_begins_anew() -> None:
    made, fresh = processor(AdaptiveP), processor(AdaptiveP)
    extra = {"adaptive_target": 0.4}
    logits = random_logits(1)
    made.add_row(row(0, extra, (), [5, 6]))
    fresh.add_row(row(0, extra))
    one, other = logits.clone(), logits.clone()
    made.apply(one, [(0, 0)])
    fresh.apply(other, [(0, 0)])
    assert torch.equal(one, other)


def test_mirostat_drops_in_place_of_the_filters() -> None:
    params = row(0, {"mirostat": 2}, top_k=5, top_p=0.5, min_p=0.2).params
    ready = Mirostat.prepared(params, None)  # type: ignore[arg-type]
    assert (ready.top_k, ready.top_p, ready.min_p) == (0, 1.0, 0.0)
    assert ready.extra_args == {"mirostat": 2}
