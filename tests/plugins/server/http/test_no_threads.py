"""A short request is answered in the event loop: a thread would wait for the interpreter."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from support.serving import USER, app_for, send

ASKED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": USER},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": USER, "max_tokens": 5},
    "/api/chat": {"model": "fake", "messages": USER, "stream": False},
    "/tokenize": {"prompt": "hi"},
}


@pytest.mark.parametrize("path", ASKED)
def test_a_short_request_starts_no_thread(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    app, _ = app_for()
    started: list[str] = []
    start = threading.Thread.start

    def noted(thread: threading.Thread) -> None:
        started.append(thread.name)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", noted)
    answer = send(app, "POST", path, ASKED[path])
    assert answer.status_code == 200, answer.text
    assert started == []
