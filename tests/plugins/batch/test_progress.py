"""Progress: the counts, the time left, and a line now and then where there is no terminal."""

from __future__ import annotations

import asyncio
import logging

import msgspec
import pytest

from dovetail_plugins.apis.batches.answer import LineFault, ResultLine, RouteAnswer
from dovetail_plugins.apis.batches.lines import Scan
from dovetail_plugins.batch import progress
from dovetail_plugins.batch.progress import Progress

FOUND = Scan(num_lines=10, num_answered=4, num_failed=1)


def result(body: bytes, status: int = 200) -> ResultLine:
    response = RouteAnswer(status_code=status, request_id="r", body=msgspec.Raw(body))
    return ResultLine(id="i", custom_id="c", response=response)


def test_lines_and_tokens_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Progress(FOUND, is_bar=False)
    monkeypatch.setattr(found, "seconds", lambda: 8.0)
    assert found.line() == "4 of 10 done, 1 failed, 0 tokens/s, unknown time left"
    found.note(result(b'{"usage":{"prompt_tokens":5,"completion_tokens":16}}'))
    found.note(result(b'{"usage":null}'))
    found.note(
        result(b'{"usage":{"input_tokens":2,"output_tokens":3,"cache_read_input_tokens":4}}')
    )
    found.note(result(b"[1]", status=400))
    found.note(ResultLine(id="i", custom_id=None, error=LineFault(code="x", message="y")))
    assert found.line() == "9 of 10 done, 3 failed, 2 tokens/s, 0:00:02 left"
    assert (found.num_prompt_tokens, found.num_tokens) == (11, 19)


def test_a_line_comes_now_and_then(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(progress, "PERIOD_S", 0.01)
    monkeypatch.setattr(logging.getLogger("dovetail"), "propagate", True)

    async def shown() -> None:
        with Progress(FOUND, is_bar=False):
            await asyncio.sleep(0.1)
        await asyncio.sleep(0)

    with caplog.at_level(logging.INFO, "dovetail_plugins.batch"):
        asyncio.run(shown())
    assert len(caplog.messages) > 2
    assert set(caplog.messages) == {"4 of 10 done, 1 failed, 0 tokens/s, unknown time left"}


def test_a_bar_shows_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(FOUND, is_bar=True) as found:
        found.note(result(b"{}", status=500))
    error = capsys.readouterr().err
    assert "5/10" in error
