"""Roles that nobody knows, turns without content and names with blanks, in every dialect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from support.serving import USER, app_for, send

Fields = dict[str, Any]
SCHEMA = {"type": "object"}
TURNS: dict[str, Callable[[Fields], Fields]] = {
    "/v1/chat/completions": lambda turn: {"messages": [turn, *USER]},
    "/v1/responses": lambda turn: {"input": [turn, *USER]},
    "/v1/messages": lambda turn: {"messages": [turn, *USER], "max_tokens": 9},
    "/api/chat": lambda turn: {"model": "fake", "stream": False, "messages": [turn, *USER]},
}


def chat_tool(name: Any) -> Fields:
    return {"type": "function", "function": {"name": name, "parameters": SCHEMA}}


TOOLS: dict[str, tuple[str, Callable[[Any], Fields], str]] = {
    "chat": ("/v1/chat/completions", chat_tool, "tools[0].function.name"),
    "custom": (
        "/v1/chat/completions",
        lambda name: {"type": "custom", "custom": {"name": name}},
        "tools[0].custom.name",
    ),
    "responses": (
        "/v1/responses",
        lambda name: {"type": "function", "name": name, "parameters": SCHEMA},
        "tools[0].name",
    ),
    "responses custom": (
        "/v1/responses",
        lambda name: {"type": "custom", "name": name},
        "tools[0].name",
    ),
    "namespace": (
        "/v1/responses",
        lambda name: {
            "type": "namespace",
            "name": "sums",
            "tools": [{"type": "function", "name": name}],
        },
        "tools[0].tools[0].name",
    ),
    "messages": ("/v1/messages", lambda n: {"name": n, "input_schema": SCHEMA}, "tools[0].name"),
    "ollama": ("/api/chat", chat_tool, "tools[0].function.name"),
}


def message_of(answer: Any) -> str:
    error = answer.json()["error"]
    return error if isinstance(error, str) else error["message"]


@pytest.mark.parametrize("path", TURNS)
@pytest.mark.parametrize(
    ("turn", "place"),
    [
        ({"role": "usr", "content": "x"}, "role"),
        ({"content": "x"}, "role"),
        ({"role": "user"}, "content"),
        ({"role": "user", "content": None}, "content"),
        ({"role": "assistant"}, "content"),
        ({"role": "user", "content": 3}, "content"),
    ],
)
def test_turns_that_say_nothing_or_come_from_nobody(path: str, turn: Fields, place: str) -> None:
    answer = send(app_for()[0], "POST", path, TURNS[path](turn))
    root = "input" if path == "/v1/responses" else "messages"
    assert answer.status_code == 400, answer.text
    assert message_of(answer).startswith(f"{root}[0].{place}: ")


@pytest.mark.parametrize("path", TURNS)
@pytest.mark.parametrize("role", ["user", "assistant"])
def test_empty_text_is_content(path: str, role: str) -> None:
    turn = {"role": role, "content": ""}
    assert send(app_for()[0], "POST", path, TURNS[path](turn)).status_code == 200


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("kind", TOOLS)
@pytest.mark.parametrize("name", ["a b", " a", "a\n", "a\u00a0b", ""])
def test_names_with_blanks_are_refused_in_words(kind: str, name: str) -> None:
    path, tool_of, place = TOOLS[kind]
    body = TURNS[path]({"role": "user", "content": "x"}) | {"tools": [tool_of(name)]}
    answer = send(app_for()[0], "POST", path, body)
    assert answer.status_code == 400
    assert message_of(answer).startswith(f"{place}: ")
    assert "pattern" not in message_of(answer)
