"""--log-format json: every message is one JSON object, with the id of the request it is about."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from dovetail import registry
from dovetail.observability.caller import CALLER
from dovetail.observability.logging import LogSettings, configure, settings
from support.serving import app_for

JSON = registry.admin.value_of("log_format", "json")


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """Set this process's log up as JSON, and return where its lines go."""
    stream, before = io.StringIO(), settings()
    monkeypatch.setattr("sys.stderr", stream)
    token = CALLER.set(None)
    configure("INFO", form=JSON, prefix="[rank 1] ")
    yield stream
    CALLER.reset(token)
    monkeypatch.undo()
    (before or LogSettings(level="INFO", config=None, prefix="", is_wanted=True)).apply()


def read(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().split("\n")[:-1]]


def test_a_message_is_one_line(lines: io.StringIO) -> None:
    log = logging.getLogger("dovetail.test")
    log.info("two\nlines, a separator \u2028 and %s", '"quotes" \x1b[0m')
    log.warning("of a request", extra={"request_id": "mine"})
    try:
        raise ValueError("no")
    except ValueError:
        log.exception("failed")
    first, second, third = read(lines)
    assert first["message"] == 'two\nlines, a separator \u2028 and "quotes" \x1b[0m'
    assert first["level"] == "INFO" and first["logger"] == "dovetail.test"
    assert first["prefix"] == "[rank 1]" and "request_id" not in first
    assert first["time"].endswith("Z") and len(first["time"]) == len("2026-11-29T07:59:44.820Z")
    assert (second["level"], second["request_id"]) == ("WARNING", "mine")
    assert third["exception"].endswith("ValueError: no") and "Traceback" in third["exception"]


def test_lines_of_a_request_name_it(lines: io.StringIO) -> None:
    app, _ = app_for()
    with TestClient(app) as client:
        body, headers = {"prompt": 5.5}, {"x-request-id": "mine-7"}
        assert client.post("/v1/completions", json=body, headers=headers).status_code == 400
    (refused,) = [line for line in read(lines) if "refused" in line["message"]]
    assert refused["request_id"] == "mine-7"


def test_a_format_is_a_formatter() -> None:
    from dovetail.registry.value_rules import value_fault

    assert value_fault("log_format", JSON) is None
    assert "logging.Formatter" in str(value_fault("log_format", "json"))
