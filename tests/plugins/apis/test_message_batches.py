"""Batches of messages by the anthropic client: answered, failed, cancelled, listed and deleted."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dovetail.config.sections.frontend import FrontendConfig
from dovetail.server.app import build_app
from dovetail.server.families import build_apis, opened_apis
from dovetail_plugins.apis.batches.runner import PRIORITY
from dovetail_testing.fakes.async_engine import FakeAsyncEngine, Script
from support.anthropic_client import anthropic_of
from support.serving import PARSERS, USER, app_for, send

anthropic = pytest.importorskip("anthropic")
ROOT = "/v1/messages/batches"


@contextlib.asynccontextmanager
async def serving(
    folder: Path, engine: FakeAsyncEngine, key: str = "k", **frontend: Any
) -> AsyncIterator[Any]:
    """Give the anthropic client of a server whose files lie in the folder."""
    flags = FrontendConfig(file_storage=str(folder), **frontend)
    async with opened_apis(build_apis(), flags) as apis:
        app = build_app(engine, flags, apis, parsers=PARSERS)  # type: ignore[arg-type]
        async with anthropic_of(app, key) as client:
            yield client


def asked(name: str, **more: Any) -> dict[str, Any]:
    return {
        "custom_id": name,
        "params": {"model": "fake", "messages": USER, "max_tokens": 9} | more,
    }


async def ended(client: Any, batch: Any) -> Any:
    async with asyncio.timeout(15):
        while batch.processing_status != "ended":
            await asyncio.sleep(0.02)
            batch = await client.messages.batches.retrieve(batch.id)
    return batch


async def results_of(client: Any, batch: Any) -> dict[str, Any]:
    return {
        one.custom_id: one.result async for one in await client.messages.batches.results(batch.id)
    }


@pytest.mark.parametrize("beta", [False, True])
def test_a_batch_is_answered(tmp_path: Path, beta: bool) -> None:
    engine = FakeAsyncEngine(Script(pieces=["Hello"]))

    async def main() -> None:
        async with serving(tmp_path, engine, api_key=("k", "other")) as client:
            batches = client.beta.messages.batches if beta else client.messages.batches
            made = await batches.create(
                requests=[asked("a"), asked("b", max_tokens=0), asked("c", model="gone")]
            )
            assert (made.processing_status, made.results_url) == ("in_progress", None)
            assert made.request_counts.processing == 3
            done = await ended(client, made)
            counts = done.request_counts.model_dump()
            assert counts == {
                "processing": 0, "succeeded": 1, "errored": 2, "canceled": 0, "expired": 0,
            }  # fmt: skip
            assert done.created_at <= done.ended_at <= done.expires_at
            found = await results_of(client, done)
            assert found["a"].message.content[0].text == "Hello"
            assert found["a"].message.stop_reason == "end_turn"
            assert found["b"].error.error.type == "invalid_request_error"
            assert found["b"].error.error.message.startswith("max_tokens: ")
            assert found["c"].error.error.type == "not_found_error"
            assert [one.id async for one in batches.list()] == [made.id]
            stranger = client.with_options(api_key="other")
            assert [one.id async for one in stranger.messages.batches.list()] == []
            with pytest.raises(anthropic.NotFoundError):
                await stranger.messages.batches.retrieve(made.id)
            assert (await batches.delete(made.id)).type == "message_batch_deleted"
            with pytest.raises(anthropic.NotFoundError):
                await batches.retrieve(made.id)

    asyncio.run(main())
    assert [one[2]["priority"] for one in engine.asked] == [PRIORITY]
    assert not [*tmp_path.glob("files/*")]
    assert not [*tmp_path.glob("batches/*.json")]


def test_a_cancelled_batch_says_what_was_not_answered(tmp_path: Path) -> None:
    engine = FakeAsyncEngine(Script(pieces=["a", "b"], step_s=0.2))

    async def main() -> None:
        async with serving(tmp_path, engine) as client:
            batches = client.messages.batches
            made = await batches.create(requests=[asked(f"r{place}") for place in range(30)])
            for work in (batches.delete(made.id), batches.results(made.id)):
                with pytest.raises((anthropic.BadRequestError, anthropic.AnthropicError)):
                    await work
            while not engine.asked:
                await asyncio.sleep(0.01)
            stopped = await batches.cancel(made.id)
            assert stopped.processing_status == "canceling"
            assert stopped.cancel_initiated_at is not None
            done = await ended(client, stopped)
            counts = done.request_counts
            assert counts.succeeded > 0 < counts.canceled
            assert counts.succeeded + counts.canceled == 30
            kinds = [one.type for one in (await results_of(client, done)).values()]
            assert kinds.count("canceled") == counts.canceled
            assert kinds.count("succeeded") == counts.succeeded
            assert (await batches.cancel(made.id)).processing_status == "ended"

    asyncio.run(main())


def test_pages(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, FakeAsyncEngine()) as client:
            batches = client.messages.batches
            for place in range(5):
                await batches.create(requests=[asked(f"r{place}")])
            whole = [one.id async for one in batches.list()]
            assert len(whole) == 5
            assert [one.id async for one in batches.list(limit=2)] == whole
            before = await batches.list(limit=2, before_id=whole[4])
            assert [one.id for one in before.data] == whole[2:4]
            assert before.has_more
            first = await batches.list(limit=2, before_id=whole[1])
            assert ([one.id for one in first.data], first.has_more) == (whole[:1], False)
            with pytest.raises(anthropic.BadRequestError, match="limit"):
                await batches.list(limit=0)
            with pytest.raises(anthropic.NotFoundError, match="after_id"):
                await batches.list(after_id="msgbatch_x")

    asyncio.run(main())


@pytest.mark.parametrize(
    ("requests", "place"),
    [
        ([], "requests"),
        ([asked("a"), asked("a")], "requests[1].custom_id"),
        ([asked("")], "requests[0].custom_id"),
        ([asked("a", stream=True)], "requests[0].params.stream"),
        ([{"custom_id": "a"}], "requests[0].params"),
        ([{"custom_id": "a", "params": []}], "requests[0].params"),
    ],
)
def test_requests_that_cannot_be_made(tmp_path: Path, requests: Any, place: str) -> None:
    async def main() -> None:
        async with serving(tmp_path, FakeAsyncEngine()) as client:
            with pytest.raises(anthropic.BadRequestError) as found:
                await client.messages.batches.create(requests=requests)
            body = found.value.body
            assert body["error"]["message"].startswith(f"{place}: ")
            assert body["request_id"]
            assert [one async for one in client.messages.batches.list()] == []

    asyncio.run(main())


@pytest.mark.parametrize("batch_id", ["msgbatch_x", "batch_" + "0" * 32, "..%2f..%2fx"])
def test_ids_that_name_nothing(tmp_path: Path, batch_id: str) -> None:
    async def main() -> None:
        async with serving(tmp_path, FakeAsyncEngine()) as client:
            for path in ("", "/results"):
                with pytest.raises(anthropic.NotFoundError):
                    await client.get(f"{ROOT}/{batch_id}{path}", cast_to=object)

    asyncio.run(main())


def test_without_a_folder_there_are_none() -> None:
    answer = send(app_for()[0], "POST", ROOT, {"requests": [asked("a")]})
    assert answer.status_code == 404
    assert answer.json()["type"] == "error"
    assert "--file-storage" in answer.json()["error"]["message"]
