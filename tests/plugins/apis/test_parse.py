"""/v1/parse: text in, events out, the same as an answer with that text."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.server.generate.tools.parsers import Parsers
from dovetail_testing.fakes.async_engine import Script
from support.serving import TOOLS, app_for, chat, send

TEXT = '<think>\nwhy\n</think>\n\nHello [call]add {"a": 1}[/call]\n[call]sub {}[/call] bye'


def parse(app: Any, **fields: Any) -> Any:
    return send(app, "POST", "/v1/parse", {"text": TEXT} | fields)


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    for call in message["tool_calls"]:
        assert call.pop("id").startswith("call_")
    return message


def test_it_equals_an_answer_with_that_text() -> None:
    app, _ = app_for(Script(pieces=[TEXT]))
    found = parse(app).json()
    answer = chat(app, tools=TOOLS).json()["choices"][0]["message"]
    assert without_ids(found["message"]) == without_ids(answer)
    kinds = [event["type"] for event in found["events"]]
    assert kinds == [
        "reasoning", "content", "tool_call", "tool_call_arguments", "tool_call",
        "tool_call_arguments", "content",
    ]  # fmt: skip
    assert found["events"][2]["name"] == "add"


def test_the_prompt_decides_where_it_begins() -> None:
    app, _ = app_for()
    inside = parse(app, text="a</think>b", prompt="<|im_start|>assistant\n<think>\n").json()
    assert inside["starts_inside_reasoning"] is True
    assert (inside["message"]["reasoning"], inside["message"]["content"]) == ("a", "b")
    outside = parse(app, text="a</think>b").json()
    assert outside["message"]["content"] == "a</think>b"


def test_registered_parsers_by_name_and_no_others() -> None:
    app, _ = app_for(parsers=Parsers())
    assert parse(app).json()["message"]["content"] == TEXT
    for name in ("os:path", "nothing", "support.serving:NameAndJson"):
        answer = parse(app, tool_parser=name)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "tool_parser"


BY_TEMPLATE = ("hf", "response_template")
"""Parsers that read by a template of the checkpoint, which the fake one lacks."""


def test_each_plugin_reads_its_own_samples() -> None:
    pytest.importorskip("dovetail_plugins")
    from dovetail import registry

    app, _ = app_for(parsers=Parsers())
    for name in set(registry.names("tool_parser")) - {*BY_TEMPLATE}:
        for sample in registry.load("tool_parser", name).samples:
            tools = [
                {"function": {"name": tool.name, "parameters": tool.parameters}}
                for tool in sample.tools
            ]
            found = parse(app, text=sample.text, tool_parser=name, tools=tools).json()
            calls = found["message"]["tool_calls"] or []
            told = [(call["function"]["name"], call["function"]["arguments"]) for call in calls]
            assert told == [(call.name, call.arguments) for call in sample.calls], name


@pytest.mark.slow
def test_a_megabyte_of_openings_is_read() -> None:
    app, _ = app_for()
    text = "[call]<think>" * 80_000
    found = parse(app, text=text).json()
    assert found["message"]["content"] == text
