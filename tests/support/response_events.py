"""Streams of responses, checked against the types of OpenAI's client, and made into items again."""

from __future__ import annotations

import asyncio
import json
from functools import cache
from typing import Any

from fastapi import FastAPI
from pydantic import TypeAdapter

from support.serving import client_of, send

LIFECYCLE = ("created", "queued", "in_progress", "completed", "incomplete", "failed")
PARTS = ("content_part.added", "content_part.done")


def ask(app: FastAPI, **fields: Any) -> Any:
    """Return the answer to one request for a response."""
    return send(app, "POST", "/v1/responses", {"input": "hi"} | fields)


@cache
def adapter(name: str) -> TypeAdapter[Any]:
    """Return a check of a type of the client's, by name."""
    from openai.types import responses

    return TypeAdapter(getattr(responses, name))


def checked_events(app: FastAPI, **fields: Any) -> list[dict[str, Any]]:
    """Return the events of a stream, each of which the client's types must describe."""
    answer = ask(app, **fields, stream=True)
    assert answer.status_code == 200, answer.text
    found = []
    for part in answer.text.strip().split("\n\n"):
        name, data = part.split("\n", 1)
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        adapter("ResponseStreamEvent").validate_python(event)
        found.append(event)
    check_order(found)
    return found


def check_order(events: list[dict[str, Any]]) -> None:
    """Assert the documented order: numbers without gaps, one item after the other, each opened,
    closed once, and with its parts in between."""
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds[0] == "created"
    assert kinds[1] in ("queued", "in_progress")
    assert kinds[-1] in ("completed", "incomplete", "failed")
    assert not set(kinds[2:-1]) & {"created", "completed", "incomplete", "failed"}
    open_items: dict[int, dict[str, Any]] = {}
    done: dict[int, dict[str, Any]] = {}
    for kind, event in zip(kinds, events, strict=True):
        if kind in LIFECYCLE:
            continue
        index = event["output_index"]
        if kind == "output_item.added":
            assert index == len(open_items) + len(done)
            open_items[index] = event["item"]
            continue
        assert event.get("item_id", open_items[index]["id"]) == open_items[index]["id"]
        if kind == "output_item.done":
            item = open_items.pop(index)
            assert (item["id"], item["type"]) == (event["item"]["id"], event["item"]["type"])
            done[index] = event["item"]
    if kinds[-1] != "failed":
        assert not open_items
        assert [done[i] for i in sorted(done)] == events[-1]["response"]["output"]


def whole(app: FastAPI, **fields: Any) -> dict[str, Any]:
    """Return the whole response, which the client's types must describe."""
    answer = ask(app, **fields)
    assert answer.status_code == 200, answer.text
    reply: dict[str, Any] = answer.json()
    adapter("Response").validate_python(reply)
    return reply


def accumulated(app: FastAPI, **fields: Any) -> Any:
    """Return what the client's own accumulator makes of a stream."""
    import openai

    async def main() -> Any:
        async with client_of(app) as http:
            given: Any = http
            client = openai.AsyncOpenAI(api_key="k", base_url="http://test/v1", http_client=given)
            async with client.responses.stream(model="fake", input="hi", **fields) as stream:
                return await stream.get_final_response()

    return asyncio.run(main())


def without_ids(value: Any) -> Any:
    """Return a value without what differs between two answers of one text."""
    if isinstance(value, dict):
        changing = ("id", "call_id", "created_at", "completed_at")
        return {name: without_ids(one) for name, one in value.items() if name not in changing}
    return [without_ids(one) for one in value] if isinstance(value, list) else value
