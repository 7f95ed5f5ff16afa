"""OpenAI's predicted outputs over HTTP: the same answers, verified more than drawn."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from support.server_process import ServerProcess

pytestmark = pytest.mark.e2e
ASKED = {"messages": [{"role": "user", "content": "Tell me a story about a dog and a river."}]}
DRAFTS = {"method": "prediction", "num_speculative_tokens": 15}


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    flags = ("--port", "0", "--speculative-config", json.dumps(DRAFTS))
    with ServerProcess(*flags) as server, server.wait_ready().client() as made:
        yield made


def answer(client: httpx.Client, **fields: Any) -> httpx.Response:
    """Return the answer to the question, greedy."""
    body = {**ASKED, "temperature": 0, "max_tokens": 96, **fields}
    found = client.post("/v1/chat/completions", json=body)
    assert found.status_code == 200, found.text
    return found


def text_of(found: httpx.Response) -> str:
    text: str = found.json()["choices"][0]["message"]["content"]
    return text


def counts(client: httpx.Client) -> tuple[int, int]:
    """Return (drafted, accepted) tokens so far."""
    text = client.get("/metrics").text
    drafted, accepted = (
        re.findall(rf"vllm:spec_decode_num_{name}_tokens_total{{.*}} (\S+)", text)
        for name in ("draft", "accepted")
    )
    return int(sum(map(float, drafted))), int(sum(map(float, accepted)))


def test_a_right_prediction_is_verified(client: httpx.Client) -> None:
    """The answer is the same; nine of ten drafted tokens are accepted; no field is ignored."""
    plain = text_of(answer(client))
    before = counts(client)
    assert before == (0, 0)
    parts = [{"type": "text", "text": plain[:40]}, {"type": "text", "text": plain[40:]}]
    found = answer(client, prediction={"type": "content", "content": parts})
    assert text_of(found) == plain
    assert "x-dovetail-ignored-fields" not in found.headers
    drafted, accepted = counts(client)
    details = found.json()["usage"]["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] == accepted
    assert details["rejected_prediction_tokens"] == drafted - accepted
    assert accepted > 60
    assert accepted >= 0.9 * drafted


def test_a_prediction_with_another_word_changes_no_answer(client: httpx.Client) -> None:
    """What follows a changed, or an added, word is still accepted."""
    plain = text_of(answer(client))
    half = len(plain) // 2
    middle = plain.index(" ", half)
    before = counts(client)
    wrong = f"{plain[:middle]} zebra zebra{plain[middle:]}"
    assert text_of(answer(client, prediction={"type": "content", "content": wrong})) == plain
    assert counts(client)[1] - before[1] > 45


def test_a_server_without_drafts_names_the_field() -> None:
    """It is for speed alone, so it refuses nothing."""
    with ServerProcess("--port", "0") as server, server.wait_ready().client() as client:
        found = answer(client, max_tokens=4, prediction={"type": "content", "content": "A"})
    assert found.headers["x-dovetail-ignored-fields"] == "prediction"
