"""StatLogger: takes every number it is given, quickly, and never raises."""

from __future__ import annotations

import time
from typing import Any

import pytest
from msgspec import structs

from dovetail.interfaces.stats import Caller, StatLogger, TokenStats
from dovetail_testing.contract import requires
from dovetail_testing.fakes.objects import request_stats, step_stats

CALLS = 200
MEAN_CALL_S = 0.005
CLOSE_S = 10.0


@pytest.fixture
def stat_logger(plugin: Any) -> StatLogger:
    """Return the logger of a served model."""
    logger: StatLogger = plugin(plugin.Options(), "org/model", 4096)
    return logger


class TestStatLogger:
    """Clauses of stat loggers."""

    kind = "stat_logger"

    def test_takes_all_numbers(self, stat_logger: StatLogger) -> None:
        """Steps, tokens, requests and flushes in any order, extreme counts among them, of several
        engines."""
        stat_logger.expect((0, 1))
        stat_logger.flush()
        stat_logger.step(step_stats())
        stat_logger.step(step_stats(num_running=0, step_tokens=0, engine=1))
        stat_logger.step(step_stats(step_tokens=2**40, prompt_tokens=2**40, preemptions=10**6))
        stat_logger.tokens(TokenStats(prompt_tokens=2**40, generated_tokens=1))
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
        """A second logger can exist next to the first, for the same model or another."""
        for name in ("org/model", "other"):
            second = plugin(plugin.Options(), name, 128)
            second.step(step_stats())
            second.flush()
        stat_logger.step(step_stats())

    def test_callers_may_say_anything(self, stat_logger: StatLogger) -> None:
        """Trace headers are a client's own: whatever they hold, nothing raises."""
        for text in ("", "00", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "\xff\n,=;" * 90):
            caller = Caller(path=text, traceparent=text, tracestate=text)
            stat_logger.request(structs.replace(request_stats(), caller=caller))

    def test_closes_in_time(self, stat_logger: StatLogger) -> None:
        """The end takes seconds at most, with things left to write."""
        stat_logger.request(request_stats())
        start_s = time.perf_counter()
        stat_logger.close()
        assert time.perf_counter() - start_s < CLOSE_S

    @requires("offline")
    def test_requests_without_steps(self, stat_logger: StatLogger) -> None:
        """An engine without a server reports only its requests."""
        stat_logger.request(request_stats())
        stat_logger.flush()
        stat_logger.close()
