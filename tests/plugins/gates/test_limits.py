"""Limits of a key, with a real engine: tokens, lengths, waiting prompts, and a queue of tokens."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from dovetail.config.checkpoint.sources.model_path import DEMO_PATH
from dovetail_plugins.gates import _limits
from dovetail_testing.fakes.async_engine import FakeAsyncEngine
from support.keys import bearer, write_keys
from support.serving import app_for, chat
from support.whole_app import whole_client

COMPLETE = "/v1/completions"
SHORT = {"prompt": [5] * 10, "max_tokens": 6, "ignore_eos": True, "temperature": 0}


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Give a clock for windows that a test moves."""
    now = [1_000_000_060.0]
    monkeypatch.setattr(_limits.time, "time", lambda: now[0])
    return now


def with_keys(
    tmp_path: Path, work: Callable[[httpx.AsyncClient], Awaitable[None]], *flags: str, **keys: Any
) -> None:
    """Do work with a client of the demo model, served with these keys."""
    file = write_keys(tmp_path / "keys.jsonl", **keys)

    async def main() -> None:
        async with whole_client(DEMO_PATH, "--api-keys-file", file, *flags) as client:
            await work(client)

    asyncio.run(main())


async def ask(client: httpx.AsyncClient, name: str, **more: Any) -> httpx.Response:
    return await client.post(COMPLETE, json={**SHORT, **more}, headers=bearer(name))


def test_tokens_in_a_minute(tmp_path: Path, clock: list[float]) -> None:
    async def work(client: httpx.AsyncClient) -> None:
        first = await ask(client, "ann")
        assert first.status_code == 200
        assert first.headers["x-ratelimit-limit-tokens"] == "40"
        assert first.headers["x-ratelimit-remaining-tokens"] == "24"
        assert (await ask(client, "ann", stream=True)).status_code == 200
        refused = await ask(client, "ann")
        assert refused.status_code == 429 and refused.headers["retry-after"] == "20"
        assert refused.headers["x-ratelimit-remaining-tokens"] == "8"
        assert refused.headers["x-ratelimit-reset-tokens"] == "20s"
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        assert (await ask(client, "bob")).status_code == 200
        clock[0] += 20
        assert (await ask(client, "ann")).status_code == 200
        too_long = await ask(client, "ann", prompt=[5] * 41)
        assert too_long.status_code == 400
        assert too_long.json()["error"]["code"] == "context_length_exceeded"

    # The clock begins 40 s into a minute.
    with_keys(tmp_path, work, ann={"limits": {"tokens_per_minute": 40}}, bob={})


def test_tokens_in_a_day(tmp_path: Path, clock: list[float]) -> None:
    async def work(client: httpx.AsyncClient) -> None:
        assert (await ask(client, "ann")).status_code == 200
        clock[0] += 3600
        assert (await ask(client, "ann")).status_code == 429
        clock[0] += 86400
        assert (await ask(client, "ann")).status_code == 200

    with_keys(tmp_path, work, ann={"limits": {"tokens_per_day": 20}})


def test_lengths(tmp_path: Path) -> None:
    async def work(client: httpx.AsyncClient) -> None:
        cut = (await ask(client, "ann", max_tokens=50)).json()
        assert cut["usage"]["completion_tokens"] == 4
        assert cut["choices"][0]["finish_reason"] == "length"
        assert (await ask(client, "ann", max_tokens=3)).json()["usage"]["completion_tokens"] == 3
        refused = await ask(client, "ann", prompt=[5] * 13)
        assert refused.status_code == 400 and "ann may use 12 in a prompt" in refused.text
        assert (await ask(client, "bob", max_tokens=9)).json()["usage"]["completion_tokens"] == 9

    with_keys(tmp_path, work, ann={"limits": {"answer_tokens": 4, "prompt_tokens": 12}}, bob={})


def test_limits_of_a_model(tmp_path: Path) -> None:
    async def work(client: httpx.AsyncClient) -> None:
        assert (await ask(client, "ann")).status_code == 200
        refused = await ask(client, "ann")
        assert refused.status_code == 429 and "ann with dovetail*" in refused.text
        assert (await ask(client, "bob")).status_code == 200
        assert (await ask(client, "bob")).status_code == 200

    with_keys(
        tmp_path, work, "--served-model-name", "dovetail-small",
        ann={"model_limits": {"dovetail*": {"tokens_per_minute": 20}}},
        bob={"model_limits": {"other*": {"tokens_per_minute": 20}}},
    )  # fmt: skip


def test_prompts_that_wait(tmp_path: Path) -> None:
    async def work(client: httpx.AsyncClient) -> None:
        body = {"prompt": [[5] * 10] * 3, "max_tokens": 40}
        answers = await asyncio.gather(
            ask(client, "ann", **body), ask(client, "bob", **body), ask(client, "ann")
        )
        assert answers[1].status_code == 200
        refused = [one for one in answers if one.status_code == 429]
        assert refused and all("2 waiting prompts" in one.text for one in refused)
        assert (await ask(client, "ann")).status_code == 200  # nothing is counted any more

    with_keys(tmp_path, work, "--max-num-seqs", "2", ann={"limits": {"queued": 2}}, bob={})


def test_owners_reach_the_policy(tmp_path: Path) -> None:
    """Ann has many requests; Bob's, which comes last, is done among the first."""

    async def work(client: httpx.AsyncClient) -> None:
        done: list[str] = []

        async def one(name: str) -> None:
            answer = await ask(client, name, max_tokens=24)
            assert answer.status_code == 200
            done.append(name)

        crowd = [asyncio.ensure_future(one("ann")) for _ in range(16)]
        await asyncio.sleep(0.1)
        await one("bob")
        place = done.index("bob")
        await asyncio.gather(*crowd)
        assert place < 9

    with_keys(tmp_path, work, "--max-num-seqs", "2", "--scheduling-policy", "fair", ann={}, bob={})


def test_a_key_does_not_choose_its_own_class(tmp_path: Path) -> None:
    """Under `fair` a smaller priority goes first, so a key has to be allowed to ask for one."""

    async def work(client: httpx.AsyncClient) -> None:
        done: list[str] = []

        async def one(name: str, priority: int) -> None:
            answer = await ask(client, name, max_tokens=24, priority=priority)
            assert answer.status_code == 200
            done.append(name)

        crowd = [asyncio.ensure_future(one("cat", 0)) for _ in range(4)]
        await asyncio.sleep(0.1)
        late = [one("ann", -5), one("boss", -5)]
        await asyncio.gather(*late, *crowd)
        assert done.index("boss") < done.index("ann")

    keys: dict[str, Any] = {"ann": {}, "cat": {}, "boss": {"min_priority": None}}
    with_keys(tmp_path, work, "--max-num-seqs", "1", "--scheduling-policy", "fair", **keys)


def test_a_queue_of_tokens() -> None:
    engine = FakeAsyncEngine()
    app, _ = app_for(engine=engine, max_num_queued_tokens=1000)
    engine.num_pending_tokens = 999
    assert chat(app).status_code == 200
    engine.num_pending_tokens = 1000
    refused = chat(app)
    assert refused.status_code == 503 and refused.headers["retry-after"] == "1"
    assert "1000 prompt tokens wait already" in json.dumps(refused.json())
