"""Owners through the gateway: whom it names to a model's server, scopes, and limits of requests."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx

from dovetail_plugins.gateway.server import OWNER_HEADER
from support.fake_models import Rig
from support.keys import bearer, write_keys

PATH = "/v1/completions"


def rig_of(tmp_path: Path, **keys: dict[str, Any]) -> Rig:
    """Return a gateway of the models a and b, with these keys."""
    file = write_keys(tmp_path / "keys.jsonl", **keys)
    return Rig("a", "b", frontend={"api_keys_file": file})


async def ask(client: httpx.AsyncClient, name: str, model: str, **more: str) -> httpx.Response:
    headers = {**bearer(name), **more}
    return await client.post(PATH, json={"prompt": "hi", "model": model}, headers=headers)


def test_a_models_server_hears_whose_request_it_is(tmp_path: Path) -> None:
    rig = rig_of(tmp_path, ann={}, bob={})

    async def work() -> None:
        async with rig.client() as client:
            for name in ("ann", "bob"):
                forged = {OWNER_HEADER: "root"}
                assert (await ask(client, name, "a", **forged)).status_code == 200
                (server,) = rig.started
                assert f"{OWNER_HEADER}: {name}" in server.heads[-1]
                assert "root" not in server.heads[-1]
            assert (await ask(client, "eve", "a")).status_code == 401

    asyncio.run(work())


def test_a_model_that_a_key_may_not_use_is_not_loaded(tmp_path: Path) -> None:
    rig = rig_of(tmp_path, ann={"models": ["a"]})

    async def work() -> None:
        async with rig.client() as client:
            refused = await ask(client, "ann", "b")
            assert refused.status_code == 403
            assert refused.json()["error"]["code"] == "model_not_allowed"
            assert rig.started == []
            assert (await ask(client, "ann", "a")).status_code == 200

    asyncio.run(work())


def test_managing_models_needs_an_admin(tmp_path: Path) -> None:
    rig = rig_of(tmp_path, ann={}, root={"admin": True})

    async def work() -> None:
        async with rig.client() as client:
            place, body = "/api/delete", {"model": "none"}
            for name, status in (("ann", 403), ("root", 400)):
                answer = await client.request("DELETE", place, json=body, headers=bearer(name))
                assert answer.status_code == status, answer.text

    asyncio.run(work())


def test_requests_at_a_time(tmp_path: Path) -> None:
    rig = rig_of(tmp_path, ann={"limits": {"requests": 2}}, bob={})

    async def work() -> None:
        async with rig.client() as client:
            names = ["ann"] * 5 + ["bob"] * 3
            answers = await asyncio.gather(*(ask(client, name, "a") for name in names))
            statuses = [answer.status_code for answer in answers]
            assert sorted(statuses[:5]) == [200, 200, 429, 429, 429]
            assert statuses[5:] == [200] * 3
            heads = [one.headers.get_list("x-ratelimit-limit-requests") for one in answers[:5]]
            assert heads == [["2"]] * 5

    asyncio.run(work())
