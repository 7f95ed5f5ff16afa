"""Flags of the HTTP server that are newer than the reference: each does what it says."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import httpx
import pytest

from dovetail.config.sections.frontend import FrontendConfig
from dovetail.errors import ConfigError, RequestFault
from dovetail.observability.logging import configure
from dovetail.server.launch.frontend_checks import check_frontend
from dovetail.server.launch.lifecycle import ServerLifecycle
from dovetail.server.launch.sockets import bind
from dovetail_testing.fakes.async_engine import (
    CHATML,
    FakeAsyncEngine,
    FakeFacts,
    FakeTokenizer,
    Script,
)
from support.serving import TOOLS, USER, app_for, chat, complete, events_of, joined, send

ANSWER = '<think>why and how</think>Hello world, hello. [call]add {"a": 12345}[/call]'


def test_streams_in_intervals() -> None:
    script = Script(pieces=list(ANSWER))
    plain, _ = app_for(script)
    slow, _ = app_for(script, stream_interval=7)
    usual = events_of(chat(plain, stream=True, tools=TOOLS, logprobs=True))
    fewer = events_of(chat(slow, stream=True, tools=TOOLS, logprobs=True))
    one, other = joined(usual), joined(fewer)
    for call in (*one["message"]["tool_calls"], *other["message"]["tool_calls"]):
        del call["id"]
    assert one == other
    assert len(fewer) < len(usual) / 3
    assert chat(slow, tools=TOOLS).json()["choices"][0]["finish_reason"] == "tool_calls"
    pieces = [e["choices"][0]["text"] for e in events_of(complete(slow, stream=True))[:-1]]
    assert "".join(pieces) == ANSWER
    assert [len(piece) for piece in pieces[:3]] == [1, 7, 7]


def test_what_is_held_is_told_before_an_error() -> None:
    script = Script(pieces=list("abcdef"), raises=RequestFault("NaN"))
    app, _ = app_for(script, stream_interval=100)
    *pieces, error = events_of(complete(app, stream=True))
    assert "".join(piece["choices"][0]["text"] for piece in pieces) == "abcdef"
    assert "NaN" in error["error"]["message"]


def with_template(**frontend: Any) -> tuple[Any, FakeAsyncEngine]:
    engine = FakeAsyncEngine()
    template = CHATML + "{{ mood }}{{ enable_thinking }}"
    engine.tokenizer = FakeTokenizer(facts=FakeFacts(chat_template=template))
    return app_for(engine=engine, **frontend)


def test_default_chat_template_kwargs() -> None:
    defaults = {"mood": "calm", "enable_thinking": False, "unread": 1}
    app, engine = with_template(default_chat_template_kwargs=defaults)

    def tail(**fields: Any) -> str:
        answer = chat(app, **fields)
        assert "x-dovetail-ignored-fields" not in answer.headers
        return "".join(map(chr, engine.asked[-1][2]["prompt"]))[-12:]

    assert tail().endswith("calmFalse")
    assert tail(chat_template_kwargs={"mood": "gay"}).endswith("gayFalse")
    assert tail(reasoning_effort="high").endswith("calmTrue")
    ids = send(app, "POST", "/tokenize", {"messages": USER}).json()["tokens"]
    assert "".join(map(chr, ids)).endswith("calmFalse")
    answer = chat(app, chat_template_kwargs={"unread": 2})
    assert answer.headers["x-dovetail-ignored-fields"] == "chat_template_kwargs.unread"


TIMES = {
    "time_to_first_token_ms": 500.0,
    "generation_time_ms": 1000.0,
    "queue_time_ms": 500.0,
}


def test_times_are_told() -> None:
    """enable_per_request_metrics"""
    app, _ = app_for(Script(pieces=["abcde"]), enable_per_request_metrics=True)
    told = {**TIMES, "mean_itl_ms": 250.0, "tokens_per_second": pytest.approx(5 / 1.5)}
    for ask in (chat, complete):
        assert ask(app).json()["metrics"] == told
        assert ask(app, n=2).json()["metrics"] is None
        options = {"include_usage": True}
        *chunks, last, _ = events_of(ask(app, stream=True, stream_options=options))
        assert last["metrics"] == told
        assert all("metrics" not in chunk for chunk in chunks)
    assert complete(app, prompt=["a", "b"]).json()["metrics"] is None
    assert send(app, "POST", "/v1/responses", {"input": "x"}).json()["metrics"] == told
    one, _ = app_for(Script(pieces=["a"]), enable_per_request_metrics=True)
    assert chat(one).json()["metrics"]["mean_itl_ms"] is None
    plain, _ = app_for()
    assert chat(plain).json()["metrics"] is None


def test_silent_streams_are_kept_alive() -> None:
    """sse_keep_alive_interval"""
    script = Script(pieces=["a", "b"], step_s=0.35)
    app, _ = app_for(script, sse_keep_alive_interval=0.1)
    text = complete(app, stream=True).text
    before, first, rest = text.partition("data: ")
    assert before.count(": keep-alive\n\n") >= 2, "also before the first token"
    assert rest.partition("data: ")[0].count(": keep-alive\n\n") >= 2
    assert first and text.endswith("data: [DONE]\n\n")
    plain, _ = app_for(script)
    assert "keep-alive" not in complete(plain, stream=True).text
    broken, _ = app_for(Script(pieces=["a"], raises=RequestFault("NaN")), sse_keep_alive_interval=5)
    assert "NaN" in complete(broken, stream=True).text
    assert complete(app, stream=True, prompt="x" * 9000).status_code == 400


def test_pieces_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    app, _ = app_for(
        Script(pieces=["one ", "two"]),
        enable_log_requests=True,
        enable_log_outputs=True,
        enable_log_deltas=True,
    )
    with caplog.at_level(logging.INFO, logger="dovetail.server"):
        complete(app, stream=True)
    assert "answer 0 piece 'one '" in caplog.text
    assert "answer 0 piece 'two'" in caplog.text
    assert "answer 0 'one two'" in caplog.text
    check_frontend(FrontendConfig(enable_log_requests=True, enable_log_deltas=True))
    assert "--enable-log-deltas has no effect without --enable-log-outputs" in caplog.text


def test_paths_without_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    """disable_access_log_for_endpoints"""
    configure("info", uvicorn_level="info")
    app, engine = app_for()
    frontend = FrontendConfig(disable_access_log_for_endpoints="/live, /metrics")

    async def main(frontend: FrontendConfig) -> None:
        sock = bind(None, 0)
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        life = ServerLifecycle(app, engine, frontend)  # type: ignore[arg-type]
        ready = asyncio.Event()
        task = asyncio.ensure_future(life.run(sock, ready.set))
        await ready.wait()
        async with httpx.AsyncClient() as client:
            for path in ("/live?x=1", "/metrics", "/version", "/live/x"):
                await client.get(url + path)
        life.stop()
        await task

    asyncio.run(main(frontend))
    err = capsys.readouterr().err
    assert '"GET /live?x=1' not in err and '"GET /metrics' not in err
    assert '"GET /version' in err and '"GET /live/x' in err
    asyncio.run(main(FrontendConfig()))
    assert '"GET /metrics' in capsys.readouterr().err
    with pytest.raises(ConfigError, match="is not a path"):
        check_frontend(FrontendConfig(disable_access_log_for_endpoints="health"))
