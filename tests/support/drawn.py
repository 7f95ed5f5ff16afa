"""Tests on drawn examples, without limits of time: other tests may have the processor meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis
from hypothesis import HealthCheck, settings

UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def given(*strategies: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that runs a test on examples which hypothesis draws."""
    return lambda test: UNTIMED(hypothesis.given(*strategies)(test))
