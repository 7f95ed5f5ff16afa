"""RowParams: the sampling fields of all rows as host arrays, so a step gathers them at once.

Knows no tensor on a device and no token.
"""

from __future__ import annotations

import numpy as np

from dovetail.interfaces.sampling_params import SamplingParams

RANDOM = 1
FILTERED = 2
PENALISED = 4
LOGPROBS = 8
PROCESSED = 16
FAULTY = 32
SEED_MASK = (1 << 64) - 1
MIN_TEMPERATURE = 1e-6
"""Smaller temperatures would overflow; at this one only exact ties are still drawn among."""


class RowParams:
    """One entry per row in each array. `features` is a bit set of the words above."""

    def __init__(self, max_rows: int) -> None:
        self.features = np.zeros(max_rows, dtype=np.int64)
        self.temperature = np.ones(max_rows, dtype=np.float32)
        self.top_k = np.zeros(max_rows, dtype=np.int64)
        self.top_p = np.ones(max_rows, dtype=np.float64)
        self.seed = np.zeros(max_rows, dtype=np.uint64)
        self.num_logprobs = np.zeros(max_rows, dtype=np.int64)

    def fill(self, row: int, params: SamplingParams, seed: int, *, features: int) -> None:
        """Take over a request's fields. `features` adds bits that params alone do not tell.

        Mutates: self
        """
        self.features[row] = features | self._plain_features(params)
        self.temperature[row] = max(params.temperature, MIN_TEMPERATURE)
        self.top_k[row] = max(params.top_k, 0)
        self.top_p[row] = params.top_p
        self.seed[row] = seed & SEED_MASK
        self.num_logprobs[row] = 0 if params.logprobs is None else params.logprobs

    @staticmethod
    def _plain_features(params: SamplingParams) -> int:
        bits = 0 if params.logprobs is None else LOGPROBS
        if params.temperature > 0.0:
            bits |= RANDOM
            if params.top_k > 0 or params.top_p < 1.0:
                bits |= FILTERED
        return bits
