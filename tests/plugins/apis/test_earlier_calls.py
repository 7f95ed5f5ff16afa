"""Calls of earlier answers whose arguments are not an object, in every dialect: they do not end a
session, and the model reads a call without arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from support.serving import USER, app_for, send

Fields = dict[str, Any]


def chat(given: Any) -> Fields:
    call = {"id": "t", "type": "function", "function": {"name": "add", "arguments": given}}
    answer = {"role": "assistant", "content": None, "tool_calls": [call]}
    return {"messages": [*USER, answer, {"role": "tool", "tool_call_id": "t", "content": "no"}]}


def responses(given: Any) -> Fields:
    call = {"type": "function_call", "call_id": "t", "name": "add", "arguments": given}
    result = {"type": "function_call_output", "call_id": "t", "output": "no"}
    return {"input": [*USER, call, result]}


def messages(given: Any) -> Fields:
    call = {"type": "tool_use", "id": "t", "name": "add", "input": given}
    result = {"type": "tool_result", "tool_use_id": "t", "content": "no"}
    answers = [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    return {"messages": [*USER, *answers], "max_tokens": 9}


def ollama(given: Any) -> Fields:
    call = {"function": {"name": "add", "arguments": given}}
    answer = {"role": "assistant", "content": "", "tool_calls": [call]}
    result = {"role": "tool", "tool_name": "add", "content": "no"}
    return {"model": "fake", "stream": False, "messages": [*USER, answer, result]}


DIALECTS: dict[str, Callable[[Any], Fields]] = {
    "/v1/chat/completions": chat,
    "/v1/responses": responses,
    "/v1/messages": messages,
    "/api/chat": ollama,
}


def call_in_prompt(path: str, given: Any) -> str:
    """Return the call as the model reads it."""
    app, engine = app_for()
    answer = send(app, "POST", path, DIALECTS[path](given))
    assert answer.status_code == 200, answer.text
    prompt = engine.tokenizer.decode(engine.asked[-1][2]["prompt"])
    return prompt.partition("<tool_call>")[2].partition("</tool_call>")[0]


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("path", DIALECTS)
@pytest.mark.parametrize("given", ['{"a": ', "", "null", "[1]", '"x"', "x", None, [1], 3, True])
def test_arguments_that_are_no_object_are_none(path: str, given: Any) -> None:
    assert call_in_prompt(path, given) == "{}"


@pytest.mark.parametrize("path", DIALECTS)
@pytest.mark.parametrize("given", [{"a": "é"}, '{"a": "é"}'])
def test_whole_arguments_are_read(path: str, given: Any) -> None:
    assert call_in_prompt(path, given) == '{"a": "é"}'


@pytest.mark.parametrize("path", DIALECTS)
def test_arguments_nested_too_deep_are_refused(path: str) -> None:
    app, _ = app_for()
    deep = '{"a": ' * 3000 + "1" + "}" * 3000
    answer = send(app, "POST", path, DIALECTS[path](deep))
    assert answer.status_code == 400
    assert "nest too deep" in answer.text
