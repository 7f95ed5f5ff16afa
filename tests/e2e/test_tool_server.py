"""--tool-server: tools that the server itself calls, by a server of MCP that this file brings.

The model's side is a script; the client is openai's, whole and streamed. What a whole server is not
needed for runs in this process.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from tokenizers import Tokenizer

from dovetail.config.checkpoint.sources.model_path import DEMO_PATH
from dovetail.errors import ConfigError
from dovetail_plugins.apis.responses.mcp import (
    MAX_RESULT_BYTES,
    McpFault,
    McpServer,
    connected,
    named_servers,
)
from dovetail_testing.fakes.async_engine import FakeAsyncEngine, Script
from dovetail_testing.models import write_replay_checkpoint
from support.response_events import checked_events, whole, without_ids
from support.server_process import ServerProcess
from support.serving import app_for, send

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.usefixtures("with_test_models"),
]
openai = pytest.importorskip("openai")

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
NAMES = ("weather", "fails", "slow", "long")
TOOLS = [{"name": n, "description": f"The {n} tool", "inputSchema": PARAMETERS} for n in NAMES]
HELD_S = 0.3


class Tools(ThreadingHTTPServer):
    """A server of MCP. `asked` is what came, `sessions` whom it knows."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Asked)
        self.asked: list[tuple[str, Any]] = []
        self.sessions: set[str] = set()
        self.numbers = itertools.count()
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def label(self) -> str:
        return f"127.0.0.1:{self.server_port}"

    def calls(self) -> list[Any]:
        return [params for method, params in self.asked if method == "tools/call"]


class Asked(BaseHTTPRequestHandler):
    """One message; `protocol_version` lets answers come in chunks."""

    protocol_version = "HTTP/1.1"
    server: Tools

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        method, params = message["method"], message.get("params", {})
        self.server.asked.append((method, params))
        session = self.headers.get("Mcp-Session-Id")
        if self.path != "/mcp" or (method != "initialize" and session not in self.server.sessions):
            self.reply(404, b"")
        elif "id" not in message:
            self.reply(202, b"")
        else:
            self.answer(message["id"], method, params)

    def answer(self, number: int, method: str, params: Any) -> None:
        told = {"jsonrpc": "2.0", "id": number}
        if method == "initialize":
            session = f"session-{next(self.server.numbers)}"
            self.server.sessions.add(session)
            about = {"protocolVersion": "2025-06-18", "serverInfo": {"name": "sky"}}
            self.reply_json(told | {"result": about}, {"Mcp-Session-Id": session})
        elif method == "tools/list":
            first = {"tools": TOOLS[:2], "nextCursor": "more"}
            page = {"tools": TOOLS[2:]} if params.get("cursor") == "more" else first
            self.reply_json(told | {"result": page})
        elif params["name"] == "weather":
            self.reply_events(told | {"result": {"content": [text("1 degree \ud800")]}})
        elif params["name"] == "fails":
            self.reply_json(told | {"result": {"content": [text("no sky 1")], "isError": True}})
        elif params["name"] == "long":
            self.reply_json(told | {"result": {"content": [text("a" * (MAX_RESULT_BYTES + 1))]}})
        elif params["name"] == "slow":
            time.sleep(2 * HELD_S)
        else:
            self.reply_json(told | {"error": {"code": -32602, "message": "no such tool 1"}})

    def reply_json(self, message: Any, head: dict[str, str] | None = None) -> None:
        self.reply(200, json.dumps(message).encode(), head)

    def reply(self, status: int, body: bytes, head: dict[str, str] | None = None) -> None:
        self.send_response(status)
        fields = {"Content-Type": "application/json", "Content-Length": str(len(body))}
        for name, value in (fields | (head or {})).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def reply_events(self, message: Any) -> None:
        """Answer as a stream that begins with other news and stays open."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        news = {"jsonrpc": "2.0", "method": "notifications/progress", "params": {}}
        for one in (news, message):
            data = f"event: message\r\ndata: {json.dumps(one)}\r\n\r\n".encode()
            for part in (data[:9], data[9:]):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
                self.wfile.flush()
        self.rfile.read(1)

    def log_message(self, *words: Any) -> None:
        """Say nothing."""


def user(words: str) -> dict[str, str]:
    return {"role": "user", "content": words}


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


@pytest.fixture
def tools() -> Iterator[Tools]:
    with Tools() as server:
        yield server
        server.shutdown()


def entry(label: str, **fields: Any) -> dict[str, Any]:
    return {"type": "mcp", "server_label": label, **fields}


def hermes(name: str, arguments: str = '{"city": "Rome"}') -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


# --- A whole server, the replay model: the last digit of the conversation names the script.

ENDS = "It is cold."
FUNCTION = {"type": "function", "name": "home", "parameters": {"type": "object"}}


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Tools]]:
    tokenizer = Tokenizer.from_file(str(DEMO_PATH / "tokenizer.json"))
    said = [
        f"I look.\n{hermes('weather')}",
        ENDS,
        f"{hermes('weather')}\n{hermes('home')}",
    ]
    scripts = [{"tokens": tokenizer.encode(s, add_special_tokens=False).ids} for s in said]
    first = tokenizer.encode("0", add_special_tokens=False).ids[0]
    model = write_replay_checkpoint(
        tmp_path_factory.mktemp("replay"), tokenizer_from=DEMO_PATH, scripts=scripts, cue_base=first
    )
    with (
        Tools() as tools,
        ServerProcess(str(model), "--port", "0", "--tool-server", tools.label) as server,
    ):
        url = f"{server.wait_ready().url}/v1"
        with openai.OpenAI(api_key="none", base_url=url, max_retries=0) as client:
            yield client, tools
        tools.shutdown()


def respond(client: Any, is_stream: bool, **fields: Any) -> tuple[Any, list[Any]]:
    fields = {"model": client.models.list().data[0].id, "temperature": 0} | fields
    if not is_stream:
        return client.responses.create(**fields), []
    events = list(client.responses.create(**fields, stream=True))
    with client.responses.stream(**fields) as stream:
        final = stream.get_final_response()
    assert final.output_text == events[-1].response.output_text
    return events[-1].response, events


@pytest.mark.parametrize("is_stream", [False, True])
def test_the_server_calls_and_the_model_goes_on(rig: tuple[Any, Tools], is_stream: bool) -> None:
    client, tools = rig
    tools.asked.clear()
    tool = entry("sky", allowed_tools=["weather"])
    found, events = respond(client, is_stream, input="How is it? 0", tools=[tool])
    assert [item.type for item in found.output] == [
        "mcp_list_tools", "message", "mcp_call", "message",
    ]  # fmt: skip
    listed, _, call, words = found.output
    assert [(one.name, one.input_schema) for one in listed.tools] == [("weather", PARAMETERS)]
    assert (call.server_label, call.name, call.status) == ("sky", "weather", "completed")
    assert (call.output, call.error) == ("1 degree ?", None)
    assert json.loads(call.arguments) == {"city": "Rome"}
    assert words.content[0].text == ENDS
    assert found.status == "completed"
    made = {"name": "weather", "arguments": {"city": "Rome"}}
    assert tools.calls() == [made] * (2 if is_stream else 1)
    if is_stream:
        check_events([event.to_dict() for event in events], found.to_dict()["output"])
    # Both ways to go on read the call and its result.
    again, _ = respond(client, is_stream, input="And?", previous_response_id=found.id)
    assert again.output_text == ENDS
    items = [item.to_dict() for item in found.output]
    given = [user("How is it? 0"), *items, user("And?")]
    sent, _ = respond(client, is_stream, input=given)
    assert sent.usage.input_tokens == again.usage.input_tokens


def check_events(events: list[dict[str, Any]], output: list[dict[str, Any]]) -> None:
    """Fail unless every item is opened and closed once, as it ends, and a call is told in order."""
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    done = [event for event in events if event["type"] == "response.output_item.done"]
    assert [event["item"] for event in done] == output
    assert [event["output_index"] for event in done] == list(range(len(output)))
    place = next(i for i, item in enumerate(output) if item["type"] == "mcp_call")
    told = [event for event in events if event.get("output_index") == place]
    kinds = [event["type"].removeprefix("response.") for event in told]
    assert [kind for kind, _ in itertools.groupby(kinds)] == [
        "output_item.added", "mcp_call.in_progress", "mcp_call_arguments.delta",
        "mcp_call_arguments.done", "mcp_call.completed", "output_item.done",
    ]  # fmt: skip
    deltas = [event["delta"] for event in told if event["type"].endswith("arguments.delta")]
    assert "".join(deltas) == output[place]["arguments"]


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_function_of_the_clients_ends_the_turns(rig: tuple[Any, Tools], is_stream: bool) -> None:
    client, tools = rig
    tools.asked.clear()
    found, _ = respond(client, is_stream, input="Both 2", tools=[entry(tools.label), FUNCTION])
    assert [item.type for item in found.output] == ["mcp_list_tools", "mcp_call", "function_call"]
    assert len(tools.calls()) == (2 if is_stream else 1)
    result = {"type": "function_call_output", "call_id": found.output[-1].call_id, "output": "1"}
    last, _ = respond(client, is_stream, input=[result], previous_response_id=found.id)
    assert last.output_text == ENDS


# --- In this process: what goes wrong.


def app_with(
    tools: Tools, said: Callable[[str], str], **fields: Any
) -> tuple[FastAPI, FakeAsyncEngine]:
    """Return an application whose model says what `said` returns for a prompt."""
    server = McpServer(tools.label, call_limit_s=HELD_S)
    asyncio.run(server.connect())

    def script(prompt: str, index: int) -> Script:
        answer = said(prompt)
        return Script(pieces=[answer[:7], answer[7:]])

    return app_for(script, tool_servers=[server], **fields)


def ask(app: FastAPI, label: str, **fields: Any) -> Any:
    body = {"input": "hi", "tools": [entry(label)]} | fields
    return send(app, "POST", "/v1/responses", body)


def calls_of(found: Any) -> list[dict[str, Any]]:
    return [item for item in found["output"] if item["type"] == "mcp_call"]


@pytest.mark.parametrize(
    ("call", "kind", "says"),
    [
        ("fails {}", "mcp_tool_execution_error", "no sky"),
        ("slow {}", "http_error", "longer than 0.3 s"),
        ("long {}", "http_error", "longer than 65536 bytes"),
    ],
)
def test_a_tool_that_fails_is_told_to_the_model(
    tools: Tools, call: str, kind: str, says: str
) -> None:
    def said(prompt: str) -> str:
        return "sorry, no" if "error: " in prompt else f"[call]{call}[/call]"

    app, engine = app_with(tools, said)
    found = ask(app, tools.label).json()
    (made,) = calls_of(found)
    assert (made["status"], made["output"], made["error"]["type"]) == ("failed", None, kind)
    assert says in json.dumps(made["error"])
    assert found["output"][-1]["content"][0]["text"] == "sorry, no"
    prompt = "".join(map(chr, engine.asked[-1][2]["prompt"]))
    assert says in prompt
    counted = sum(len(one[2]["prompt"]) for one in engine.asked)
    assert found["usage"]["input_tokens"] == counted


@pytest.mark.parametrize(
    "call", ['weather {"city": "Rome"}', "fails {}", "slow {}", 'weather {"city": '], ids=str
)
def test_every_event_is_of_the_clients_types(tools: Tools, call: str) -> None:
    first = f"I look. [call]{call}[/call]"
    app, _ = app_with(tools, lambda prompt: "It is cold." if "degree" in prompt else first)
    fields = {"tools": [entry("sky")], "max_tool_calls": 1}
    events = checked_events(app, **fields)
    assert without_ids(events[-1]["response"]) == without_ids(whole(app, **fields))


def test_arguments_that_are_not_an_object_are_not_a_call(tools: Tools) -> None:
    app, _ = app_with(tools, lambda prompt: "[call]weather [1][/call]")
    found = ask(app, tools.label).json()
    assert calls_of(found) == []
    assert "weather [1]" in found["output"][-1]["content"][0]["text"]


def test_turns_and_calls_are_bounded(tools: Tools) -> None:
    app, engine = app_with(tools, lambda prompt: '[call]weather {"city": "Rome"}[/call]')
    found = ask(app, tools.label, max_tool_calls=2, tool_choice="auto").json()
    assert [call["status"] for call in calls_of(found)] == ["completed", "completed"]
    assert (len(engine.asked), found["status"]) == (3, "completed")
    engine.asked.clear()
    assert len(calls_of(ask(app, tools.label).json())) == 15
    assert len(engine.asked) == 16
    engine.asked.clear()
    one_turn = len('[call]weather {"city": "Rome"}[/call]')
    short = ask(app, tools.label, max_output_tokens=one_turn + 1).json()
    assert [params.max_tokens for _, params, _ in engine.asked] == [one_turn + 1, 1]
    assert len(calls_of(short)) == 2
    assert (short["status"], short["output"][-1]["type"]) == ("incomplete", "mcp_call")


def test_calls_of_one_turn_beyond_the_bound_are_not_made(tools: Tools) -> None:
    call = '[call]weather {"city": "Rome"}[/call]'
    app, _ = app_with(tools, lambda prompt: "Done." if "Rome" in prompt else call * 3)
    found = ask(app, tools.label, max_tool_calls=2).json()
    assert [one["status"] for one in calls_of(found)] == ["completed", "completed", "failed"]
    assert "max_tool_calls" in calls_of(found)[2]["error"]["message"]
    assert len(tools.calls()) == 2


def test_a_call_cut_short_is_not_made(tools: Tools) -> None:
    cut = Script(pieces=["[call]weather ", '{"city": "Rom'], finish_reason="length")
    server = McpServer(tools.label)
    asyncio.run(server.connect())
    app, _ = app_for(cut, tool_servers=[server])
    found = ask(app, tools.label, stream=True)
    events = [json.loads(line[6:]) for line in found.text.splitlines() if line[:5] == "data:"]
    assert events[-1]["type"] == "response.incomplete"
    assert tools.calls() == []
    for call in calls_of(events[-1]["response"]):
        assert (call["status"], call["output"]) == ("incomplete", None)


def test_a_session_that_the_server_has_forgotten_begins_anew(tools: Tools) -> None:
    async def work() -> str:
        server = McpServer(tools.label)
        await server.connect()
        assert (server.name, [tool.name for tool in server.tools]) == ("sky", list(NAMES))
        tools.sessions.clear()
        return (await server.call("weather", {})).text

    assert asyncio.run(work()) == "1 degree ?"
    assert [method for method, _ in tools.asked].count("initialize") == 2


@pytest.mark.parametrize(
    ("tool", "where"),
    [
        (entry("sky", require_approval="always"), "tools[0].require_approval"),
        (entry("sky", allowed_tools=["absent"]), "tools[0].allowed_tools"),
        (entry("sky", allowed_tools=3), "tools[0].allowed_tools"),
        ({"type": "mcp", "server_label": ["sky"]}, "tools[0].server_label"),
    ],
)
def test_requests_reach_only_what_was_named_at_start(
    tools: Tools, tool: dict[str, Any], where: str
) -> None:
    app, engine = app_with(tools, lambda prompt: "never")
    reply = ask(app, "sky", tools=[tool])
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, where)
    assert engine.asked == []


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "mcp"},
        entry("elsewhere"),
        entry("elsewhere", require_approval="always", connector_id="mail"),
        entry("sky", server_url="http://127.0.0.1:1/mcp"),
        entry("sky", headers={"x": "y"}),
    ],
)
def test_servers_that_were_not_named_at_start_are_left_out(
    tools: Tools, tool: dict[str, Any]
) -> None:
    app, engine = app_with(tools, lambda prompt: "hello")
    before = len(tools.asked)
    reply = ask(app, "sky", tools=[tool])
    assert (reply.status_code, reply.headers["x-dovetail-ignored-fields"]) == (200, "tools.mcp")
    assert reply.json()["tools"] == []
    assert "weather" not in engine.tokenizer.decode(engine.asked[-1][2]["prompt"])
    listed = {"type": "allowed_tools", "mode": "auto", "tools": [tool]}
    assert ask(app, "sky", tools=[tool], tool_choice=listed).status_code == 200
    for choice in ("required", tool, listed | {"mode": "required"}):
        refused = ask(app, "sky", tools=[tool], tool_choice=choice)
        assert refused.status_code == 400
        assert refused.json()["error"]["param"].startswith("tool_choice")
    assert len(tools.asked) == before


def test_two_tools_of_one_name_and_chosen_tools(tools: Tools) -> None:
    app, engine = app_with(tools, lambda prompt: '[call]weather {"city": "Rome"}[/call]')
    same = {"type": "function", "name": "slow", "parameters": {}}
    reply = ask(app, "sky", tools=[entry("sky"), same])
    assert reply.status_code == 400
    assert '"slow"' in reply.json()["error"]["message"]
    other = ask(app, "sky", tool_choice=entry("sky", name="absent"))
    assert (other.status_code, other.json()["error"]["param"]) == (400, "tool_choice")
    assert engine.asked == []


def test_at_start(tools: Tools, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no tools come with the server"):
        named_servers(("demo",))
    for wrong in ("http://one:1", "one", "one:0", "one:99999", "o ne:1"):
        with pytest.raises(ConfigError, match="is not an address"):
            named_servers((wrong,))
    both = asyncio.run(connected([f"{tools.label},{tools.label}"]))
    assert [server.label for server in both] == [tools.label]
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        label = f"127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(ConfigError, match=label):
            asyncio.run(connected([tools.label, label]))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server = McpServer(f"127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(McpFault, match=r"longer than 0\.1 s"):
            asyncio.run(server.connect(limit_s=0.1))


def test_what_the_client_gets_without_tool_servers() -> None:
    app, _ = app_for()
    assert ask(app, "sky").status_code == 200
    reply: httpx.Response = ask(app, "sky", tool_choice=entry("sky", name="weather"))
    assert reply.status_code == 400
    assert "--tool-server" in reply.json()["error"]["message"]
