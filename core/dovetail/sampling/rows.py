"""RowParams: the sampling fields of all rows as host arrays, for a step to gather together."""

from __future__ import annotations

import math

import numpy as np

from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail_kernels.sample.native import MAX_TOP, Tables

RANDOM = 1
FILTERED = 2
PENALISED = 4
LOGPROBS = 8
PROCESSED = 16
FAULTY = 32
SHAPED = 64
"""A processor of a stage after the penalties needs the row."""
MANY_LOGPROBS = 128
"""More logprobs than the native kernels list, or logprobs of tokens named in the request."""
BY_LOGITS_ALONE = RANDOM | FILTERED
"""A row with only these bits draws by logits, seed and position, not by earlier tokens."""
SEED_MASK = (1 << 64) - 1
MIN_TEMPERATURE = 1e-6
"""Smaller temperatures would overflow; at this one only exact ties are still random."""


class RowParams:
    """One entry per row in each array. `features` is a bit set of the constants above.

    Kernels read `tables`; `num_logprobs` is the request's number (-1: all), `named` are the tokens
    whose logprobs a row wants instead of those of the most likely ones.
    """

    def __init__(self, max_rows: int) -> None:
        self.features = np.zeros(max_rows, dtype=np.int64)
        self.num_logprobs = np.zeros(max_rows, dtype=np.int64)
        self.named: dict[int, tuple[int, ...]] = {}
        self.tables = Tables(max_rows)

    def fill(
        self, row: int, params: SamplingParams, seed: int, *, features: int, uses_min_p: bool = True
    ) -> None:
        """Store a request's fields. `features` adds bits that do not follow from params alone;
        `uses_min_p` false: a processor does min-p.

        Mutates: self
        """
        tables = self.tables
        self.features[row] = features | _plain_features(params, uses_min_p)
        self.num_logprobs[row] = wanted = 0 if params.logprobs is None else params.logprobs
        if params.logprob_token_ids:
            self.named[row] = params.logprob_token_ids
        tables.inverse_temperature[row] = inverse_temperature(params)
        tables.top_k[row] = max(params.top_k, 0)
        tables.top_p[row] = params.top_p
        tables.least[row] = least_of(params) if uses_min_p else -math.inf
        tables.seed[row] = seed & SEED_MASK
        tables.num_top[row] = -1 if params.logprobs is None else min(max(wanted, 0), MAX_TOP)

    def clear(self, row: int) -> None:
        """Reset a row to no features. Mutates: self"""
        self.features[row] = 0
        self.named.pop(row, None)
        self.tables.inverse_temperature[row] = 0.0
        self.tables.num_top[row] = -1


def inverse_temperature(params: SamplingParams) -> float:
    """Return the factor of the logits; 0 for greedy rows."""
    return 1.0 / max(params.temperature, MIN_TEMPERATURE) if params.temperature > 0.0 else 0.0


def least_of(params: SamplingParams) -> float:
    """Return min-p's distance below the best scaled logit; -inf when it is off."""
    return math.log(params.min_p) if params.min_p > 0.0 else -math.inf


def _plain_features(params: SamplingParams, uses_min_p: bool) -> int:
    bits = 0
    if params.logprobs is not None:
        is_few = 0 <= params.logprobs <= MAX_TOP and not params.logprob_token_ids
        bits |= LOGPROBS if is_few else LOGPROBS | MANY_LOGPROBS
    if params.temperature > 0.0:
        bits |= RANDOM
        if params.top_k > 0 or params.top_p < 1.0 or (params.min_p > 0.0 and uses_min_p):
            bits |= FILTERED
    return bits
