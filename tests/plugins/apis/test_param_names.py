"""Errors name the field of the endpoint that was asked, whoever below it found them."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail_testing.fakes.async_engine import FakeAsyncEngine, fake_spec
from support.serving import app_for, send

HALF = "\ud800"
"""Half of a surrogate pair: JSON can carry it, UTF-8 cannot."""


def messages(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def body_of(path: str, text: str) -> dict[str, Any]:
    """Return a request to a path whose prompt holds the text."""
    match path:
        case "/v1/completions" | "/tokenize":
            return {"prompt": text}
        case "/v1/responses":
            return {"input": text}
        case _:
            return {"messages": messages(text), "max_tokens": 5}


def error_of(path: str, body: dict[str, Any], max_model_tokens: int = 4096) -> dict[str, Any]:
    engine = FakeAsyncEngine(spec=fake_spec(max_model_tokens=max_model_tokens))
    app, _ = app_for(engine=engine)
    answer = send(app, "POST", path, body)
    assert answer.status_code == 400, answer.text
    found: dict[str, Any] = answer.json()["error"]
    return found


FIELDS = [
    ("/v1/completions", "prompt"),
    ("/v1/chat/completions", "messages"),
    ("/v1/responses", "input"),
]


@pytest.mark.parametrize(("path", "field"), FIELDS)
def test_a_prompt_that_is_too_long(path: str, field: str) -> None:
    error = error_of(path, body_of(path, "x" * 50), max_model_tokens=20)
    assert error["param"] == field
    assert error["message"].startswith(f"{field}: the prompt has ")
    assert error["code"] == "context_length_exceeded"


@pytest.mark.parametrize(("path", "field"), [*FIELDS, ("/tokenize", "prompt")])
def test_text_that_is_not_unicode(path: str, field: str) -> None:
    error = error_of(path, body_of(path, HALF))
    assert error["param"] == field
    assert "not valid Unicode" in error["message"]


def test_messages_that_are_only_tokenized() -> None:
    assert error_of("/tokenize", {"messages": messages(HALF)})["param"] == "messages"


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
def test_the_dialect_without_param_says_it_in_words(path: str) -> None:
    body = {"messages": messages(HALF), "max_tokens": 5}
    app, _ = app_for()
    body["model"] = send(app, "GET", "/v1/models").json()["data"][0]["id"]
    answer = send(app, "POST", path, body)
    assert answer.json()["error"]["message"].startswith("messages: the text is not valid Unicode")


def test_a_field_that_only_the_engine_checks() -> None:
    for path, _ in FIELDS[:2]:
        error = error_of(path, body_of(path, "x") | {"stop_token_ids": [1 << 30]})
        assert error["param"] == "stop_token_ids"


def test_a_prompt_of_no_tokens() -> None:
    empty = {"messages": messages("x"), "chat_template": "{{ '' }}"}
    app, _ = app_for(trust_request_chat_template=True)
    error = send(app, "POST", "/v1/chat/completions", empty).json()["error"]
    assert error["param"] == "messages"
    assert error["message"] == "messages: the prompt has no tokens. Fix: send some text."
    assert error_of("/v1/completions", {"prompt": ""})["param"] == "prompt"
