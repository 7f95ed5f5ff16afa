"""Null in a field that has a default stands for it, in every dialect."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail_testing.fakes.async_engine import Script
from support.serving import USER, app_for, send

BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": USER, "max_tokens": 2},
    "/v1/completions": {"prompt": "Hi", "max_tokens": 2},
    "/v1/responses": {"input": "Hi", "max_output_tokens": 2},
    "/v1/messages": {"messages": USER, "max_tokens": 2},
}


@pytest.mark.parametrize(
    ("path", "field"),
    [
        *((path, "stream") for path in BODIES),
        ("/v1/completions", "echo"),
        ("/v1/chat/completions", "add_generation_prompt"),
        ("/v1/chat/completions", "min_tokens"),
        ("/v1/responses", "ignore_eos"),
    ],
)
def test_null_is_the_default(path: str, field: str) -> None:
    app, engine = app_for(Script(pieces=["ok"]))
    with_null = send(app, "POST", path, BODIES[path] | {field: None})
    assert with_null.status_code == 200, with_null.text
    assert send(app, "POST", path, BODIES[path]).status_code == 200
    assert engine.asked[0][2] == engine.asked[1][2]


def test_null_in_a_part_of_a_body_is_the_default() -> None:
    app, _ = app_for(Script(pieces=["ok"]))
    told = {"stream": True, "stream_options": {"include_usage": None}}
    answer = send(app, "POST", "/v1/chat/completions", BODIES["/v1/chat/completions"] | told)
    assert answer.status_code == 200
    assert '"usage"' not in answer.text


def test_null_in_a_required_field_is_refused() -> None:
    app, _ = app_for(Script(pieces=["ok"]))
    answer = send(app, "POST", "/v1/chat/completions", {"messages": None})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "messages")
