"""Logprobs of responses: an entry for each token of the text, in whole answers and in deltas."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dovetail_testing.fakes.async_engine import Script
from support.serving import app_for, send

ANSWER = '<think>\nwhy\n</think>\n\nHello [call]add {"a": 1}[/call]\n bye'
TOOLS = [{"type": "function", "name": "add", "parameters": {"type": "object"}}]
WISHES: tuple[dict[str, Any], ...] = (
    {"include": ["message.output_text.logprobs"]},
    {"top_logprobs": 2},
    {"include": ["message.output_text.logprobs"], "logprob_token_ids": [65, 66, 67]},
)


def pieces_of(size: int) -> list[str]:
    return [ANSWER[i : i + size] for i in range(0, len(ANSWER), size)]


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
@pytest.mark.parametrize("wish", WISHES)
def test_each_token_of_the_text_has_its_entry(wish: dict[str, Any], size: int) -> None:
    app, _ = app_for(Script(pieces=pieces_of(size)))
    body = {"input": "hi", "tools": TOOLS, **wish}
    answer = send(app, "POST", "/v1/responses", body)
    assert answer.status_code == 200, answer.text
    assert "x-dovetail-ignored-fields" not in answer.headers
    parts = [
        part
        for item in answer.json()["output"]
        for part in item.get("content", ())
        if part["type"] == "output_text"
    ]
    assert [part["text"] for part in parts] == ["Hello", " bye"]
    for part in parts:
        assert "".join(entry["token"] for entry in part["logprobs"]) == part["text"]
        for entry in part["logprobs"]:
            assert set(entry) == {"token", "logprob", "bytes", "top_logprobs"}
            assert entry["bytes"] == list(entry["token"].encode())
            num_top = 4 if "logprob_token_ids" in wish else wish.get("top_logprobs", 0)
            assert len(entry["top_logprobs"]) <= num_top
    text = send(app, "POST", "/v1/responses", body | {"stream": True}).text
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]
    deltas = [e for e in events if e["type"] == "response.output_text.delta"]
    told = [entry for part in parts for entry in part["logprobs"]]
    assert [entry for delta in deltas for entry in delta["logprobs"]] == told
    dones = [e for e in events if e["type"] == "response.output_text.done"]
    assert [entry for done in dones for entry in done["logprobs"]] == told


def test_without_a_wish_there_are_none() -> None:
    app, engine = app_for()
    reply = send(app, "POST", "/v1/responses", {"input": "hi"}).json()
    assert reply["output"][0]["content"][0]["logprobs"] == []
    assert reply["top_logprobs"] == 0
    assert engine.asked[0][1].logprobs is None
