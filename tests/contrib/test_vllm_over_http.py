"""Parsers of plugin files written for vLLM behind the HTTP server, asked by the openai client."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from dovetail.processes.process import import_paths
from dovetail.server.generate.tools.parsers import Parsers
from dovetail_testing.fakes.async_engine import FakeTokenizer, Script
from support.server_process import ServerProcess
from support.serving import app_for
from support.vllm_files import FILES, PACKAGE, TOOL_BODIES, load_parser

openai = pytest.importorskip("openai")
MESSAGES = [{"role": "user", "content": "hi"}]
QUESTION = [{"role": "user", "content": "What is the weather in Paris?"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}


def asked(client: Any, stream: bool, **fields: Any) -> tuple[str, str, list[tuple[str, str]], str]:
    """Return (reasoning, content, calls, finish_reason) of a chat answer."""
    if not stream:
        choice = client.chat.completions.create(**fields).choices[0]
        calls = [(c.function.name, c.function.arguments) for c in choice.message.tool_calls or ()]
        reasoning = getattr(choice.message, "reasoning", None)
        return reasoning or "", choice.message.content or "", calls, choice.finish_reason
    reasoning, content, reason = "", "", ""
    made: dict[int, list[str]] = {}
    for chunk in client.chat.completions.create(**fields, stream=True):
        for choice in chunk.choices:
            reasoning += getattr(choice.delta, "reasoning", None) or ""
            content += choice.delta.content or ""
            reason = choice.finish_reason or reason
            for call in choice.delta.tool_calls or ():
                held = made.setdefault(call.index, ["", ""])
                held[0] += call.function.name or ""
                held[1] += call.function.arguments or ""
    return reasoning, content, [(name, text) for name, text in made.values()], reason


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("name", "content", "calls", "reason"),
    [
        ("quiet", "ab ", [("f", '{"x": 1}')], "tool_calls"),
        ("raises_streaming", "ab ", [("f", '{"x": 1}')], "tool_calls"),
        ("raises_always", 'ab [call]{"x": 1}', [], "stop"),
        ("raises_whole", 'ab [call]{"x": 1}', [], "stop"),
        ("returns_text", "ab ", [("f", '{"x": 1}')], "tool_calls"),
    ],
)
def test_faults_are_not_the_clients(
    name: str, content: str, calls: Any, reason: str, stream: bool
) -> None:
    tool = load_parser("tool_parser", name, "failing.py").bound(FakeTokenizer())
    script = Script(pieces=["a", "b [ca", 'll]{"x"', ": 1}"])
    app, _ = app_for(script, parsers=Parsers(tool=tool))
    with (
        TestClient(app) as http,
        openai.OpenAI(
            api_key="none", base_url="http://test/v1", http_client=http, max_retries=0
        ) as client,
    ):
        fields = {"model": "fake", "messages": MESSAGES, "tools": TOOL_BODIES}
        assert asked(client, stream, **fields) == ("", content, calls, reason)


def test_a_parser_that_refuses_the_request_is_a_clear_error() -> None:
    tool = load_parser("tool_parser", "refuses_tools", "failing.py").bound(FakeTokenizer())
    app, _ = app_for(Script(), parsers=Parsers(tool=tool))
    body = {"model": "fake", "messages": MESSAGES, "tools": TOOL_BODIES}
    response = TestClient(app).post("/v1/chat/completions", json=body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert "tool parser RefusesTools" in error["message"]
    assert "no more than none" in error["message"]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Return where the demo model is served with parsers of plugin files, by two processes."""
    path = os.pathsep.join([str(PACKAGE), *import_paths()])
    words = [
        "--port", "0", "--api-server-count", "2",
        "--tool-parser-plugin", str(FILES / "state_machine.py"),
        "--enable-auto-tool-choice", "--tool-call-parser", "state_machine",
        "--reasoning-parser-plugin", str(FILES / "thoughts.py"),
        "--reasoning-parser", "thoughts",
    ]  # fmt: skip
    with ServerProcess(*words, env={"PYTHONPATH": path}) as server:
        yield server.wait_ready().url


@pytest.mark.e2e
def test_the_demo_model_through_plugin_files(url: str) -> None:
    with openai.OpenAI(api_key="none", base_url=f"{url}/v1", max_retries=0) as client:
        model = client.models.list().data[0].id
        fields = {"model": model, "messages": QUESTION, "tools": [WEATHER], "temperature": 0}
        whole = asked(client, False, **fields)
        assert [(name, json.loads(text)) for name, text in whole[2]] == [
            ("get_weather", {"city": "Paris"})
        ]
        assert whole[3] == "tool_calls"
        assert asked(client, True, **fields) == whole
        thinking = fields | {"extra_body": {"chat_template_kwargs": {"enable_thinking": True}}}
        del thinking["tools"]
        thought = asked(client, False, **thinking)
        assert thought[1]
        assert "<think>" not in thought[0] + thought[1]
        assert asked(client, True, **thinking) == thought
        forced = fields | {"tool_choice": "required", "parallel_tool_calls": False}
        made = asked(client, False, **forced)
        assert [name for name, _ in made[2]] == ["get_weather"]
        assert asked(client, True, **forced) == made


@pytest.mark.e2e
def test_a_text_through_plugin_files(url: str) -> None:
    text = '<think>why</think>So <tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
    with openai.OpenAI(api_key="none", base_url=f"{url}/v1", max_retries=0) as client:
        reply = client.post("/parse", body={"text": text, "tools": TOOL_BODIES}, cast_to=object)
        message = reply["message"]
        assert message["reasoning"] == "why"
        assert message["content"] == "So "
        assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a": 1}'}
