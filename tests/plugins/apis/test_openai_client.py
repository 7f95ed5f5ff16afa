"""The real openai client against the application: its types, its stream, its errors."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from fastapi import FastAPI

from dovetail.errors import RequestFault
from dovetail_testing.fakes.async_engine import Script
from support.serving import TOOLS, USER, app_for, client_of

openai = pytest.importorskip("openai")


def with_openai(app: FastAPI, work: Callable[[Any], Awaitable[Any]], key: str = "none") -> Any:
    async def main() -> Any:
        async with client_of(app) as http:
            return await work(
                openai.AsyncOpenAI(
                    api_key=key, base_url="http://test/v1", http_client=http, max_retries=0
                )
            )

    return asyncio.run(main())


def test_streamed_and_whole_text_are_the_same() -> None:
    app, _ = app_for(Script(pieces=["<think>hm</think>Hel", "lo ", "world"]))

    async def work(client: Any) -> None:
        whole = await client.chat.completions.create(model="fake", messages=USER)
        stream = await client.chat.completions.create(model="fake", messages=USER, stream=True)
        pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
        assert "".join(pieces) == whole.choices[0].message.content == "Hello world"
        whole = await client.completions.create(model="fake", prompt="x")
        stream = await client.completions.create(model="fake", prompt="x", stream=True)
        text = "".join([chunk.choices[0].text async for chunk in stream])
        assert text == whole.choices[0].text

    with_openai(app, work)


def test_the_clients_own_accumulator_agrees() -> None:
    app, _ = app_for(Script(pieces=['a [call]add {"a"', ": 1}[/call]"]))

    async def work(client: Any) -> None:
        async with client.chat.completions.stream(
            model="fake", messages=USER, tools=TOOLS
        ) as stream:
            async for _ in stream:
                pass
            final = await stream.get_final_completion()
        message = final.choices[0].message
        assert message.content == "a"
        assert message.tool_calls[0].function.arguments == '{"a": 1}'
        assert final.choices[0].finish_reason == "tool_calls"

    with_openai(app, work)


def test_errors_become_the_clients_exceptions() -> None:
    app, _ = app_for(Script(pieces=("a",), raises=RequestFault("NaN")), api_key=("key",))

    async def work(client: Any) -> None:
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(model="none", messages=USER)
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(model="fake", messages=USER, n=0)
        assert caught.value.param == "n"
        stream = await client.chat.completions.create(model="fake", messages=USER, stream=True)
        with pytest.raises(openai.APIError, match="NaN"):
            [chunk async for chunk in stream]
        assert [card.id async for card in client.models.list()] == ["fake", "alias"]

    with_openai(app, work, key="key")

    async def locked(client: Any) -> None:
        with pytest.raises(openai.AuthenticationError):
            await client.models.list()

    with_openai(app, locked, key="wrong")
