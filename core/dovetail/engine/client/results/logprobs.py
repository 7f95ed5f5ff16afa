"""Logprobs for output: made finite, and summed.

JSON has no infinity, so a token that cannot be sampled gets LOGPROB_FLOOR.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec

from dovetail.interfaces.data.step import TokenLogprobs

LOGPROB_FLOOR = -9999.0


def finite(value: float) -> float:
    """Return the logprob, or LOGPROB_FLOOR if it is -inf, NaN or below the floor."""
    return value if math.isfinite(value) and value > LOGPROB_FLOOR else LOGPROB_FLOOR


def shaped(entries: Iterable[TokenLogprobs]) -> tuple[TokenLogprobs, ...]:
    """Return the entries with finite numbers only."""
    return tuple(entry if _is_finite(entry) else _floored(entry) for entry in entries)


def cumulative(entries: Sequence[TokenLogprobs]) -> float:
    """Return the sum of the sampled tokens' logprobs."""
    return sum(entry.logprob for entry in entries)


def _is_finite(entry: TokenLogprobs) -> bool:
    # -inf, NaN and numbers below the floor all fail this comparison.
    if not LOGPROB_FLOOR <= entry.logprob < math.inf:
        return False
    return all(LOGPROB_FLOOR <= value < math.inf for value in entry.top_logprobs)


def _floored(entry: TokenLogprobs) -> TokenLogprobs:
    return msgspec.structs.replace(
        entry,
        logprob=finite(entry.logprob),
        top_logprobs=tuple(finite(value) for value in entry.top_logprobs),
    )
