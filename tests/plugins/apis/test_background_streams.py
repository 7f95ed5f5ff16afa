"""Streams of responses in the background: they go on without a reader, and begin again anywhere; by
OpenAI's client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from dovetail.errors import RequestFault
from dovetail_plugins.apis.responses.state import ResponsesState
from dovetail_testing.fakes.async_engine import Script
from support.inside import bytes_in, owners_in
from support.serving import app_for, client_of, send

openai = pytest.importorskip("openai")
ANSWER = '<think>why</think>Hello [call]add {"a": 1}[/call]'
ADD = {"type": "function", "name": "add", "parameters": {"type": "object"}}
ASKED = {"model": "fake", "input": "hi", "tools": [ADD], "background": True, "stream": True}


def with_openai(app: Any, work: Callable[[Any], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        async with client_of(app) as http:
            return await work(
                openai.AsyncOpenAI(
                    api_key="k", base_url="http://test/v1", http_client=http, max_retries=0
                )
            )

    return asyncio.run(main())


def store_of(app: Any) -> Any:
    return app.state.api_states[ResponsesState].stored


async def names_of(app: Any) -> list[str]:
    """Return the ids of what is stored, once something is."""
    async with asyncio.timeout(5):
        while not len(store_of(app)):
            await asyncio.sleep(0.01)
    return list(owners_in(store_of(app)))


def events_of(answer: Any) -> list[dict[str, Any]]:
    lines = [line for line in answer.text.split("\n") if line.startswith("data: ")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


async def events(stream: Any) -> list[Any]:
    return [event async for event in stream]


def test_a_stream_begins_again_after_any_event() -> None:
    app, engine = app_for(Script(pieces=[*ANSWER]))

    async def work(client: Any) -> None:
        first = await events(await client.responses.create(**ASKED))
        assert [event.sequence_number for event in first] == list(range(len(first)))
        kinds = [event.type for event in first]
        assert kinds[:3] == ["response.created", "response.queued", "response.in_progress"]
        assert [event.response.status for event in first[:3]] == ["queued", "queued", "in_progress"]
        assert kinds[-1] == "response.completed"
        made = first[-1].response
        kept = await client.responses.retrieve(made.id)
        assert (kept.output_text, kept.output) == ("Hello", made.output)
        for last in (-1, 0, 2, len(first) // 2, len(first) - 2, len(first) - 1, len(first) + 9):
            more = {} if last < 0 else {"starting_after": last}
            again = await client.responses.retrieve(made.id, stream=True, **more)
            assert await events(again) == first[last + 1 :]
        assert len(engine.asked) == 1

    with_openai(app, work)


def test_a_response_goes_on_when_its_reader_leaves() -> None:
    app, engine = app_for(Script(pieces=[*"0123456789"], step_s=0.02))

    async def work(client: Any) -> None:
        left = asyncio.ensure_future(client.responses.create(**ASKED))
        (name,) = await names_of(app)
        left.cancel()
        await asyncio.gather(left, return_exceptions=True)
        assert engine.running
        whole = await events(await client.responses.retrieve(name, stream=True))
        assert [event.sequence_number for event in whole] == list(range(len(whole)))
        assert whole[-1].response.output_text == "0123456789"
        assert engine.running == set()
        assert app.state.server.admission.num_inside == 0

    with_openai(app, work)


@pytest.mark.parametrize("how", ["cancel", "delete"])
def test_a_response_that_is_ended_ends_its_streams(how: str) -> None:
    app, _ = app_for(Script(pieces=["a"], hangs=True))

    async def work(client: Any) -> None:
        maker = asyncio.ensure_future(client.responses.create(**ASKED))
        (name,) = await names_of(app)
        reader = asyncio.ensure_future(client.responses.retrieve(name, stream=True))
        await asyncio.sleep(0.1)
        assert not maker.done()
        assert not reader.done()
        await getattr(client.responses, how)(name)
        async with asyncio.timeout(5):
            read = [await events(stream) for stream in await asyncio.gather(maker, reader)]
        assert read[0] == read[1]
        assert read[0][0].type == "response.created"
        assert read[0][-1].type == "response.output_text.delta"
        assert app.state.server.admission.num_inside == 0

    with_openai(app, work)


def test_a_failure_is_the_last_event() -> None:
    app, _ = app_for(Script(pieces=("a",), raises=RequestFault("NaN")))
    asked = {"input": "hi", "background": True, "stream": True}
    told = events_of(send(app, "POST", "/v1/responses", asked))
    assert told[-1]["type"] == "response.failed"
    name = told[-1]["response"]["id"]
    again = events_of(send(app, "GET", f"/v1/responses/{name}?stream=true&starting_after=1"))
    assert again == told[2:]


@pytest.mark.parametrize("after", ["x", "-1", "1.5", "9" * 40])
def test_what_is_no_number_of_an_event_is_refused(after: str) -> None:
    app, _ = app_for()
    asked = {"input": "hi", "background": True, "stream": True}
    name = events_of(send(app, "POST", "/v1/responses", asked))[0]["response"]["id"]
    answer = send(app, "GET", f"/v1/responses/{name}?stream=true&starting_after={after}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "starting_after")


@pytest.mark.parametrize("asked", [{}, {"stream": True}, {"background": True}])
def test_other_responses_are_not_streamed_again(asked: dict[str, Any]) -> None:
    app, _ = app_for()
    answer = send(app, "POST", "/v1/responses", {"input": "hi", **asked})
    made = events_of(answer)[0]["response"] if asked.get("stream") else answer.json()
    again = send(app, "GET", f"/v1/responses/{made['id']}?stream=true")
    assert (again.status_code, again.json()["error"]["param"]) == (400, "stream")


def test_events_count_as_what_a_client_keeps() -> None:
    app, _ = app_for(Script(pieces=["x" * 50] * 50))
    stored = store_of(app)
    send(app, "POST", "/v1/responses", {"input": "hi"})
    plain = bytes_in(stored)
    send(app, "POST", "/v1/responses", {"input": "hi", "background": True, "stream": True})
    assert bytes_in(stored) > 2 * plain + 50 * 100
