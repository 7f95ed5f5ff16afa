"""Stat loggers behind one call, and log lines that stay lines."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from dovetail.interfaces.stats import RequestStats, StatLogger, StepStats
from dovetail.observability import metrics
from dovetail.observability.logging import setup, shortened
from dovetail.observability.stats import StatLoggers
from dovetail_testing.fakes.async_engine import Script
from dovetail_testing.fakes.objects import request_stats, step_stats
from support.serving import app_for, call_asgi, chat, complete, send


class Notes(StatLogger):
    def __init__(self, options: Any, model_name: str, max_model_tokens: int) -> None:
        self.got: list[object] = []

    def step(self, stats: StepStats) -> None:
        self.got.append(stats)

    def request(self, stats: RequestStats) -> None:
        self.got.append(stats)


class Raises(Notes):
    def step(self, stats: StepStats) -> None:
        raise RuntimeError("broken")


def test_a_logger_that_raises_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    good, bad = Notes(None, "m", 1), Raises(None, "m", 1)
    loggers = StatLoggers([bad, good])
    for _ in range(3):
        loggers.step(step_stats())
    loggers.request(request_stats())
    loggers.flush()
    assert len(good.got) == 4
    assert caplog.text.count("Raises raised") == 1
    assert not bad.got


def test_log_lines_stay_lines(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("dovetail")
    before = logger.handlers, logger.level, logger.propagate
    try:
        setup("info")
        logging.getLogger("dovetail.test").info("a\nb %s", "c\r\nd")
        logging.getLogger("dovetail.test").debug("hidden")
        lines = capsys.readouterr().err.splitlines()
    finally:
        logger.handlers, logger.level, logger.propagate = before
    assert len(lines) == 1
    assert lines[0].endswith("dovetail.test: a\\nb c\\r\\nd")
    assert shortened("abcdef", 2) == "ab... (4 more)"
    assert shortened("abcdef", None) == "abcdef"


def test_metrics_are_declared_once() -> None:
    assert metrics.counter("dovetail:test_once", "x") is metrics.counter("dovetail:test_once", "x")
    with pytest.raises(TypeError):
        metrics.gauge("dovetail:test_once", "x")


def test_requests_are_logged_when_asked(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "dovetail.server"):
        app, _ = app_for(Script(pieces=("ab", "c")), enable_log_requests=True, max_log_len=5)
        chat(app, request_id="one")
        app, _ = app_for()
        chat(app, request_id="two")
    assert "request one ended: stop; " in caplog.text
    assert "3 generated tokens" in caplog.text
    assert "'<|im_...'" in caplog.text
    assert "two" not in caplog.text


def test_the_line_of_a_request_says_what_it_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    app, engine = app_for(Script(pieces=("ab",)), enable_log_requests=True, max_log_len=3)
    engine.tokenizer.decode = lambda ids, **_: "<long>" * len(ids)  # type: ignore[method-assign]
    with caplog.at_level(logging.INFO, "dovetail.server"):
        complete(app, request_id="one", prompt="secret", seed=5, stop=["x" * 900], temperature=0)
        assert "secret" not in caplog.text and "<lo" not in caplog.text
    line = next(text for text in caplog.messages if text.startswith("request one: "))
    assert line.startswith("request one: 6 prompt tokens, ")
    assert ", temperature=0.0" in line and ", seed=5" in line
    assert "top_p" not in line, "what was not asked for"
    assert len(line) < 400
    with caplog.at_level(logging.DEBUG, "dovetail.server"):
        complete(app, request_id="two", prompt="secret")
    assert "request two: prompt '<lo...'" in caplog.text


def sample(name: str) -> float:
    """Return a sample's value in the process's metrics, 0 where it is not there yet."""
    lines = metrics.exposition().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name} "))


@pytest.mark.parametrize("leaves_after", [0, 2])
def test_clients_that_leave_are_counted(leaves_after: int) -> None:
    app, _ = app_for(Script(pieces=("a", "b"), hangs=True))
    before = sample("dovetail:disconnects_total")
    body = {"prompt": "hi", "stream": leaves_after > 0}
    asyncio.run(call_asgi(app, "/v1/completions", body, leaves_after=leaves_after))
    assert sample("dovetail:disconnects_total") == before + 1


def test_requests_are_counted() -> None:
    app, _ = app_for()
    name = 'dovetail:http_request_duration_seconds_count{route="/v1/chat/completions"}'
    before = sample(name)
    chat(app)
    chat(app, n=0)
    text = send(app, "GET", "/metrics").text
    assert sample(name) == before + 2
    assert 'method="POST",route="/v1/chat/completions",status="200"' in text
    assert 'dovetail:refused_requests_total{kind="invalid_request_error",status="400"}' in text
