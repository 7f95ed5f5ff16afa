"""A call that an answer ends within is not one to run, and its markup is not shown."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dovetail import registry
from dovetail.interfaces.data.text import Tool
from dovetail.server.generate.tools.parsers import Parsers
from dovetail_testing.fakes.async_engine import Script
from dovetail_testing.text_splits import parse_in_pieces, random_cuts
from support.serving import TOOLS, USER, app_for, send

LONG = (
    '<tool_call>{"name": "sub", "arguments": {}}</tool_call>'
    '<tool_call>{"name": "add", "arguments": {"a": "' + "x" * 300
)
CAUSES = ("length", "stop")


def _app(pieces: list[str], cause: str) -> Any:
    hermes: Any = registry.make(registry.choose("tool_parser", "hermes"))
    script = Script(pieces=pieces, finish_reason=cause)
    return app_for(script, parsers=Parsers(tool=hermes))[0]


def events_of_messages(text: str) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]


def _tools() -> list[dict[str, Any]]:
    return [{"name": name, "input_schema": {"type": "object"}} for name in ("add", "sub")]


@pytest.mark.parametrize("cause", CAUSES)
def test_messages_hold_whole_calls_alone(cause: str) -> None:
    app = _app([LONG], cause)
    body = {"messages": USER, "max_tokens": 99, "tools": _tools()}
    answer = send(app, "POST", "/v1/messages", body).json()
    assert answer["stop_reason"] == "max_tokens"
    assert [(b["name"], b["input"]) for b in answer["content"]] == [("sub", {})]


@pytest.mark.parametrize("cause", CAUSES)
def test_streamed_messages_say_so_too(cause: str) -> None:
    app = _app(list(LONG), cause)
    body = {"messages": USER, "max_tokens": 99, "tools": _tools(), "stream": True}
    events = events_of_messages(send(app, "POST", "/v1/messages", body).text)
    (end,) = [event for event in events if event["type"] == "message_delta"]
    assert end["delta"]["stop_reason"] == "max_tokens"
    written = "".join(e["delta"].get("partial_json", "") for e in events if "delta" in e)
    assert written.startswith('{}{"a": "x')


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("cause", CAUSES)
def test_ollama_gives_whole_calls_alone(cause: str, stream: bool) -> None:
    app = _app([LONG], cause)
    body = {"model": "fake", "messages": USER, "tools": TOOLS, "stream": stream}
    lines = send(app, "POST", "/api/chat", body).text.splitlines()
    made = [call for line in lines for call in json.loads(line)["message"].get("tool_calls", [])]
    assert [call["function"]["name"] for call in made] == ["sub"]
    assert json.loads(lines[-1])["done_reason"] == "length"


def test_chat_does_not_ask_to_run_it() -> None:
    app = _app([LONG], "stop")
    body = {"messages": USER, "tools": TOOLS}
    (choice,) = send(app, "POST", "/v1/chat/completions", body).json()["choices"]
    assert choice["finish_reason"] == "length"


@pytest.mark.parametrize("cause", CAUSES)
def test_responses_call_the_item_incomplete(cause: str) -> None:
    app = _app([LONG], cause)
    tools = [{"type": "function", "name": name} for name in ("add", "sub")]
    answer = send(app, "POST", "/v1/responses", {"input": "x", "tools": tools}).json()
    assert answer["status"] == "incomplete"
    made = [(item["name"], item["status"]) for item in answer["output"]]
    assert made == [("sub", "completed"), ("add", "incomplete")]


@pytest.mark.parametrize("cause", CAUSES)
def test_streamed_responses_call_it_incomplete_too(cause: str) -> None:
    app = _app([*LONG, "</tool_call> and on"], cause)
    tools = [{"type": "function", "name": name} for name in ("add", "sub")]
    body = {"input": "x", "tools": tools, "stream": True}
    events = events_of_messages(send(app, "POST", "/v1/responses", body).text)
    done = [e["item"] for e in events if e["type"] == "response.output_item.done"]
    made = {item["name"]: item["status"] for item in done if item["type"] == "function_call"}
    assert made == {"sub": "completed", "add": "incomplete"}


HEADS = [
    ("hermes", '<tool_call>\n{"name": "a', ""),
    ("hermes", "<tool_call>", ""),
    ("hermes", "<tool_c", ""),
    ("hermes", '<tool_call>{"name": "add", ', ""),
    ("qwen3_coder", "<tool_call>\n<function=a", ""),
    ("glm45", "<tool_call>add\n<arg_k", ""),
    ("kimi_k2", "<|tool_calls_section_begin|><|tool_call_begin|>functions.ad", ""),
    ("deepseek_v31", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add", ""),
    ("mistral", "[TOOL_CALLS]ad", ""),
    ("granite", '<|tool_call|>[{"na', ""),
    ("lfm2", "<|tool_call_start|>[ad", ""),
    ("gemma4", "<|tool_call>call:ad", ""),
    ("openai", "<|channel|>commentary to=functions.ad", ""),
    ("minimax_m3", ']<]minimax[>[<tool_call>]<]minimax[>[<invoke na', ""),
    ("hermes", "a <t", "a <t"),
    ("hermes", "<tool_call>not a call", "<tool_call>not a call"),
    ("llama3_json", '{"na', ""),
    ("llama3_json", '{"type": "function", "name": "ad', ""),
    ("llama3_json", '{"name": "add", "param', ""),
    ("llama3_json", '{"name": "Ann', '{"name": "Ann'),
    ("llama3_json", '{"answer": 4', '{"answer": 4'),
    ("xlam", '[{"na', ""),
    ("xlam", '```json\n[{"name": "ad', ""),
    ("pythonic", "[ad", ""),
    ("pythonic", "[1, 2", "[1, 2"),
    ("pythonic", "[Ann", "[Ann"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "content"), HEADS)
def test_a_call_that_is_cut_in_its_head_is_not_shown(name: str, text: str, content: str) -> None:
    parser: Any = registry.make(registry.choose("tool_parser", name))
    tools = (Tool(name="add"),)
    for pieces in ([text], *random_cuts(text, seed=1, num=20)):
        got = parse_in_pieces(pieces, tool_parser=parser, tools=tools, is_cut=True)
        assert (got.content, got.calls) == (content, ())


@pytest.mark.parametrize("head", ['<tool_call>{"na', "<tool_call>", "<tool_c"])
def test_a_head_that_is_cut_in_open_thinking_is_not_shown(head: str) -> None:
    hermes: Any = registry.make(registry.choose("tool_parser", "hermes"))
    thinks: Any = registry.make(registry.choose("reasoning_parser", "qwen3"))
    text = "<think>I add." + head
    for pieces in ([text], *random_cuts(text, seed=2, num=20)):
        got = parse_in_pieces(
            pieces, tool_parser=hermes, reasoning=thinks.markers, tools=(Tool(name="add"),),
            is_cut=True,
        )  # fmt: skip
        assert (got.reasoning, got.content, got.calls) == ("I add.", "", ())
