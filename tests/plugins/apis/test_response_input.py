"""What a response was asked: its items, told back in pages, and its tokens, counted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from fastapi import FastAPI

from support.serving import app_for, client_of, send

openai = pytest.importorskip("openai")


def with_openai(app: FastAPI, work: Callable[[Any], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        async with client_of(app) as http:
            return await work(
                openai.AsyncOpenAI(
                    api_key="k", base_url="http://test/v1", http_client=http, max_retries=0
                )
            )

    return asyncio.run(main())


def test_items_are_told_back_in_pages() -> None:
    app, _ = app_for()
    turns = [{"role": "user", "content": f"question {i}"} for i in range(5)]

    async def work(client: Any) -> None:
        made = await client.responses.create(model="fake", input=turns)
        pages = client.responses.input_items.list(made.id, limit=2, order="asc")
        texts = [item.content[0].text async for item in pages]
        assert texts == [turn["content"] for turn in turns]
        newest = await client.responses.input_items.list(made.id, limit=1)
        assert newest.data[0].content[0].text == "question 4"
        assert newest.has_more
        told = await client.responses.create(model="fake", input="hi")
        only = await client.responses.input_items.list(told.id)
        assert [item.type for item in only.data] == ["message"]
        with pytest.raises(openai.NotFoundError):
            await client.responses.input_items.list("resp_none")
        with pytest.raises(openai.BadRequestError):
            await client.responses.input_items.list(made.id, limit=1000)
        with pytest.raises(openai.NotFoundError):
            await client.responses.input_items.list(made.id, after="msg_none")

    with_openai(app, work)


def test_items_belong_to_the_key_that_asked() -> None:
    app, _ = app_for(api_key=("one", "two"))
    made = send(app, "POST", "/v1/responses", {"input": "x"}, authorization="Bearer one").json()
    path = f"/v1/responses/{made['id']}/input_items"
    assert send(app, "GET", path, authorization="Bearer one").status_code == 200
    assert send(app, "GET", path, authorization="Bearer two").status_code == 404


def test_tokens_are_counted_as_they_are_asked() -> None:
    app, engine = app_for()
    body = {"input": "hello", "instructions": "be brief", "max_output_tokens": 5}
    count = send(app, "POST", "/v1/responses/input_tokens", body).json()
    assert count["object"] == "response.input_tokens"
    assert not engine.asked
    reply = send(app, "POST", "/v1/responses", body).json()
    assert count["input_tokens"] == reply["usage"]["input_tokens"]
    longer = {"input": "x", "previous_response_id": reply["id"]}
    told = send(app, "POST", "/v1/responses/input_tokens", longer).json()
    assert told["input_tokens"] > count["input_tokens"]
    assert send(app, "POST", "/v1/responses/input_tokens", {}).status_code == 400
    assert send(app, "POST", "/v1/responses/input_tokens", {"input": 5}).status_code == 400
