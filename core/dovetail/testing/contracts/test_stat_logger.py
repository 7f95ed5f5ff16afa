"""StatLogger: takes every number it is given, quickly, and never raises."""

from __future__ import annotations

import time
from typing import Any

import pytest

from dovetail.interfaces.stats import StatLogger
from dovetail.testing.fakes import request_stats, step_stats

CALLS = 200
MEAN_CALL_S = 0.005


@pytest.fixture
def stat_logger(plugin: Any) -> StatLogger:
    """Return the logger of a served model."""
    made: StatLogger = plugin(plugin.Options(), "org/model", 4096)
    return made


class TestStatLogger:
    """Clauses of stat loggers."""

    kind = "stat_logger"

    def test_takes_all_numbers(self, stat_logger: StatLogger) -> None:
        """Steps, requests and flushes in any order, extreme counts among them."""
        stat_logger.flush()
        stat_logger.step(step_stats())
        stat_logger.step(step_stats(num_running=0, step_tokens=0))
        stat_logger.step(step_stats(step_tokens=2**40, prompt_tokens=2**40, preemptions=10**6))
        for reason in ("stop", "length", "abort", "error"):
            stat_logger.request(request_stats("id \N{SNOWMAN}\n", reason))
        stat_logger.flush()
        stat_logger.flush()

    def test_does_not_block(self, stat_logger: StatLogger) -> None:
        """Hundreds of calls take a few milliseconds each at most."""
        start_s = time.perf_counter()
        for number in range(CALLS):
            stat_logger.step(step_stats(step_tokens=number))
            stat_logger.request(request_stats(str(number)))
        assert (time.perf_counter() - start_s) / (2 * CALLS) < MEAN_CALL_S

    def test_two_models_in_one_process(self, plugin: Any, stat_logger: StatLogger) -> None:
        """A second logger can live beside the first, for the same model or another."""
        for name in ("org/model", "other"):
            second = plugin(plugin.Options(), name, 128)
            second.step(step_stats())
            second.flush()
        stat_logger.step(step_stats())
