"""Mirostat: steers the surprise of the drawn tokens to a target.

Source: Basu et al., "Mirostat: a neural text decoding algorithm that directly controls perplexity",
2021, https://arxiv.org/abs/2007.14966; version 2 is that of https://github.com/basusourya/mirostat.
Surprise is in bits, of the distribution before tokens are dropped, as there.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.tokenizer import Tokenizer
from dovetail_plugins.logits_processors.samplers._feedback import FeedbackSampler, State
from dovetail_plugins.logits_processors.samplers._sampler import (
    NO_TRUNCATION,
    Rows,
    Setting,
    Values,
)

if TYPE_CHECKING:
    import torch

    from dovetail_plugins.logits_processors.samplers._mass import Mass

NUM_RANKS = 100
"""The most likely tokens by which version 1 estimates how the probabilities fall."""


class Mirostat(FeedbackSampler):
    """Keeps tokens up to a surprise (version 2), or as many as Zipf's law says (version 1). After
    each token the bound, at first twice the target, moves by the rate times the error. Top-k, top-p
    and min-p are off in its requests: it drops tokens in their place."""

    info = Info(
        summary="steers the surprise of the drawn tokens to a target",
        source="https://arxiv.org/abs/2007.14966",
    )
    settings = {
        "mirostat": Setting(
            what="the version, 1 or 2; 0: off",
            default=0, low=0, high=2, is_whole=True, others=("mirostat_mode",),
        ),
        "mirostat_tau": Setting(
            what="the surprise to reach, in bits", default=5.0, low=0.0, high=100.0
        ),
        "mirostat_eta": Setting(
            what="how fast the bound follows", default=0.1, low=0.0, high=100.0
        ),
    }  # fmt: skip

    @classmethod
    def is_on(cls, values: Values) -> bool:
        """Return whether there is a version."""
        return values["mirostat"] > 0

    @classmethod
    def prepared(cls, params: SamplingParams, tokenizer: Tokenizer) -> SamplingParams:
        """Return the params without other truncation."""
        return msgspec.structs.replace(params, **NO_TRUNCATION)

    @classmethod
    def first_state(cls, values: Values) -> State:
        """Return the bound of the surprise."""
        return 2.0 * values["mirostat_tau"], 0.0

    @classmethod
    def next_state(cls, values: Values, state: State, probability: float) -> State:
        """Return the bound after a token."""
        error = -math.log2(probability) - values["mirostat_tau"]
        return state[0] - values["mirostat_eta"] * error, 0.0

    def steered(
        self, logits: torch.Tensor, mass: Mass, batch: Rows, states: Sequence[State]
    ) -> torch.Tensor:
        """Return the tokens within the bounds. Shapes: [S, V] -> [S, V]"""
        import torch

        from dovetail_plugins.logits_processors.samplers import _mass

        bounds = [min(bound, 1000.0) for bound, _ in states]
        is_left = mass.reaches(torch.exp2(-_mass.column(bounds, batch.device)))
        is_first = [one.values["mirostat"] == 1 for one in batch.rows]
        if any(is_first):
            counts = _zipf_counts(mass.weight, bounds)
            lowest = _mass.ranked(logits, counts)
            at = torch.tensor(is_first, device=batch.device).unsqueeze(1)
            is_left = torch.where(at, logits >= lowest, is_left)
        return _mass.cut(logits, is_left, batch)


def _zipf_counts(weight: torch.Tensor, bounds: Sequence[float]) -> list[int]:
    """Return how many tokens version 1 keeps in each row. Shapes: weight [S, V], bounds [S]"""
    vocab = weight.shape[1]
    best = weight.topk(min(NUM_RANKS + 1, vocab), dim=1).values.tolist()
    return [
        count_of(exponent_of(line), bound, vocab) for line, bound in zip(best, bounds, strict=True)
    ]


def exponent_of(weight: Sequence[float]) -> float:
    """Return the exponent of Zipf's law that fits the largest weights, which fall; 0 if they are
    too few."""
    above = square = 0.0
    for rank, (one, following) in enumerate(itertools.pairwise(weight), start=1):
        if following <= 0.0:
            break
        step = math.log((rank + 1) / rank)
        above += math.log(one / following) * step
        square += step * step
    return above / square if square else 0.0


def count_of(exponent: float, bound: float, vocab: int) -> int:
    """Return the number of tokens whose surprise under Zipf's law stays within a bound, and one
    more; at least 1, at most the vocabulary."""
    epsilon = exponent - 1.0
    if exponent <= 0.0:
        return vocab
    # (1 - vocab^-epsilon) / epsilon tends to log(vocab) as epsilon tends to 0.
    spread = math.log(vocab)
    if abs(epsilon) > 1e-9:
        spread = -math.expm1(-epsilon * math.log(vocab)) / epsilon
    log_count = (bound * math.log(2.0) - math.log(max(spread, 1e-300))) / exponent
    return min(round(math.exp(min(log_count, 60.0))) + 1, vocab)
