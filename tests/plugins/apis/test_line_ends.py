"""Streams are read line by line, also by readers for whom Unicode's line ends end a line."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dovetail_testing.fakes.async_engine import Script
from support.serving import USER, app_for, send

TEXT = "a\u2028b\u2029c\x85d"
ASKS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": USER},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": USER, "max_tokens": 9},
    "/api/chat": {"model": "fake", "messages": USER},
}


@pytest.mark.parametrize("path", ASKS)
def test_no_character_of_an_answer_ends_a_line(path: str) -> None:
    app, _ = app_for(Script(pieces=[TEXT]))
    answer = send(app, "POST", path, ASKS[path] | {"stream": True})
    assert answer.status_code == 200
    found = []
    for line in answer.text.splitlines():
        data = line.removeprefix("data: ")
        if data and not line.startswith("event: ") and data != "[DONE]":
            found.append(json.loads(data))
    assert TEXT in "".join(text for one in found for text in texts(one))


def texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for one in inner for text in texts(one)]
