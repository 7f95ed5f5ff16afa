"""Cases of sample: each way of sampling over small, odd and large vocabularies, ties and bans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from dovetail_kernels.op import Arguments, Case
from dovetail_kernels.random import normal

LARGE_VOCAB = 151_936
BEST = 15.0
"""How far the likeliest token of a perf case exceeds its normally distributed logits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way of sampling; temperature 0 is greedy."""

    temperature: float = 0.7
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


WAYS = {
    "greedy": Way(temperature=0.0),
    "random": Way(),
    "cold": Way(temperature=0.01),
    "top_k": Way(top_k=20),
    "top_k_wide": Way(top_k=700),
    "top_p": Way(top_p=0.95),
    "top_p_tiny": Way(top_p=1e-6),
    "both": Way(top_k=50, top_p=0.9),
    "min_p": Way(min_p=0.05),
    "min_p_1": Way(min_p=1.0),
    "all": Way(temperature=1.5, top_k=300, top_p=0.8, min_p=0.01),
}


def cases() -> list[Case]:
    """Return the cases that are checked."""
    sizes = ((9, 50), (5, 1000), (4, 2048))
    kinds = ("normal", "ties", "one")
    plain = [
        _case(name, rows, vocab, kind) for rows, vocab in sizes for name in WAYS for kind in kinds
    ]
    return plain + [_case(name, 2, LARGE_VOCAB, "normal") for name in WAYS]


def small_cases() -> list[Case]:
    """Return the cases that are checked if kernels are interpreted."""
    plain = [_case(name, 3, 50, "ties") for name in WAYS]
    others = ("random", "top_k", "top_p", "both", "all")
    return plain + [_case(name, 1, 20_000, "normal") for name in others]


def perf_cases() -> list[Case]:
    """Return the cases that are timed: logits like a language model's, and the worst, flat ones."""
    ways = ("greedy", "random", "top_k", "top_p", "both", "min_p")
    return [
        _case(name, rows, LARGE_VOCAB, kind)
        for name in ways
        for rows in (1, 32)
        for kind in ("model", "normal")
    ]


def logits_of(kind: str, rows: int, vocab: int) -> torch.Tensor:
    """Return logits: normal, with many ties, all but one banned, or like a language model's."""
    logits = normal((rows, vocab), torch.float32, torch.device("cpu"), seed=vocab)
    if kind == "ties":
        return logits.mul_(2).round_()
    if kind == "one":
        logits.fill_(-torch.inf)
        logits[torch.arange(rows), torch.arange(rows) * 37 % vocab] = -3.0
    if kind == "model":
        logits.mul_(2.5)
        places = (torch.arange(40) * 7919 + 11) % vocab
        logits[:, places] = BEST - torch.arange(40) * 0.3
    return logits


def _case(name: str, rows: int, vocab: int, kind: str) -> Case:
    return Case(
        name=f"{name}_{kind}_S{rows}_V{vocab}",
        dtype=torch.float32,
        build=_builder(WAYS[name], rows, vocab, kind),
        moved_bytes=4 * rows * vocab,
        flops=25 * rows * vocab,
        rtol=0.0,
        atol=0.0,
    )


def _builder(way: Way, rows: int, vocab: int, kind: str) -> Callable[[torch.device], Arguments]:
    def build(device: torch.device) -> Arguments:
        inverse = 1.0 / way.temperature if way.temperature else 0.0
        return {
            "logits": logits_of(kind, rows, vocab).to(device),
            "inverse_temperature": torch.full((rows,), inverse, device=device),
            "top_k": torch.full((rows,), way.top_k, device=device),
            "top_p": torch.full((rows,), way.top_p, dtype=torch.float64, device=device),
            "min_p": torch.full((rows,), way.min_p, dtype=torch.float64, device=device),
            "seed": torch.arange(rows, device=device),
            "position": torch.arange(rows, device=device) * 3,
        }

    return build
