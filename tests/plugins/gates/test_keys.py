"""The gate of keys: who a request is from, what it may do, what it owns, and its limits."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient, WebSocketDenialResponse

from dovetail.config.sections.frontend import FrontendConfig
from dovetail.errors import ConfigError
from dovetail.server.launch.frontend_checks import check_frontend
from dovetail_testing.fakes.async_engine import FakeAsyncEngine, Script
from support.batches import begun, ended, lines, results, serving
from support.keys import bearer, write_keys
from support.serving import USER, app_for, client_of, send

CHAT = "/v1/chat/completions"
BODY = {"messages": USER}
SHAPES = {
    CHAT: BODY,
    "/v1/messages": {"model": "fake", "max_tokens": 4, **BODY},
    "/api/chat": {"model": "fake", **BODY},
    "/v1/responses": {"input": "hi"},
}
"""Endpoints of dialects with their own forms of errors, and a body for each."""


def keys_of(tmp_path: Path, **keys: dict[str, Any]) -> str:
    return write_keys(tmp_path / "keys.jsonl", **keys)


def asked(app: Any, name: str, path: str = CHAT, **more: Any) -> httpx.Response:
    return send(app, "POST", path, {**BODY, **more}, **bearer(name))


def test_a_request_is_its_keys(tmp_path: Path) -> None:
    keys = keys_of(tmp_path, ann={"weight": 3.0}, bob={})
    app, engine = app_for(api_keys_file=keys, api_key=("plain",))
    assert asked(app, "ann").status_code == asked(app, "bob").status_code == 200
    assert send(app, "POST", CHAT, BODY, **{"x-api-key": "sk-bob"}).status_code == 200
    assert send(app, "POST", CHAT, BODY, **{"x-api-key": "plain"}).status_code == 200
    assert engine.owners[:3] == [("ann", 3.0), ("bob", 1.0), ("bob", 1.0)]
    assert engine.owners[3][0].startswith("key-")
    for headers in ({}, bearer("eve"), {"authorization": "Bearer ann"}):
        answer = send(app, "POST", CHAT, BODY, **headers)
        assert answer.status_code == 401 and answer.json()["error"]["code"] == "invalid_api_key"
    assert send(app, "GET", "/health").status_code == 200


def test_a_trusted_proxy_names_the_owner(tmp_path: Path) -> None:
    app, engine = app_for(
        owner_header="X-Owner", api_keys_file=keys_of(tmp_path, ann={"weight": 2.0})
    )
    for name, weight in (("ann", 2.0), ("somebody@example.com", 1.0)):
        assert send(app, "POST", CHAT, BODY, **{"x-owner": name}).status_code == 200
        assert engine.owners[-1] == (name, weight)
    assert send(app, "POST", CHAT, BODY, **{"x-owner": "a b"}).status_code == 401
    assert send(app, "POST", CHAT, BODY).status_code == 401
    unnamed, engine = app_for(owner_header="X-Owner")
    assert send(unnamed, "POST", CHAT, BODY).status_code == 200
    assert engine.owners[-1] == ("", 1.0)
    untrusting, engine = app_for()
    assert send(untrusting, "POST", CHAT, BODY, **{"x-owner": "ann"}).status_code == 200
    assert engine.owners[-1] == ("", 1.0)


@pytest.mark.parametrize(
    ("path", "more"),
    [
        (CHAT, {"user": "u1"}),
        (CHAT, {"safety_identifier": "u1", "user": "u2"}),
        ("/v1/completions", {"prompt": "hi", "user": "u1"}),
        ("/v1/messages", {"model": "fake", "max_tokens": 4, "metadata": {"user_id": "u1"}}),
        ("/v1/responses", {"input": "hi", "safety_identifier": "u1"}),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_users_of_a_key(tmp_path: Path, path: str, more: dict[str, Any], stream: bool) -> None:
    body = {**({} if "prompt" in more or "input" in more else BODY), **more, "stream": stream}
    for is_on, owner in ((True, "ann/u1"), (False, "ann")):
        app, engine = app_for(
            api_keys_file=keys_of(tmp_path, ann={"weight": 2.0}), owner_from_user=is_on
        )
        assert send(app, "POST", path, body, **bearer("ann")).status_code == 200
        assert engine.owners == [(owner, 2.0)]


def test_scopes(tmp_path: Path) -> None:
    keys = keys_of(
        tmp_path,
        chatter={"families": ["chat", "mod*"]},
        other={"models": ["qwen*"]},
        fake={"models": ["fa*"]},
        admin={"admin": True},
    )
    app, engine = app_for(api_keys_file=keys, enable_dev_endpoints=True)
    assert asked(app, "chatter").status_code == 200
    assert send(app, "GET", "/v1/models", **bearer("chatter")).status_code == 200
    refused = asked(app, "chatter", "/v1/completions", prompt="hi")
    assert refused.status_code == 403
    fault = refused.json()["error"]
    assert (fault["type"], fault["code"]) == ("permission_error", "family_not_allowed")
    assert 'the endpoints of "completions"' in fault["message"]
    refused = asked(app, "other")
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "model_not_allowed")
    assert asked(app, "fake").status_code == 200
    assert send(app, "POST", "/reset_prefix_cache", **bearer("fake")).status_code == 403
    assert send(app, "POST", "/reset_prefix_cache", **bearer("admin")).status_code == 200
    assert not engine.running


def test_what_a_key_stores_is_its_own_under_a_new_key_too(tmp_path: Path) -> None:
    file = keys_of(tmp_path, ann={}, bob={})
    app, _ = app_for(api_keys_file=file)

    async def main() -> None:
        async with client_of(app) as client:
            made = await client.post("/v1/responses", json={"input": "hi"}, headers=bearer("ann"))
            place = f"/v1/responses/{made.json()['id']}"
            assert (await client.get(place, headers=bearer("ann"))).status_code == 200
            assert (await client.get(place, headers=bearer("bob"))).status_code == 404
            talk = await client.post("/v1/conversations", json={}, headers=bearer("ann"))
            place = f"/v1/conversations/{talk.json()['id']}"
            assert (await client.get(place, headers=bearer("ann"))).status_code == 200
            assert (await client.get(place, headers=bearer("bob"))).status_code == 404

    asyncio.run(main())


def test_lines_of_a_batch_are_its_owners(tmp_path: Path) -> None:
    engine = FakeAsyncEngine(Script(pieces=["ok"]))
    file = keys_of(tmp_path, ann={"weight": 2.0}, bob={})

    async def main() -> None:
        async with serving(tmp_path / "s", engine, key="sk-ann", api_keys_file=file) as client:
            asks = lines({"messages": USER}, {"messages": USER}, url=CHAT)
            batch = await begun(client, asks, CHAT)
            done = await ended(client, batch)
            assert done.request_counts.completed == 2
            assert len(await results(client, done.output_file_id)) == 2
            with pytest.raises(Exception, match="404"):
                await client.with_options(api_key="sk-bob").batches.retrieve(batch.id)

    asyncio.run(main())
    assert engine.owners == [("ann", 2.0)] * 2


@pytest.mark.parametrize("path", SHAPES)
def test_requests_at_a_time(tmp_path: Path, path: str) -> None:
    keys = keys_of(tmp_path, ann={"limits": {"requests": 1}}, bob={})
    app, _ = app_for(Script(pieces=["a"], step_s=0.2), api_keys_file=keys)

    async def main() -> tuple[list[httpx.Response], httpx.Response]:
        async with client_of(app) as client:
            ask = [
                client.post(path, json=SHAPES[path], headers=bearer(name))
                for name in ("ann", "ann", "bob")
            ]
            answers = await asyncio.gather(*ask)
            return answers, await client.post(path, json=SHAPES[path], headers=bearer("ann"))

    answers, later = asyncio.run(main())
    assert sorted(one.status_code for one in answers[:2]) == [200, 429]
    assert answers[2].status_code == later.status_code == 200
    (refused,) = [one for one in answers if one.status_code == 429]
    assert refused.headers["retry-after"] == "1"
    assert refused.headers["x-ratelimit-limit-requests"] == "1"
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"
    assert "ann may use 1 requests at a time" in refused.text
    shape = refused.json()
    if path == "/v1/messages":
        assert shape["type"] == "error" and shape["error"]["type"] == "rate_limit_error"
    elif path == "/api/chat":
        assert isinstance(shape["error"], str)
    else:
        assert shape["error"]["code"] == "rate_limit_exceeded"
        assert shape["error"]["type"] == "rate_limit_error"


def test_a_websocket_comes_from_an_allowed_page() -> None:
    """CORS does not hold for WebSockets, so the gate asks where a page is from."""
    app, _ = app_for(allowed_origins=("https://own.example",), api_key=("plain",))
    found = []
    for origin in ("https://own.example", "http://testserver", "https://evil.example", "null"):
        headers = {"authorization": "Bearer plain", "origin": origin}
        with (
            pytest.raises(WebSocketDenialResponse) as refused,
            TestClient(app).websocket_connect("/v1/realtime?intent=transcription", headers=headers),
        ):
            pass
        found.append((refused.value.status_code, refused.value.json()["error"]["code"]))
    inside, foreign = (404, "task_not_supported"), (403, "origin_not_allowed")
    assert found == [inside, inside, foreign, foreign]


def test_a_bad_file_ends_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="dovetail keys add"):
        check_frontend(FrontendConfig(api_keys_file=str(tmp_path / "none")))
    with pytest.raises(ConfigError, match="--gate"):
        check_frontend(FrontendConfig(gate="no_such_gate"))


CURFEW = """
from dovetail.interfaces.gate import Gate
from dovetail.interfaces.plugin import Info
from dovetail.observability.caller import enter

class Curfew(Gate):
    info = Info(summary="everybody is the night watch")

    def __init__(self, options, facts):
        pass

    async def enter(self, app, scope, receive, send):
        if scope["type"] == "http":
            enter("watch", 5.0, None)
        await app(scope, receive, send)
"""


def test_a_gate_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "curfew.py").write_text(CURFEW)
    app, engine = app_for(gate=f"{tmp_path}/curfew.py:Curfew", api_key=("unused",))
    assert send(app, "POST", CHAT, BODY).status_code == 200
    assert engine.owners == [("watch", 5.0)]
