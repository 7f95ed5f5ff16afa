"""Helpers for tests of the HTTP server: an application around a fake engine, ways to call it.

The parsers here are as small as the interface allows, so that no plugin is needed. Needs httpx.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, ClassVar, TypeVar

import httpx
import msgspec
from fastapi import FastAPI

from dovetail import registry
from dovetail.config.sections.frontend import FrontendConfig
from dovetail.interfaces.data.spec import Selection
from dovetail.interfaces.data.text import Markers, Tool, ToolCall
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.reasoning_parser import ReasoningParser
from dovetail.interfaces.tool_parser import MalformedToolCall, ToolParser, UnfinishedToolCall
from dovetail.server.app import build_app
from dovetail.server.families import ServedApi, build_apis
from dovetail.server.generate.rendering.chat import ChatRenderer
from dovetail.server.generate.tools.parsers import Parsers
from dovetail_plugins.apis.audio.routes import AudioState
from dovetail_plugins.apis.llamacpp.slots import Slots
from dovetail_plugins.apis.messages.routes import MessagesState
from dovetail_plugins.apis.realtime.routes import RealtimeOptions, RealtimeState
from dovetail_plugins.apis.responses.mcp import McpServer
from dovetail_plugins.apis.responses.state import ResponsesState
from dovetail_plugins.apis.speech.routes import SpeechState
from dovetail_plugins.apis.ui.files import PageFiles
from dovetail_testing.fakes.async_engine import FakeAsyncEngine, Script, fake_spec

Answer = TypeVar("Answer")


class NameAndJson(ToolParser):
    """A call is `[call]name {json}[/call]`."""

    info = Info(summary="test parser: a name and a JSON object")
    markers: ClassVar[tuple[Markers, ...]] = (Markers(start="[call]", end="[/call]"),)

    def parse(self, body: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the one call. Raises: MalformedToolCall"""
        name, _, arguments = body.strip().partition(" ")
        try:
            json.loads(arguments)
        except json.JSONDecodeError as error:
            is_cut = error.msg.startswith("Unterminated string")
            raise (UnfinishedToolCall if is_cut else MalformedToolCall)(error.msg) from error
        return [ToolCall(name=name, arguments=arguments)]


class Thinks(ReasoningParser):
    """Thinking stands between <think> tags."""

    info = Info(summary="test parser: <think> tags")
    markers: ClassVar[Markers] = Markers(start="<think>", end="</think>")


PARSERS = Parsers(tool=NameAndJson(None), reasoning=Thinks(None))
USER = [{"role": "user", "content": "hi"}]
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]


def app_for(
    script: Any = None,
    *,
    engine: FakeAsyncEngine | None = None,
    max_queued: int | None = None,
    parsers: Parsers = PARSERS,
    renderer_of: ChatRenderer | None = None,
    tool_servers: Sequence[McpServer] = (),
    apis: Sequence[ServedApi] = (),
    **frontend: Any,
) -> tuple[FastAPI, FakeAsyncEngine]:
    """Return an application and its engine. `apis` are served beside dovetail's own."""
    made = engine or FakeAsyncEngine(script or Script())
    app = build_app(
        made,  # type: ignore[arg-type]
        FrontendConfig(**frontend),
        [*built_in_apis(tool_servers), *apis],
        parsers=parsers,
        renderer=renderer_of,
        max_queued_requests=max_queued,
    )
    return app, made


def with_samplers(script: Any = None, **changes: Any) -> FakeAsyncEngine:
    """Return an engine that has the installed logits processors, as every server does, and a spec
    with changes."""
    spec, kind = fake_spec(**changes), "logits_processor"
    found = tuple(
        Selection(kind=kind, name=entry.name, target=entry.target)
        for entry in registry.entries(kind)
    )
    run = msgspec.structs.replace(spec.run, logits_processors=found)
    spec = msgspec.structs.replace(spec, run=run)
    return FakeAsyncEngine(script or Script(), spec=spec)


def built_in_apis(tool_servers: Sequence[McpServer] = ()) -> list[ServedApi]:
    """Return dovetail's own families, with servers of tools that are connected already."""
    states = {
        "responses": ResponsesState(tool_servers=tool_servers),
        "messages": MessagesState(),
        "llamacpp": Slots(),
        "ui": PageFiles(),
        "speech": SpeechState({}),
        "audio": AudioState(),
        "realtime": RealtimeState(options=RealtimeOptions()),
    }
    return [
        ServedApi(name=name, api=api, state=states.get(name)) for name, api in build_apis().items()
    ]


@contextlib.asynccontextmanager
async def client_of(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """Give an HTTP client of an application."""
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=20) as client:
        yield client


def with_client(app: FastAPI, work: Callable[[httpx.AsyncClient], Awaitable[Answer]]) -> Answer:
    """Return what `work` returns, given a client of the application."""

    async def main() -> Answer:
        async with client_of(app) as client:
            return await work(client)

    return asyncio.run(main())


def send(app: FastAPI, method: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
    """Return the answer to one request; a body of bytes is sent as it is. Underscores in header
    names are dashes."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    if body is not None:
        named = {"content-type": "application/json"} | named
    content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    return with_client(app, lambda c: c.request(method, path, content=content, headers=named))


def chat(app: FastAPI, **fields: Any) -> httpx.Response:
    """Return the answer to one chat request."""
    return send(app, "POST", "/v1/chat/completions", {"messages": USER} | fields)


def complete(app: FastAPI, **fields: Any) -> httpx.Response:
    """Return the answer to one completion request."""
    return send(app, "POST", "/v1/completions", {"prompt": "hi"} | fields)


def events_of(response: httpx.Response) -> list[Any]:
    """Return the decoded events of a stream; [DONE] as text."""
    datas = [part[6:] for part in response.text.split("\n\n") if part.startswith("data: ")]
    return [data if data == "[DONE]" else json.loads(data) for data in datas]


def joined(events: list[Any], index: int = 0) -> dict[str, Any]:
    """Return what the chunks of one chat choice come to, in the shape of a whole choice."""
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
    choice: dict[str, Any] = {"message": message, "finish_reason": None, "logprobs": []}
    chunks = [event for event in events if event != "[DONE]"]
    for piece in (c for chunk in chunks for c in chunk["choices"] if c["index"] == index):
        _add_piece(choice, piece)
    return choice


def _add_piece(choice: dict[str, Any], piece: dict[str, Any]) -> None:
    message, delta = choice["message"], piece["delta"]
    for name in ("content", "reasoning_content"):
        message[name] += delta.get(name) or ""
    for call in delta.get("tool_calls") or ():
        if call["index"] == len(message["tool_calls"]):
            message["tool_calls"].append({"id": call["id"], "name": "", "arguments": ""})
        known = message["tool_calls"][call["index"]]
        for name in ("name", "arguments"):
            known[name] += call["function"].get(name) or ""
    choice["logprobs"] += (piece.get("logprobs") or {}).get("content") or []
    if piece["finish_reason"] is not None:
        assert choice["finish_reason"] is None, "a second finish reason"
        choice["finish_reason"] = piece["finish_reason"]


async def call_asgi(
    app: FastAPI, path: str, body: Any, *, leaves_after: int | None = None, leave_s: float = 0.05
) -> list[bytes]:
    """POST without an HTTP library; the client leaves after that many body messages (0: after
    `leave_s`, before any). Returns the body messages it got."""
    got: list[bytes] = []
    left = asyncio.Event()
    incoming = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]

    async def receive() -> Any:
        if incoming:
            return incoming.pop()
        if leaves_after == 0:
            await asyncio.sleep(leave_s)
        else:
            await left.wait()
        return {"type": "http.disconnect"}

    async def send_back(message: Any) -> None:
        if message["type"] == "http.response.body" and message.get("body"):
            got.append(message["body"])
            if leaves_after is not None and len(got) >= leaves_after:
                left.set()

    await app(post_scope(path), receive, send_back)
    return got


def post_scope(path: str) -> dict[str, Any]:
    """Return the scope of a POST with a JSON body."""
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"content-type", b"application/json"), (b"host", b"test")],
        "client": ("127.0.0.1", 1),
        "server": ("test", 80),
    }
