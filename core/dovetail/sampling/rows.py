"""SamplingRows: what all rows ask of their draws, as host arrays, and the rows' faults."""

from __future__ import annotations

import math

import numpy as np

from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.sampling import features as bits
from dovetail.sampling.step import Draws, DrawStep
from dovetail_kernels.sample.native import MAX_TOP, Tables

SEED_MASK = (1 << 64) - 1
MIN_TEMPERATURE = 1e-6
"""Smaller temperatures would overflow; at this one only exact ties are still random."""


class SamplingRows:
    """One entry per row in each array. `features` is a bit set (see features.py).

    Kernels read `tables`; `num_logprobs` is the request's number (-1: all). `named` has the
    tokens that a request named for logprobs, in place of the most likely ones. `turns` counts how
    often a row was taken or freed, which tells draws of one request from those of the next.
    """

    def __init__(self, max_rows: int) -> None:
        self.features = np.zeros(max_rows, dtype=np.int64)
        self.num_logprobs = np.zeros(max_rows, dtype=np.int64)
        self.named: dict[int, tuple[int, ...]] = {}
        self.turns = np.zeros(max_rows, dtype=np.int64)
        self.tables = Tables(max_rows)
        self._faults: dict[int, str] = {}

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
        """Reset a row to no features and no fault. Mutates: self"""
        self.turns[row] += 1
        self.features[row] = 0
        self.named.pop(row, None)
        self._faults.pop(row, None)
        self.tables.inverse_temperature[row] = 0.0
        self.tables.num_top[row] = -1

    def mark_failed(self, row: int, fault: str) -> None:
        """Remember a row's first fault: all its later draws are invalid. Mutates: self"""
        self._faults.setdefault(row, fault)
        self.features[row] |= bits.FAULTY

    def recall(self, step: DrawStep, is_same: np.ndarray | bool = True) -> None:
        """Fault the step's rows that have failed since they were taken, except those that another
        request has now (not is_same). Shapes: is_same [S]. Mutates: step.faults"""
        is_faulty = (self.features[step.rows] & bits.FAULTY) != 0
        for i in np.flatnonzero(is_same & is_faulty).tolist():
            step.faults.setdefault(i, self._faults[step.row_list[i]])

    def finish(
        self, step: DrawStep, token_ids: list[int], is_same: np.ndarray | None = None
    ) -> Draws:
        """Return a step's draws. Faulty rows have failed from now on, except those that another
        request has now (not is_same). Mutates: self, token_ids"""
        for i, fault in step.faults.items():
            token_ids[i] = 0
            if is_same is None or is_same[i]:
                self.mark_failed(step.row_list[i], fault)
        return Draws(token_ids=token_ids, faults=step.faults)


def inverse_temperature(params: SamplingParams) -> float:
    """Return the factor of the logits; 0 for greedy rows."""
    return 1.0 / max(params.temperature, MIN_TEMPERATURE) if params.temperature > 0.0 else 0.0


def least_of(params: SamplingParams) -> float:
    """Return min-p's distance below the best scaled logit; -inf when it is off."""
    return math.log(params.min_p) if params.min_p > 0.0 else -math.inf


def _plain_features(params: SamplingParams, uses_min_p: bool) -> int:
    found = 0
    if params.logprobs is not None:
        is_few = 0 <= params.logprobs <= MAX_TOP and not params.logprob_token_ids
        found |= bits.LOGPROBS if is_few else bits.LOGPROBS | bits.MANY_LOGPROBS
    if params.temperature > 0.0:
        found |= bits.RANDOM
        if params.top_k > 0 or params.top_p < 1.0 or (params.min_p > 0.0 and uses_min_p):
            found |= bits.FILTERED
    return found
