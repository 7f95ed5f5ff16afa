"""Requests as agents, chat programs and frameworks send them, answered whole and streamed.

Shapes recorded from the programs, with words of our own. What is answered is read with the types of
the libraries that the programs use. The demo model answers; a tiny one sees pictures.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

from support.client_requests import FOLDER, ClientRequest, client_requests, request_named
from support.server_process import ServerProcess

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
pytest.importorskip("openai")
pytest.importorskip("anthropic")
pytest.importorskip("ollama")

from support.client_answers import Answer, read_stream, read_whole  # noqa: E402

IGNORED = "x-dovetail-ignored-fields"
BLOCK = 16
CONTEXT = json.dumps({"max_position_embeddings": 16384})
SHORT = json.dumps({"max_new_tokens": 48, "temperature": 0})
FLAGS = (
    *("--port", "0", "--served-model-name", "demo", "--max-model-len", "16384"),
    *("--hf-overrides", CONTEXT, "--override-generation-config", SHORT),
    *("--block-size", str(BLOCK), "--enable-prompt-tokens-details"),
)
PARSER = ("--tool-call-parser", "hermes")
"""Of the model that sees: nothing in it tells how it would write a call."""
NEVER_THINKS = frozenset({"reasoning_effort", "reasoning.effort", "thinking"})
"""Fields without a meaning for that model."""


class Clients:
    """HTTP clients of three servers, each started when it is first needed."""

    def __init__(self, stack: ExitStack, flags: Mapping[str, tuple[str, ...]]) -> None:
        self._stack = stack
        self._flags = flags
        self._started: dict[str, httpx.Client] = {}
        self.ignored: dict[str, set[str]] = {}
        """What the answers so far named, by program."""

    def send(self, request: ClientRequest, body: dict[str, Any]) -> httpx.Response:
        """Send a request to the server for its kind."""
        kind = "embed" if "embed" in request.path else "see" if request.has_picture else "answer"
        if "/v1/responses" in request.path or "/v1/messages" in request.path:
            body = _with(self.signed, body)
        content = json.dumps(body) if request.body is not None else None
        return self._client(kind).request(
            request.method, request.path, headers=request.headers, content=content
        )

    @cached_property
    def signed(self) -> Mapping[str, Any]:
        """Return what a server signs or stores, and wants back as it was."""
        return _signed_by(self._client("answer"))

    def _client(self, kind: str) -> httpx.Client:
        if kind not in self._started:
            server = self._stack.enter_context(ServerProcess(*self._flags[kind])).wait_ready()
            self._started[kind] = self._stack.enter_context(server.client(timeout=60.0))
        return self._started[kind]


THOUGHTFUL = {"model": "demo", "reasoning": {"effort": "high"}, "input": "What colour is the sky?"}
OWNER = {"authorization": "Bearer key"}
"""Of every client, whose items the server finds again."""
SIGNED = {
    "reasoning": ("encrypted_content",),
    "item_reference": ("id",),
    "thinking": ("signature", "thinking"),
}
"""Types of items and blocks, and what of them the server must have written."""


def _signed_by(client: httpx.Client) -> dict[str, Any]:
    """Return a thought as a server seals it for responses, its id, and one signed for messages."""
    sealed = {**THOUGHTFUL, "include": ["reasoning.encrypted_content"]}
    items = client.post("/v1/responses", json=sealed, headers=OWNER).json()["output"]
    item = next(item for item in items if item["type"] == "reasoning")
    turn = {"role": "user", "content": THOUGHTFUL["input"]}
    thinking = {"type": "enabled", "budget_tokens": 1024}
    body = {"model": "demo", "max_tokens": 2048, "messages": [turn], "thinking": thinking}
    blocks = client.post("/v1/messages", json=body).json()["content"]
    block = next(block for block in blocks if block["type"] == "thinking")
    return {"encrypted_content": item["encrypted_content"], "id": item["id"], **block}


def _with(signed: Mapping[str, Any], value: Any) -> Any:
    """Return a body with the server's own signatures and stored items in place of recorded ones."""
    if isinstance(value, list):
        return [_with(signed, one) for one in value]
    if not isinstance(value, dict):
        return value
    own = SIGNED.get(str(value.get("type")), ())
    return {
        name: signed[name] if name in own else _with(signed, inner) for name, inner in value.items()
    }


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clients]:
    from support.tiny_media import write_media_checkpoint

    folder = tmp_path_factory.mktemp("llava")
    name = "LlavaForConditionalGeneration"
    path = str(write_media_checkpoint(folder, name, max_position_embeddings=16384))
    flags = {
        "answer": FLAGS,
        "embed": (*FLAGS, "--runner", "pooling"),
        "see": (path, *FLAGS, *PARSER),
    }
    with ExitStack() as stack:
        yield Clients(stack, flags)


def _answer(clients: Clients, request: ClientRequest, body: dict[str, Any]) -> Answer:
    """Return the answer, which is valid; only fields that may be ignored were."""
    response = clients.send(request, body)
    assert response.status_code == 200, response.text
    named = {name for name in response.headers.get(IGNORED, "").split(", ") if name}
    expected = request.ignored | NEVER_THINKS if request.has_picture else request.ignored
    assert named <= expected, named - expected
    clients.ignored.setdefault(request.program, set()).update(named)
    if request.method == "HEAD":
        return Answer(end="stop")
    if _is_streamed(request, body):
        return read_stream(request, response.text)
    return read_whole(request, response.json())


def _is_streamed(request: ClientRequest, body: Mapping[str, Any]) -> bool:
    ollama_streams = request.dialect in ("api/chat", "api/generate")
    return bool(body.get("stream", ollama_streams))


def _check_demands(request: ClientRequest, answer: Answer) -> None:
    """Check the schema and the tool that a request demands of a complete answer."""
    if not answer.is_complete:
        return
    if request.demanded_tool is not None:
        assert answer.calls, "no tool was called"
        assert request.demanded_tool in ("", answer.calls[0][0])
        json.loads(answer.calls[0][1])
    elif request.schema is not None and not answer.calls:
        jsonschema.validate(json.loads(answer.text), request.schema)


@pytest.mark.parametrize(
    "request_", client_requests(), ids=lambda r: f"{r.program}-{r.name}".replace(" ", "_")
)
def test_requests_of_clients_are_answered_as_their_libraries_read_it(
    clients: Clients, request_: ClientRequest
) -> None:
    body = request_.body_for()
    answer = _answer(clients, request_, body)
    if not request_.streams:
        return
    is_streamed = _is_streamed(request_, body)
    other = _answer(clients, request_, request_.body_for(stream=not is_streamed))
    whole, streamed = (other, answer) if is_streamed else (answer, other)
    _check_demands(request_, whole)
    if not request_.draws:
        assert (streamed.text, streamed.calls, streamed.end) == (whole.text, whole.calls, whole.end)


@pytest.mark.parametrize("program", sorted({one.program for one in client_requests()}))
def test_each_field_that_may_be_ignored_is(clients: Clients, program: str) -> None:
    requests = [one for one in client_requests() if one.program == program]
    if program not in clients.ignored:  # this test alone was chosen
        for request in requests:
            _answer(clients, request, request.body_for())
    unused = requests[0].ignored - clients.ignored[program]
    assert not unused, unused


def test_the_programs_and_their_requests_are_as_many_as_promised() -> None:
    programs = {request.program for request in client_requests()}
    assert len(programs) >= 12
    assert len(client_requests()) >= 60


def test_the_page_says_what_is_tried_and_what_may_be_ignored() -> None:
    page = (Path(__file__).parents[2] / "docs/how_to/clients_that_are_tried.md").read_text("utf-8")
    assert f"{len(client_requests())} requests" in page
    for file in FOLDER.glob("*.json"):
        content = json.loads(file.read_text(encoding="utf-8"))
        (row,) = [x for x in page.splitlines() if x.startswith(f"| {content['program']} |")]
        _, _, version, paths, _, ignored, _ = row.split("|")
        assert version.strip() == content["version"]
        assert set(_quoted(ignored)) == set(content["ignored"])
        used = {request["path"].partition("?")[0] for request in content["requests"]}
        assert set(_quoted(paths)) == used - {"/"}


def _quoted(cell: str) -> list[str]:
    """Return what is between backticks."""
    return cell.split("`")[1::2]


def _next_turn(request: ClientRequest, reply: Any) -> dict[str, Any]:
    """Return the request's body with its answer, a call's result and one more question."""
    body = request.body_for(stream=False)
    question = "And in one word?"
    if request.dialect == "responses":
        body["input"] = [*body["input"], *reply["output"], *_outputs(reply["output"])]
        body["input"].append(
            {"role": "user", "content": [{"type": "input_text", "text": question}]}
        )
    elif request.dialect == "messages":
        body["messages"] = [*body["messages"], {"role": "assistant", "content": reply["content"]}]
        results = _results(reply["content"])
        content = [*results, {"type": "text", "text": question}]
        body["messages"].append({"role": "user", "content": content})
    else:
        message = reply["choices"][0]["message"]
        calls = message.get("tool_calls") or []
        results = [{"role": "tool", "tool_call_id": c["id"], "content": "blue"} for c in calls]
        question_ = {"role": "user", "content": question}
        body["messages"] = [*body["messages"], message, *results, question_]
    return body


def _outputs(items: list[Any]) -> list[dict[str, Any]]:
    calls = [item for item in items if item["type"] == "function_call"]
    kind = "function_call_output"
    return [{"type": kind, "call_id": call["call_id"], "output": "blue"} for call in calls]


def _results(blocks: list[Any]) -> list[dict[str, Any]]:
    ids = [block["id"] for block in blocks if block["type"] == "tool_use"]
    return [{"type": "tool_result", "tool_use_id": id_, "content": "blue"} for id_ in ids]


@pytest.mark.parametrize("program", ["codex", "claude_code", "opencode", "cline"])
def test_a_second_turn_finds_the_first_in_the_cache(clients: Clients, program: str) -> None:
    request = request_named(program, "first turn")
    first = clients.send(request, request.body_for(stream=False))
    earlier = read_whole(request, first.json())
    second = _answer(clients, request, _next_turn(request, first.json()))
    blocks = earlier.prompt_tokens // BLOCK
    assert blocks >= 20, "the first turn is too short to say anything"
    assert second.cached_tokens >= 0.95 * blocks * BLOCK
    assert second.prompt_tokens > earlier.prompt_tokens
