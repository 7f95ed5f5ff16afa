"""The rules of the front door, through each of the three there are: a server's, a gateway's, and
that of `dovetail route`."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from dovetail.config.sections.frontend import FrontendConfig
from dovetail.server.families import build_apis
from dovetail.server.http import body_limits
from dovetail_plugins.gateway.disaggregated import DisaggregatedRouter
from dovetail_plugins.gateway.route_app import build_route
from support.fake_models import Rig
from support.fake_upstream import FakeServer
from support.serving import app_for

PATH = "/v1/completions"
KEY = {"authorization": "Bearer k"}
SMALL = {"max_body_bytes": 1 << 16}
Client = httpx.AsyncClient


@contextlib.asynccontextmanager
async def a_server(**frontend: Any) -> AsyncIterator[FastAPI]:
    yield app_for(**frontend)[0]


@contextlib.asynccontextmanager
async def a_gateway(**frontend: Any) -> AsyncIterator[FastAPI]:
    rig = Rig("a", "b", frontend=frontend)
    async with rig.client():
        yield rig.app


@contextlib.asynccontextmanager
async def a_route(**frontend: Any) -> AsyncIterator[FastAPI]:
    prefill = FakeServer("http://a", kv_transfer_params={"remote_port": 7})
    halves = DisaggregatedRouter([prefill], [FakeServer("http://b", text="x")])  # type: ignore[list-item]
    yield build_route(halves, FrontendConfig(**frontend), build_apis().values())


DOORS = {"server": a_server, "gateway": a_gateway, "route": a_route}


@pytest.fixture(params=DOORS)
def door(request: pytest.FixtureRequest) -> Any:
    """Return what makes an application of one sort, given its flags."""
    return DOORS[request.param]


def through(door: Any, work: Callable[[Client], Awaitable[None]], **frontend: Any) -> None:
    async def main() -> None:
        async with door(**frontend) as app:
            transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
            async with Client(transport=transport, base_url="http://test") as client:
                await work(client)

    asyncio.run(main())


def in_pieces(size: int, piece: int) -> AsyncIterator[bytes]:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(size // piece):
            yield b"x" * piece

    return pieces()


def test_no_body_is_larger_than_the_limit_said_or_not(door: Any) -> None:
    async def work(client: Client) -> None:
        for content in (b"x" * (1 << 17), in_pieces(1 << 17, 1 << 10)):
            answer = await client.post(PATH, content=content)
            assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")

    through(door, work, **SMALL)


def test_paths_that_take_more_take_more_at_every_door(door: Any) -> None:
    async def work(client: Client) -> None:
        size = 20 << 20
        audio = await client.post("/v1/audio/transcriptions", content=b"x" * size)
        assert audio.status_code != 413
        assert (await client.post(PATH, content=b"x" * size)).status_code == 413

    through(door, work)


def test_a_body_that_trickles_in_is_not_waited_for(
    door: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body_limits, "BODY_LIMIT_S", 0.05)
    monkeypatch.setattr(body_limits, "LINGER_S", 0.05)

    async def trickle() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(20)

    async def work(client: Client) -> None:
        answer = await client.post(PATH, content=trickle())
        assert (answer.status_code, answer.json()["error"]["code"]) == (408, "body_too_slow")

    through(door, work)


def test_a_key_is_asked_for_before_a_body_is_read(door: Any) -> None:
    async def work(client: Client) -> None:
        assert (await client.post(PATH, json={"prompt": "hi"})).status_code == 401
        assert (await client.post("/nothing", headers={"x-api-key": "j"})).status_code == 401
        assert (await client.post(PATH, content=b"x" * (1 << 17))).status_code == 401
        assert (await client.post(PATH, json={"prompt": "hi"}, headers=KEY)).status_code == 200
        assert (await client.get("/health")).status_code == 200

    through(door, work, api_key=("k",), **SMALL)


DEEP = 100_000
ODD = {
    "deep lists": b"[" * DEEP + b"]" * DEEP,
    "deep objects": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    "deep, unclosed": b'{"prompt": ' + b"[" * DEEP,
    "deep within": b'{"prompt": "hi", "x": ' + b"[" * DEEP + b"]" * DEEP + b"}",
    "as deep as can be read": b'{"prompt": "hi", "x": ' + b"[" * 900 + b"]" * 900 + b"}",
    "not UTF-8": b'{"prompt": "\xff\xfe"}',
    "half a character": b'{"prompt": "\\ud800"}',
    "a long number": b'{"prompt": "hi", "seed": ' + b"9" * 10_000 + b"}",
    "an infinite number": b'{"prompt": "hi", "temperature": 1e999}',
    "no number": b'{"prompt": "hi", "temperature": NaN}',
    "a list": b'["prompt"]',
    "null": b"null",
    "nothing": b"",
    "odd ids": b'{"prompt": [1, -1, 99999999999999999999999]}',
    "ids and truth": b'{"prompt": [1, true, 2.5]}',
    "an odd model": b'{"model": ["a"], "prompt": "hi"}',
}


@pytest.mark.sampled
@pytest.mark.parametrize("path", [PATH, "/v1/chat/completions", "/v1/messages"])
@pytest.mark.parametrize("name", ODD)
def test_no_body_is_the_server_s_fault(door: Any, name: str, path: str) -> None:
    async def work(client: Client) -> None:
        head = {"content-type": "application/json"}
        answer = await client.post(path, content=ODD[name], headers=head)
        assert answer.status_code < 500, answer.text
        json.loads(answer.content)

    through(door, work)


def test_every_answer_has_an_id_which_is_the_client_s_own_if_harmless(door: Any) -> None:
    async def work(client: Client) -> None:
        for given in ("mine-1", "a b", "x" * 200, ""):
            head = {"x-request-id": given}
            for answer in (
                await client.post(PATH, json={"prompt": "hi"}, headers=head),
                await client.post(PATH, content=b"x" * (1 << 17), headers=head),
            ):
                (name,) = answer.headers.get_list("x-request-id")
                assert (name == given) == (given == "mine-1") and name

    through(door, work, enable_request_id_headers=True, **SMALL)


def test_a_fault_of_its_own_is_an_answer(door: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*args: Any, **fields: Any) -> Any:
        raise KeyError("secret")

    monkeypatch.setattr("dovetail.server.http.admission.Admission.admit", breaks)
    monkeypatch.setattr("dovetail_plugins.gateway.fleet.Fleet.find", breaks)
    monkeypatch.setattr(
        "dovetail_plugins.gateway.disaggregated.DisaggregatedRouter._answer", breaks
    )

    async def work(client: Client) -> None:
        origin = {"origin": "http://page.test"}
        answer = await client.post(PATH, json={"prompt": "hi"}, headers=origin)
        assert answer.status_code == 500 and "secret" not in answer.text
        assert answer.json()["error"]["type"] == "internal_error"
        assert answer.headers["access-control-allow-origin"] == "*"

    through(door, work)


def test_other_origins_get_the_same_rules(door: Any) -> None:
    async def work(client: Client) -> None:
        asked = {"origin": "http://page.test", "access-control-request-method": "POST"}
        assert (await client.options(PATH, headers=asked)).status_code == 400
        asked["origin"] = "http://mine.test"
        answer = await client.options(PATH, headers=asked)
        assert answer.headers["access-control-allow-origin"] == "http://mine.test"

    through(door, work, allowed_origins=("http://mine.test",))
