"""The edges of the server: keys, limits, errors, unknown fields, health, and clients that leave."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import httpx
import pytest
from fastapi import APIRouter, FastAPI
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient, WebSocketDenialResponse

from dovetail.engine.client.connection import EngineState
from dovetail.errors import RequestError
from dovetail.server.app import open_route
from dovetail.server.families import build_apis
from dovetail.server.generate.body.ignored_fields import HEADER
from dovetail.server.generate.generation import CLAMPED_HEADER
from dovetail.server.http import body_limits
from dovetail_testing.fakes.async_engine import FakeAsyncEngine, Script, fake_spec
from support.serving import USER, app_for, call_asgi, chat, client_of, complete, events_of, send

OPEN_ENDPOINTS = {
    route.endpoint for api in build_apis().values() for route in api.routes if route.is_open
}

KEYS = ("first-key", "second-key")


def routes_of(app: FastAPI) -> list[tuple[str, str]]:
    found = []
    for route in app.router.routes:
        if isinstance(route, WebSocketRoute):
            continue  # test_every_websocket_needs_the_key
        assert isinstance(route, Route), "a route that this test does not see"
        path = route.path.replace("{model_id:path}", "fake").replace("/ui/{name}", "/ui/app.js")
        found += [(method, path) for method in sorted(route.methods or ())]
    return found


def test_every_route_but_the_open_ones_needs_the_key() -> None:
    app, engine = app_for(api_key=KEYS)
    open_paths = {"/health", "/live", "/ready", "/ping", "/", "/ui", "/ui/app.js"}
    assert len(OPEN_ENDPOINTS) == len(open_paths)
    open_paths.add("/v1/health")  # llama.cpp's name of /health
    for method, path in routes_of(app):
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": KEYS[0]}):
            status = send(app, method, path, **headers).status_code
            if path not in open_paths or (method, path) == ("POST", "/"):
                assert status == 401, (method, path)
            else:
                assert status == 200, (method, path)
        for key in KEYS:
            status = send(app, method, path, authorization=f"Bearer {key}").status_code
            assert status != 401, (method, path)
    assert not engine.asked


def test_every_websocket_needs_the_key() -> None:
    app, engine = app_for(api_key=KEYS)
    paths = [one.path for one in app.router.routes if isinstance(one, WebSocketRoute)]
    assert paths
    for path in paths:
        for headers in ({}, {"authorization": "Bearer wrong"}):
            with (
                pytest.raises(WebSocketDenialResponse) as refused,
                TestClient(app).websocket_connect(path, headers=headers),
            ):
                pass
            assert refused.value.status_code == 401
            assert refused.value.json()["error"]["code"] == "invalid_api_key"
        for headers in ({"authorization": f"Bearer {KEYS[1]}"}, {"x-api-key": KEYS[0]}):
            with TestClient(app).websocket_connect(path, headers=headers):
                pass
    assert not engine.asked


@pytest.mark.parametrize(
    "path",
    [
        "//v1/models", "/health/../v1/models", "/%68ealth/x", "/v1/models;/health", "/health/",
        "/nope", "/v1/models?/health", "/health%2f..%2fv1/models", "/metrics", "/openapi.json",
        "/docs",
    ],
)  # fmt: skip
@pytest.mark.parametrize("root_path", ["", "/proxy"])
def test_no_spelling_of_a_path_goes_round_the_key(path: str, root_path: str) -> None:
    app, _ = app_for(api_key=KEYS)

    async def main() -> None:
        transport = httpx.ASGITransport(app=app, root_path=root_path)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            for method in ("GET", "POST", "HEAD", "OPTIONS", "PUT"):
                response = await client.request(method, path, headers={"host": "health"})
                assert response.status_code == 401, (method, response.text)

    asyncio.run(main())


def test_routes_of_plugins_are_closed_until_declared_open() -> None:
    app, _ = app_for(api_key=KEYS)

    async def mine() -> str:
        return "mine"

    async def included() -> str:
        return "included"

    router = APIRouter()
    router.add_api_route("/included", included)
    app.add_api_route("/mine", mine)
    app.include_router(router)
    assert send(app, "GET", "/mine").status_code == 401
    assert send(app, "GET", "/included").status_code == 401
    assert send(app, "GET", "/included", authorization=f"Bearer {KEYS[1]}").status_code == 200
    open_route(app, mine)
    assert send(app, "GET", "/mine").status_code == 200


def test_the_key_appears_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    app, _ = app_for(api_key=KEYS)
    for method, path in routes_of(app):
        response = send(app, method, path, authorization=f"Bearer {KEYS[0]}")
        assert KEYS[0] not in response.text
        assert KEYS[0] not in str(response.headers)
    assert KEYS[0] not in caplog.text


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 0}, "n"), ({"n": 129}, "n"), ({"n": 10**9}, "n"),
        ({"temperature": -1}, "temperature"), ({"temperature": 1e400}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0}, "top_p"), ({"top_k": -2}, "top_k"), ({"top_k": 2**63}, "top_k"),
        ({"min_p": 2}, "min_p"), ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"), ({"max_tokens": 2**63}, "max_tokens"),
        ({"stop": ["x"] * 65}, "stop"), ({"stop": "x" * 1025}, "stop"), ({"stop": ""}, "stop"),
        ({"top_logprobs": 10**9, "logprobs": True}, "top_logprobs"),
        ({"top_logprobs": 21, "logprobs": True}, "logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias[1]"),
        ({"logit_bias": {"99999999": 1}}, "logit_bias"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
        ({"seed": 2**64}, "seed"), ({"priority": 2**31 + 1}, "priority"),
        ({"min_tokens": 9999}, "min_tokens"), ({"min_tokens": 5, "max_tokens": 2}, "min_tokens"),
        ({"cache_salt": "x" * 1025}, "cache_salt"), ({"request_id": "a b"}, "request_id"),
        ({"request_id": "x" * 129}, "request_id"), ({"truncate_prompt_tokens": 0},
         "truncate_prompt_tokens"),
        ({"messages": []}, "messages"), ({"messages": [{}]}, "messages[0].role"),
        ({"messages": USER * 8193}, "messages"), ({"messages": "hi"}, "messages"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}] * 513}, "tools"),
        ({"model": "nope"}, "model"), ({"stop": [""]}, "stop[0]"),
        ({"messages": [{"role": "user", "content": []}, {"role": "user", "content": 5}]},
         "messages[1].content"),
        ({"messages": [{"role": "user", "content": [{"text": 5}]}]}, "messages[0].content[0].text"),
    ],
)  # fmt: skip
def test_out_of_bounds(fields: dict[str, Any], param: str) -> None:
    app, engine = app_for()
    start_s = time.thread_time()
    body = json.dumps({"messages": USER} | fields).encode()
    response = send(app, "POST", "/v1/chat/completions", body)
    assert response.status_code in (400, 404), response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param, error
    assert time.thread_time() - start_s < 1
    assert not engine.asked
    assert app.state.server.admission.num_inside == 0


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"null", b"5", b'"text"', b'{"messages": ' + b"[" * 100_000,
        b"\xff\xfe", b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"a":' * 5_000 + b"1" + b"}" * 5_000, b'{"messages": [1e999]}',
    ],
)  # fmt: skip
def test_bodies_that_are_no_request(body: bytes) -> None:
    app, _ = app_for()
    response = send(app, "POST", "/v1/chat/completions", body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["type"] == "invalid_request_error"


def test_bodies_need_a_content_type() -> None:
    app, _ = app_for()
    response = send(app, "POST", "/v1/chat/completions", b"{}", content_type="text/plain")
    assert response.status_code == 400
    assert "Content-Type" in response.json()["error"]["message"]


def test_large_bodies_are_refused_and_what_still_comes_is_dropped() -> None:
    app, _ = app_for(max_body_bytes=2048)
    assert chat(app, messages=[{"role": "user", "content": "x" * 500}]).status_code == 200
    response = chat(app, messages=[{"role": "user", "content": "x" * 5000}])
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "body_too_large"

    num_sent = 0

    async def chunked() -> int:
        async def parts() -> Any:
            nonlocal num_sent
            for _ in range(100):
                num_sent += 1
                yield b"x" * 1000

        async with client_of(app) as client:
            answer = await client.post("/v1/completions", content=parts())
            return answer.status_code

    assert asyncio.run(chunked()) == 413
    assert num_sent == 100, "an answer that comes while a client sends would be lost"


def test_a_refused_body_is_not_read_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_limits, "LINGER_BYTES", 10_000)
    app, _ = app_for(max_body_bytes=2048)
    num_sent = 0

    async def endless() -> Any:
        nonlocal num_sent
        while True:
            num_sent += 1
            yield b"x" * 1000

    async def main() -> int:
        async with client_of(app) as client:
            return (await client.post("/v1/completions", content=endless())).status_code

    assert asyncio.run(main()) == 413
    assert num_sent < 20


def test_a_body_that_trickles_in_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_limits, "BODY_LIMIT_S", 0.2)
    monkeypatch.setattr(body_limits, "LINGER_S", 0.1)
    app, engine = app_for()
    num_sent = 0

    async def trickle() -> Any:
        nonlocal num_sent
        while num_sent < 1000:
            num_sent += 1
            yield b" "
            await asyncio.sleep(0.02)

    async def main() -> httpx.Response:
        headers = {"content-type": "application/json"}
        async with client_of(app) as client:
            return await client.post("/v1/completions", content=trickle(), headers=headers)

    answer = asyncio.run(main())
    assert answer.status_code == 408
    assert answer.json()["error"]["code"] == "body_too_slow"
    assert num_sent < 100
    assert not engine.asked


def read_at(bytes_per_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_limits, "MOST_BYTES_PER_S", bytes_per_s)


@pytest.mark.parametrize("is_told", [True, False])
def test_what_is_dropped_is_read_slowly_while_others_generate(
    is_told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_at(1000.0, monkeypatch)
    monkeypatch.setattr(body_limits, "LINGER_S", 0.2)
    app, engine = app_for(max_body_bytes=2048)
    monkeypatch.setattr(engine, "load", lambda: (1, 0))
    num_sent = 0

    async def parts() -> Any:
        nonlocal num_sent
        for _ in range(100):
            num_sent += 1
            yield b"x" * 1000

    async def main() -> int:
        headers = {"content-length": "100000"} if is_told else {}
        async with client_of(app) as client:
            return (
                await client.post("/v1/completions", content=parts(), headers=headers)
            ).status_code

    assert asyncio.run(main()) == 413
    assert num_sent < 10


def test_the_rate_is_that_of_all_processes_together() -> None:
    rate = body_limits.BYTES_PER_S
    assert body_limits.bytes_per_s(2, 1) == 2 * body_limits.bytes_per_s(2, 2) == 2 * rate
    assert body_limits.bytes_per_s(1000, 1) == body_limits.MOST_BYTES_PER_S


@pytest.mark.parametrize(("busy", "limit_s"), [(True, 0.4), (False, 400.0)])
def test_large_bodies_are_read_slowly_while_others_generate(
    busy: bool, limit_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Two bodies, of each two thirds after its small beginning.
    read_at(4 * body_limits.SMALL_BYTES / limit_s, monkeypatch)
    app, engine = app_for(Script(pieces=["a"]))
    monkeypatch.setattr(engine, "load", lambda: (int(busy), 0))
    body = json.dumps({"prompt": "a", "user": "x" * 3 * body_limits.SMALL_BYTES}).encode()

    async def parts() -> Any:
        for start in range(0, len(body), 1 << 16):
            yield body[start : start + (1 << 16)]

    async def main() -> float:
        headers = {"content-type": "application/json"}
        async with client_of(app) as client:
            started_s = time.monotonic()
            for answer in await asyncio.gather(
                *(client.post("/v1/completions", content=parts(), headers=headers)
                  for _ in range(2))
            ):  # fmt: skip
                assert answer.status_code == 200
            return time.monotonic() - started_s

    took_s = asyncio.run(main())
    assert took_s > 0.9 * limit_s if busy else took_s < 0.1 * limit_s, took_s


def test_a_slow_answer_is_not_a_slow_body(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_limits, "BODY_LIMIT_S", 0.05)
    app, _ = app_for(Script(pieces=["a", "b"], step_s=0.1))
    assert chat(app).status_code == 200


@pytest.mark.parametrize("keys", [(), KEYS])
def test_head_is_get_without_a_body(keys: tuple[str, ...]) -> None:
    app, _ = app_for(api_key=keys)
    for path in ("/health", "/ready", "/live", "/ping"):
        assert send(app, "HEAD", path).status_code == 200, path
    head, get = (
        send(app, method, "/v1/models", authorization=f"Bearer {KEYS[0]}")
        for method in ("HEAD", "GET")
    )
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == get.headers["content-length"] != "0"
    assert send(app, "HEAD", "/v1/completions").status_code == (401 if keys else 405)
    assert send(app, "HEAD", "/nope").status_code == (401 if keys else 404)


def test_unknown_fields_are_reported() -> None:
    app, _ = app_for()
    tools = [{"type": "function", "function": {"name": "f", "strict": True, "odd": 1}, "x": 2}]
    messages = [{"role": "user", "content": "hi", "strange": 1}]
    response = chat(
        app, nope=1, user="me", tools=tools, messages=messages, chat_template_kwargs={"z": 1},
        tool_choice="none", **{"bad\r\nname": 1, "é" * 99: 2},
    )  # fmt: skip
    assert response.status_code == 200, response.text
    names = response.headers["x-dovetail-ignored-fields"].split(", ")
    assert {"nope", "user", "tools.x", "tools.function.odd"} <= set(names)
    assert {"messages.strange", "chat_template_kwargs.z", "bad??name"} <= set(names)
    counted = send(app, "GET", "/metrics").text
    assert 'dovetail:ignored_request_fields_total{field="nope"}' in counted
    stream = chat(app, nope=1, stream=True)
    assert stream.headers["x-dovetail-ignored-fields"] == "nope"


CONSTRAINTS = {
    "response_format": {"type": "json_object"},
    "text": {"format": {"type": "json_object"}},
    "output_config": {"format": {"type": "json_schema", "schema": {}}},
    "format": "json",
    "grammar": "root ::= [0-9]",
    "nvext": {"guided_json": {}},
}
"""Ways of other servers and dialects to ask for a constraint."""
DECLARED = {
    "/v1/chat/completions": {"response_format"},
    "/v1/completions": {"response_format"},
    "/v1/responses": {"text"},
    "/v1/messages": {"output_config"},
}


@pytest.mark.parametrize("path", DECLARED)
def test_constraints_in_the_words_of_others_are_read(path: str) -> None:
    app, engine = app_for()
    asked: dict[str, Any] = {"messages": USER, "max_tokens": 5}
    asked = {"/v1/completions": {"prompt": "hi"}, "/v1/responses": {"input": "hi"}}.get(path, asked)
    for name in CONSTRAINTS.keys() - DECLARED[path]:
        answer = send(app, "POST", path, json.dumps(asked | {name: CONSTRAINTS[name]}).encode())
        assert answer.status_code == 400, (name, answer.text)
        error = answer.json()["error"]
        assert error.get("param", name).split(".")[0] == name
        assert error["message"].startswith(name)
        assert "no backend for structured output" in error["message"], "the fake engine has none"
    assert not engine.asked


def test_defaults_written_out_ask_for_nothing() -> None:
    app, _ = app_for()
    fields = {"best_of": 1, "use_beam_search": False, "functions": [], "function_call": "none"}
    assert chat(app, **fields).status_code == 200
    assert chat(app, best_of=2).json()["error"]["param"] == "best_of"


def test_unknown_fields_are_errors_when_strict() -> None:
    app, _ = app_for(strict_request_fields=True)
    error = chat(app, nope=1).json()["error"]
    assert (error["param"], error["code"]) == ("nope", "unknown_field")
    assert chat(app, user="me").status_code == 200
    assert chat(app, chat_template_kwargs={"z": 1}).status_code == 400


def test_unknown_fields_are_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    app, _ = app_for()
    for _ in range(3):
        complete(app, odd_field=1)
    assert caplog.text.count("odd_field") == 1


def test_many_unknown_fields_stay_bounded() -> None:
    app, _ = app_for()
    response = chat(app, **{f"field_{i}": 1 for i in range(2000)})
    assert len(response.headers["x-dovetail-ignored-fields"]) < 4096
    for start in range(0, 600, 30):
        chat(app, **{f"more_{i}": 1 for i in range(start, start + 30)})
    assert send(app, "GET", "/metrics").text.count("dovetail:ignored_request_fields_total{") < 400


def test_a_full_queue_refuses_at_once() -> None:
    engine = FakeAsyncEngine(Script(hangs=True), spec=fake_spec(max_rows=2))
    app, _ = app_for(engine=engine, max_queued=3)

    async def main() -> Any:
        async with client_of(app) as client:
            body = {"messages": USER}
            waiting = [
                asyncio.ensure_future(client.post("/v1/chat/completions", json=body))
                for _ in range(5)
            ]
            await asyncio.sleep(0.1)
            start_s = time.monotonic()
            refused = await client.post("/v1/chat/completions", json=body)
            seconds = time.monotonic() - start_s
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            return refused, seconds

    refused, seconds = asyncio.run(main())
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) >= 1
    assert seconds < 0.5
    assert len(engine.asked) == 5


def test_n_counts_in_the_queue() -> None:
    engine = FakeAsyncEngine(spec=fake_spec(max_rows=2))
    app, _ = app_for(engine=engine, max_queued=3)
    ticket = app.state.server.admission.admit(4)
    assert chat(app, n=2).status_code == 503
    assert chat(app).status_code == 200
    ticket.close()
    ticket.close()
    assert app.state.server.admission.num_inside == 0


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("pieces", [(), ("a",), ("a", "b", "c")])
def test_clients_that_leave_free_everything(stream: bool, pieces: tuple[str, ...]) -> None:
    app, engine = app_for(Script(pieces=pieces, hangs=True, step_s=0.01))
    body = {"messages": USER, "stream": stream}
    leaves_after = len(pieces) if stream else 0

    async def main() -> None:
        work = call_asgi(app, "/v1/chat/completions", body, leaves_after=leaves_after)
        async with asyncio.timeout(2):
            await work

    asyncio.run(main())
    assert not engine.running
    assert len(engine.aborted) == 1
    assert app.state.server.admission.num_inside == 0
    assert app.state.open_requests.count == 0


def test_completions_with_many_prompts_are_all_aborted() -> None:
    app, engine = app_for(Script(hangs=True))
    body = {"prompt": ["a", "b", "c"], "stream": True}
    asyncio.run(call_asgi(app, "/v1/completions", body, leaves_after=2))
    assert not engine.running
    assert len(engine.aborted) == 3
    assert app.state.server.admission.num_inside == 0


def test_one_failing_prompt_ends_the_others() -> None:
    def script(prompt: str, index: int) -> Script:
        return Script(raises=RequestError("no")) if prompt == "b" else Script(hangs=True)

    app, engine = app_for(script)
    assert complete(app, prompt=["a", "b", "c"]).status_code == 400
    assert not engine.running


def test_health_of_a_dead_and_a_stalled_engine() -> None:
    app, engine = app_for()
    assert [send(app, "GET", p).status_code for p in ("/health", "/ready", "/live")] == [200] * 3
    engine.heartbeat_s = 60
    assert send(app, "GET", "/health").status_code == 200
    answer = send(app, "GET", "/ready")
    assert answer.status_code == 503
    assert "stands still" in answer.json()["error"]["message"]
    engine.counts = (0, 1)
    assert send(app, "GET", "/health").status_code == 503
    engine.counts, engine.heartbeat_s = (0, 0), 0
    app.state.server.admission.is_draining = True
    assert send(app, "GET", "/ready").status_code == 503
    assert send(app, "GET", "/health").status_code == 200
    assert chat(app).status_code == 503
    app.state.server.admission.is_draining = False
    engine.die("killed by signal 9")
    assert [send(app, "GET", p).status_code for p in ("/health", "/ready", "/live", "/ping")] == [
        503, 503, 200, 503,
    ]  # fmt: skip
    response = chat(app)
    assert response.status_code == 503
    assert "signal 9" in response.json()["error"]["message"]


def test_health_of_several_engines() -> None:
    app, engine = app_for()

    def state(number: int, **changes: Any) -> EngineState:
        usual = {"reason": None, "asleep": (), "running": 1, "waiting": 2, "heartbeat_age_s": 0.1}
        return EngineState(engine=number, **(usual | changes))

    engine.engine_states = [state(4), state(5)]
    whole = send(app, "GET", "/health")
    up = {"state": "up", "running": 1, "waiting": 2}
    assert whole.status_code == 200
    assert whole.json() == {"status": "ok", "engines": [{"engine": n} | up for n in (4, 5)]}
    engine.engine_states = [
        state(0, asleep=("weights",), running=0, waiting=0),
        state(1, reason="killed by signal 9"),
        state(2, heartbeat_age_s=60.04),
        state(3),
    ]
    answer = send(app, "GET", "/health")
    assert (answer.status_code, answer.json()["status"]) == (200, "degraded")
    told = [{k: v for k, v in one.items() if k in ("state", "reason", "silent_s")}
            for one in answer.json()["engines"]]  # fmt: skip
    assert told == [
        {"state": "asleep"},
        {"state": "dead", "reason": "killed by signal 9"},
        {"state": "stalled", "silent_s": 60.0},
        {"state": "up"},
    ]
    again = {"restarts": 2, "last_reason": "signal 9"}
    engine.engine_states = [
        state(0, reason="signal 9", is_restarting=True, **again), state(1, **again)
    ]  # fmt: skip
    answer = send(app, "GET", "/health")
    assert (answer.status_code, answer.json()["status"]) == (200, "degraded")
    first, second = answer.json()["engines"]
    counts = {"restarts": 2, "last_death": "signal 9"}
    assert first == {"engine": 0} | up | counts | {"state": "restarting", "reason": "signal 9"}
    assert second == {"engine": 1} | up | counts
    engine.engine_states = engine.engine_states[1:]
    assert send(app, "GET", "/health").json() == {"status": "ok", "engines": [second]}
    engine.engine_states = [state(0, reason="signal 9", is_restarting=True)]
    for path in ("/health", "/ready"):
        answer = send(app, "GET", path)
        assert answer.status_code == 503 and "being started again" in answer.text
    engine.die("every engine is gone")
    assert send(app, "GET", "/health").status_code == 503


def test_a_death_in_mid_stream_is_an_error_event() -> None:
    app, engine = app_for()

    def script(prompt: str, index: int) -> Script:
        asyncio.get_running_loop().call_later(0.05, engine.die)
        return Script(pieces=("a",) * 50, step_s=0.01)

    engine.script = script
    events = events_of(chat(app, stream=True))
    assert "[DONE]" not in events
    assert events[-1]["error"]["type"] == "engine_dead"


def test_escaped_exceptions_are_json_and_free_everything() -> None:
    app, _ = app_for(Script(pieces=(), raises=KeyError("secret detail")))
    response = chat(app)
    assert response.status_code == 500
    assert "secret detail" not in response.text
    assert response.json()["error"]["type"] == "internal_error"
    app, _ = app_for(Script(pieces=("a",), raises=KeyError("secret detail")))
    assert "secret detail" not in chat(app, stream=True).text
    assert app.state.server.admission.num_inside == 0


def test_request_ids() -> None:
    app, _ = app_for(enable_request_id_headers=True)
    response = send(app, "POST", "/v1/chat/completions", {"messages": USER}, x_request_id="abc-1")
    assert response.headers["x-request-id"] == "abc-1"
    assert response.json()["id"] == "chatcmpl-abc-1"
    evil = send(app, "GET", "/live", x_request_id="a b")
    assert len(evil.headers["x-request-id"]) == 32
    app, _ = app_for()
    assert "x-request-id" not in send(app, "GET", "/live").headers


def test_cross_origin_calls() -> None:
    app, _ = app_for(allowed_origins=("http://good",), api_key=KEYS)
    asked = send(
        app, "OPTIONS", "/v1/models", origin="http://good", access_control_request_method="GET",
        access_control_request_headers="authorization",
    )  # fmt: skip
    assert asked.status_code == 200
    assert asked.headers["access-control-allow-origin"] == "http://good"
    other = send(app, "GET", "/live", origin="http://evil")
    assert "access-control-allow-origin" not in other.headers
    shown = send(app, "GET", "/live", origin="http://good").headers["access-control-expose-headers"]
    assert {"x-request-id", CLAMPED_HEADER, HEADER} <= set(shown.split(", "))


@pytest.mark.parametrize(("path", "status"), [("/nope", 404), ("/v1/models", 401), ("/boom", 500)])
def test_a_page_of_another_origin_is_told_of_errors(path: str, status: int) -> None:
    """A browser keeps an answer without the header from the page, which then sees no cause."""
    app, _ = app_for(allowed_origins=("http://good",), api_key=KEYS)

    async def boom() -> None:
        raise RuntimeError("a fault of ours")

    app.add_api_route("/boom", boom)
    key = {} if status == 401 else {"authorization": f"Bearer {KEYS[0]}"}
    answer = send(app, "GET", path, origin="http://good", **key)
    assert answer.status_code == status
    assert answer.headers["access-control-allow-origin"] == "http://good"
    assert answer.json()["error"]["message"]


def test_models_and_docs() -> None:
    app, _ = app_for()
    names = [card["id"] for card in send(app, "GET", "/v1/models").json()["data"]]
    assert names == ["fake", "alias"]
    assert send(app, "GET", "/v1/models/alias").json()["root"] == "fake"
    assert send(app, "GET", "/v1/models/none").status_code == 404
    assert chat(app, model="alias").json()["model"] == "alias"
    assert send(app, "GET", "/openapi.json").status_code == 200
    app, _ = app_for(disable_fastapi_docs=True)
    for path in ("/docs", "/redoc", "/openapi.json"):
        assert send(app, "GET", path).status_code == 404


def test_wrong_methods_and_paths_are_openai_errors() -> None:
    app, _ = app_for()
    for method, path, status, told in (
        ("GET", "/v1/completions", 405, "/v1/completions takes POST, not GET"),
        ("POST", "/v1/nope", 404, "there is no path /v1/nope"),
        ("POST", "/v1/embeddings", 404, 'needs a model that can "embed"'),
        ("POST", "/v1/rerank", 404, 'needs a model that can "classify" or "embed"'),
        ("POST", "/v1/audio/transcriptions", 404, 'needs a model that can "transcription"'),
        ("GET", "/get_tokenizer_info", 404, "--enable-tokenizer-info-endpoint"),
    ):
        response = send(app, method, path)
        assert response.status_code == status
        assert told in response.json()["error"]["message"]
