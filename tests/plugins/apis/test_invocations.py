"""/invocations answers as the endpoint does that its body is for, with the same errors."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail_testing.fakes.async_engine import Script
from support.serving import USER, app_for, call_asgi, events_of, send


@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/chat/completions", {"messages": USER}), ("/v1/completions", {"prompt": "hi"})],
)
def test_it_answers_as_the_endpoint_of_its_body(path: str, body: dict[str, Any]) -> None:
    app, _ = app_for(Script(pieces=["a", "b"]))
    here = send(app, "POST", "/invocations", body).json()
    there = send(app, "POST", path, body).json()
    assert here["choices"] == there["choices"] and here["object"] == there["object"]
    streamed = send(app, "POST", "/invocations", body | {"stream": True})
    assert events_of(streamed)[-1] == "[DONE]"
    error = send(app, "POST", "/invocations", body | {"n": 0})
    assert error.status_code == 400 and error.json()["error"]["param"] == "n"


@pytest.mark.parametrize("body", [{}, [], {"messages": USER, "prompt": "hi"}, b"{", None])
def test_a_body_for_none_or_both_is_refused(body: Any) -> None:
    app, engine = app_for()
    assert send(app, "POST", "/invocations", body).status_code == 400
    assert not engine.asked


def test_it_needs_the_key_and_hears_that_the_client_leaves() -> None:
    app, _ = app_for(api_key=("k",))
    assert send(app, "POST", "/invocations", {"prompt": "hi"}).status_code == 401


def test_a_client_that_leaves_ends_its_request() -> None:
    import asyncio

    app, engine = app_for(Script(pieces=["a"], hangs=True))
    body = {"prompt": "hi", "stream": True}
    asyncio.run(call_asgi(app, "/invocations", body, leaves_after=1))
    assert not engine.running and engine.aborted
