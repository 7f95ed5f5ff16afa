"""A server that is sent texts of megabytes: every endpoint refuses or answers, and meanwhile
everybody else is served."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import psutil
import pytest

from support.server_process import ServerProcess

ENGLISH = "The quick brown fox jumps over the lazy dog, and 42 others do.\n" * 30_000
SPACES = " " * len(ENGLISH)


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess("--port", "0") as started:
        yield started.wait_ready()


def post(server: ServerProcess, path: str, body: Any) -> httpx.Response:
    return httpx.post(server.url + path, json=body, timeout=120)


TURN = [{"role": "user", "content": ENGLISH}]
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/completions", {"prompt": ENGLISH}, "prompt"),
    ("/v1/completions", {"prompt": SPACES}, "prompt"),
    ("/v1/completions", {"prompt": ["short", ENGLISH]}, "prompt[1]"),
    ("/v1/chat/completions", {"messages": TURN}, "messages[0].content"),
    ("/v1/responses", {"input": ENGLISH}, "input"),
    ("/v1/messages", {"messages": TURN, "max_tokens": 4, "model": None}, "messages[0].content"),
]


@pytest.mark.parametrize(("path", "body", "where"), REFUSED)
def test_a_text_that_cannot_fit_is_refused_by_name(
    server: ServerProcess, path: str, body: Any, where: str
) -> None:
    if "model" in body:
        body["model"] = httpx.get(f"{server.url}/v1/models").json()["data"][0]["id"]
    answer = post(server, path, body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert "this model's maximum context length is" in error["message"]
    assert "param" not in error or (error["param"], error["code"]) == (
        where,
        "context_length_exceeded",
    )


def test_the_end_of_a_long_prompt_is_kept_as_of_a_short_one(server: ServerProcess) -> None:
    fields = {"truncate_prompt_tokens": 20, "max_tokens": 5, "temperature": 0}
    answers = [
        post(server, "/v1/completions", {"prompt": text, **fields}).json()
        for text in (ENGLISH, ENGLISH[-2000:])
    ]
    assert answers[0]["choices"] == answers[1]["choices"]
    assert answers[0]["usage"]["prompt_tokens"] == 20


def test_a_long_text_is_tokenized_whole(server: ServerProcess) -> None:
    line, lines = ENGLISH[:63], ENGLISH.count("\n")
    assert line.endswith("\n")
    ids = post(server, "/tokenize", {"prompt": line}).json()["tokens"]
    body = {"prompt": ENGLISH, "return_token_strs": True, "add_special_tokens": False}
    answer = post(server, "/tokenize", body).json()
    assert answer["tokens"] == ids * lines
    assert answer["count"] == len(ids) * lines
    names = post(server, "/tokenize", body | {"prompt": line}).json()["token_strs"]
    assert answer["token_strs"] == names * lines
    assert set(answer) == {"count", "max_model_len", "tokens", "token_strs"}


def test_others_are_served_meanwhile_and_the_memory_comes_back(server: ServerProcess) -> None:
    process = psutil.Process(server.process.pid)
    httpx.get(f"{server.url}/health")
    before = process.memory_info().rss
    got: list[int] = []

    def send() -> None:
        got.append(post(server, "/tokenize", {"prompt": ENGLISH}).status_code)

    threads = [threading.Thread(target=send) for _ in range(3)]
    for thread in threads:
        thread.start()
    worst_s, num = 0.0, 0
    with httpx.Client() as client:
        while any(thread.is_alive() for thread in threads):
            started_s = time.perf_counter()
            assert client.get(f"{server.url}/health").status_code == 200
            worst_s, num = max(worst_s, time.perf_counter() - started_s), num + 1
            time.sleep(0.01)
    assert got == [200] * 3
    # Tokenizing one of them inline takes more than a second.
    assert num > 10 and worst_s < 0.5, (num, worst_s)
    assert process.memory_info().rss < before + (150 << 20)
