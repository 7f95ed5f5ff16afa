"""Conversations: made by the openai client, gone on with by responses, kept within bounds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from fastapi import FastAPI

from dovetail.errors import NotFound, RequestFault
from dovetail_plugins.apis.responses.conversations import ConversationStore
from dovetail_plugins.apis.responses.owned import OVERHEAD_BYTES
from dovetail_testing.fakes.async_engine import Script
from support.serving import app_for, client_of, send

openai = pytest.importorskip("openai")
FIRST = {"type": "message", "role": "user", "content": "My name is Ada."}


def with_openai(app: FastAPI, work: Callable[[Any], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        async with client_of(app) as http:
            return await work(
                openai.AsyncOpenAI(
                    api_key="k", base_url="http://test/v1", http_client=http, max_retries=0
                )
            )

    return asyncio.run(main())


def test_a_conversation_goes_on() -> None:
    app, engine = app_for(Script(pieces=["<think>hm</think>", "Hello Ada"]))

    async def work(client: Any) -> None:
        made = await client.conversations.create(items=[FIRST], metadata={"topic": "names"})
        assert made.metadata == {"topic": "names"}
        for place, question in enumerate(("Who am I?", "And again?")):
            fields = {"stream": True} if place else {}
            answer = await client.responses.create(
                model="fake", input=question, conversation=made.id, store=False, **fields
            )
            if place:
                async for event in answer:
                    last = event
                assert last.response.conversation.id == made.id
            else:
                assert answer.conversation.id == made.id
        prompt = "".join(map(chr, engine.asked[-1][2]["prompt"]))
        order = ["My name is Ada.", "Who am I?", "Hello Ada", "And again?"]
        assert [prompt.index(text) for text in order] == sorted(map(prompt.index, order))
        items = [item async for item in client.conversations.items.list(made.id, order="asc")]
        kinds = ["message", "message", "reasoning", "message", "message", "reasoning", "message"]
        assert [item.type for item in items] == kinds
        assert items[1].content[0].text == "Who am I?"
        assert items[3].content[0].text == "Hello Ada"

    with_openai(app, work)


def test_what_else_can_be_done_with_one() -> None:
    app, _ = app_for()

    async def work(client: Any) -> None:
        made = await client.conversations.create()
        changed = await client.conversations.update(made.id, metadata={"a": "b"})
        assert (await client.conversations.retrieve(made.id)).metadata == changed.metadata
        added = await client.conversations.items.create(made.id, items=[FIRST, FIRST])
        assert len({item.id for item in added.data}) == 2
        item_id = added.data[0].id
        got = await client.conversations.items.retrieve(item_id, conversation_id=made.id)
        assert got.content[0].text == "My name is Ada."
        await client.conversations.items.delete(item_id, conversation_id=made.id)
        left = await client.conversations.items.list(made.id)
        assert [item.id for item in left.data] == [added.data[1].id]
        with pytest.raises(openai.NotFoundError):
            await client.conversations.items.retrieve(item_id, conversation_id=made.id)
        with pytest.raises(openai.BadRequestError):
            await client.conversations.items.create(made.id, items=[{"type": "odd"}])
        assert (await client.conversations.delete(made.id)).deleted
        with pytest.raises(openai.NotFoundError):
            await client.responses.create(model="fake", input="hi", conversation=made.id)

    with_openai(app, work)


def test_a_response_that_fails_adds_nothing() -> None:
    app, _ = app_for(Script(pieces=["a"], raises=RequestFault("NaN")))
    made = send(app, "POST", "/v1/conversations", {"items": [FIRST]}).json()
    asked = {"input": "hi", "conversation": {"id": made["id"]}}
    assert send(app, "POST", "/v1/responses", asked).status_code >= 500
    items = send(app, "GET", f"/v1/conversations/{made['id']}/items").json()["data"]
    assert len(items) == 1
    both = asked | {"previous_response_id": "resp_1"}
    assert send(app, "POST", "/v1/responses", both).status_code == 400


def test_it_belongs_to_the_key_that_made_it() -> None:
    app, _ = app_for(api_key=("one", "two"))
    made = send(app, "POST", "/v1/conversations", {}, authorization="Bearer one").json()
    path = f"/v1/conversations/{made['id']}"
    assert send(app, "GET", path, authorization="Bearer one").status_code == 200
    for method in ("GET", "DELETE"):
        assert send(app, method, path, authorization="Bearer two").status_code == 404
    many, _ = app_for(api_server_count=2)
    answer = send(many, "POST", "/v1/conversations", {})
    assert "--api-server-count" in answer.json()["error"]["message"]


def test_the_store_is_bounded() -> None:
    store = ConversationStore(max_bytes=100 + 2 * OVERHEAD_BYTES)
    first, second = store.begin("me", {}), store.begin("me", {})
    store.add(first, [{"id": "a", "text": "x" * 20}])
    store.get(first.id, "me")
    store.add(second, [{"id": "b", "text": "x" * 20}])
    store.get(first.id, "me")
    store.add(second, [{"id": "c", "text": "x" * 20}])
    with pytest.raises(NotFound):
        store.get(second.id, "me")
    assert store.get(first.id, "me") is first
    store.drop(first.id)
    store.add(first, [{"id": "d"}])
    with pytest.raises(NotFound):
        store.get(first.id, "me")
