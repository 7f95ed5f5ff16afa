"""Errors as programs read them: the page's rows are what the server sends, the clients raise what
their users catch, and the expressions of agents find a prompt that does not fit and nothing else.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dovetail.errors import EngineDead, Overloaded, RequestFault
from dovetail_testing.fakes.async_engine import Script
from support.serving import USER, app_for, client_of, send

PAGE = Path(__file__).parents[3] / "docs" / "explanation" / "errors_for_programs.md"
LINES = PAGE.read_text(encoding="utf-8").splitlines()
Fields = dict[str, Any]
TOO_LONG = "a prompt that does not fit"
BODIES: dict[str, Fields] = {
    "/v1/chat/completions": {"model": "fake", "messages": USER},
    "/v1/completions": {"model": "fake", "prompt": "hi"},
    "/v1/responses": {"model": "fake", "input": "hi"},
    "/v1/messages": {"model": "fake", "messages": USER, "max_tokens": 5},
    "/api/chat": {"model": "fake", "stream": False, "messages": USER},
}
LONG = "much " * 5000


def longer(body: Fields) -> Fields:
    said: Fields = {"messages": [{"role": "user", "content": LONG}], "prompt": LONG, "input": LONG}
    return body | {name: said[name] for name in said if name in body}


def raising(error: Exception) -> Any:
    return app_for(Script(pieces=["a"], raises=error))[0]


WAYS: dict[str, Callable[[Fields], tuple[Any, Any]]] = {
    TOO_LONG: lambda body: (app_for()[0], longer(body)),
    "a model that is not served": lambda body: (app_for()[0], body | {"model": "other"}),
    "no valid key": lambda body: (app_for(api_key=("k",))[0], body),
    "a body that is too large": lambda body: (app_for(max_body_bytes=20)[0], body),
    "a body that is not JSON": lambda body: (app_for()[0], b"{"),
    "a field that cannot be": lambda body: (app_for()[0], body | {"temperature": 101}),
    "a previous response that is gone": lambda body: (
        app_for()[0],
        body | {"previous_response_id": "resp_x"},
    ),
    "a full queue": lambda body: (raising(Overloaded("too many wait.")), body),
    "a fault of the engine": lambda body: (raising(RequestFault("NaN logits")), body),
    "an engine that is gone": lambda body: (raising(EngineDead("the engine is gone")), body),
}
AGENTS: dict[str, str] = {
    "LangChain": r"context_length_exceeded",
    "litellm": r"(?i)this model's maximum context length is|prompt is too long",
    "pi": r"(?i)maximum context length is \d+ tokens|prompt is too long",
    "Cline": r"(?i)\bcontext\s*(?:length|window)\b|\bmaximum\s*context\b|prompt is too long",
    "CrewAI": r"(?i)maximum context length",
    "Claude Code": r"prompt is too long: (\d+) tokens > (\d+) maximum",
}
OTHERS = r"(?i)too\s*many\s*tokens?|tokens?\s*exceed|token limit|rate[\s_\-]*limit"


def cells(line: str) -> list[str]:
    return [cell.strip().strip("`") for cell in line.strip("|").split(" |")]


ROWS = [cells(line) for line in LINES if line.startswith("|") and line.split("`")[1:2] != [] and
        line.split("`")[1].startswith("/")]  # fmt: skip


def answer_to(what: str, path: str) -> Any:
    app, body = WAYS[what](BODIES[path])
    return send(app, "POST", path, body)


def test_the_page_has_rows_for_every_way() -> None:
    assert {row[0] for row in ROWS} == set(WAYS)
    assert {row[1] for row in ROWS} == set(BODIES)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]}-{row[1]}")
def test_an_error_is_what_its_row_says(row: list[str]) -> None:
    what, path, status, kind, code, words = row
    answer = answer_to(what, path)
    error = answer.json()["error"]
    error = {"message": error} if isinstance(error, str) else error
    found = (str(answer.status_code), error.get("type") or "", error.get("code") or "")
    assert found == (status, kind, code), answer.text
    assert words in error["message"]
    assert ("retry-after" in answer.headers) == (what == "a full queue")
    if what != TOO_LONG:
        for pattern in (*AGENTS.values(), OTHERS):
            assert not re.search(pattern, answer.text), pattern


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("path", BODIES)
def test_agents_see_that_a_prompt_does_not_fit(agent: str, path: str) -> None:
    text = answer_to(TOO_LONG, path).text
    is_messages = path == "/v1/messages"
    if agent == "Claude Code" and not is_messages:
        return
    if agent == "LangChain" and path in ("/v1/messages", "/api/chat"):
        return
    assert re.search(AGENTS[agent], text), text
    assert not re.search(OTHERS, text)


OPENAI = {
    TOO_LONG: "BadRequestError",
    "a model that is not served": "NotFoundError",
    "no valid key": "AuthenticationError",
    "a body that is too large": "APIStatusError",
    "a field that cannot be": "BadRequestError",
    "a full queue": "InternalServerError",
    "a fault of the engine": "InternalServerError",
}
ANTHROPIC = OPENAI | {
    "a body that is too large": "RequestTooLargeError",
    "a full queue": "ServiceUnavailableError",
}


@pytest.mark.parametrize("what", OPENAI)
def test_openais_client_raises_what_its_users_catch(what: str) -> None:
    openai = pytest.importorskip("openai")
    app, body = WAYS[what](BODIES["/v1/chat/completions"])

    async def work() -> None:
        async with client_of(app) as http:
            client = openai.AsyncOpenAI(
                api_key="x", base_url="http://test/v1", http_client=http, max_retries=0
            )
            with pytest.raises(getattr(openai, OPENAI[what])) as raised:
                await client.chat.completions.create(**body)
            if what == TOO_LONG:
                assert raised.value.code == "context_length_exceeded"

    asyncio.run(work())


@pytest.mark.parametrize("what", ANTHROPIC)
def test_anthropics_client_raises_what_its_users_catch(what: str) -> None:
    anthropic, httpx2 = pytest.importorskip("anthropic"), pytest.importorskip("httpx2")
    app, body = WAYS[what](BODIES["/v1/messages"])

    async def work() -> None:
        transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx2.AsyncClient(transport=transport) as http:
            client = anthropic.AsyncAnthropic(
                api_key="x", base_url="http://test", http_client=http, max_retries=0
            )
            name = ANTHROPIC[what]
            kind = getattr(anthropic, name, None) or getattr(anthropic._exceptions, name)
            with pytest.raises(kind) as raised:
                await client.messages.create(**BODIES["/v1/messages"], extra_body=body)
            if what == TOO_LONG:
                assert "prompt is too long" in raised.value.body["error"]["message"]

    asyncio.run(work())


def test_clients_wait_and_try_again_when_the_queue_is_full() -> None:
    openai = pytest.importorskip("openai")
    scripts = iter([Script(pieces=["a"], raises=Overloaded("full.", retry_after_s=0.01))])
    app, engine = app_for(lambda prompt, index: next(scripts, Script(pieces=["ok"])))

    async def work() -> str:
        async with client_of(app) as http:
            client = openai.AsyncOpenAI(
                api_key="x", base_url="http://test/v1", http_client=http, max_retries=1
            )
            made = await client.chat.completions.create(**BODIES["/v1/chat/completions"])
            return str(made.choices[0].message.content)

    assert asyncio.run(work()) == "ok"
    assert len(engine.asked) == 2
