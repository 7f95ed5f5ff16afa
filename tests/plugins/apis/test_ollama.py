"""Ollama's API: lines, calls, thinking, settings and refusals; by the ollama client."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from dovetail.errors import RequestFault
from dovetail.version import __version__
from dovetail_plugins.apis.ollama.input import chat_of_prompt
from dovetail_plugins.apis.ollama.protocol import OllamaGenerateRequest
from dovetail_testing.fakes.async_engine import FakeAsyncEngine, Script, fake_spec
from support.serving import TOOLS, USER, app_for, send, with_client, with_samplers

ollama = pytest.importorskip("ollama")
ANSWER = '<think>why</think>Hello [call]add {"a": 1}[/call][call]sub {}[/call] bye'
OPTIONS = {
    "num_predict": 7,
    "temperature": 0.5,
    "top_k": 3,
    "top_p": 0.5,
    "min_p": 0.1,
    "seed": 9,
    "stop": ["x"],
    "repeat_penalty": 1.5,
    "presence_penalty": 0.25,
    "frequency_penalty": 0.75,
    "num_ctx": 4096,
}


def with_ollama(app: FastAPI, work: Callable[[Any], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        client = ollama.AsyncClient(host="http://test", transport=transport)
        async with client._client:
            return await work(client)

    return asyncio.run(main())


def ask(app: FastAPI, path: str = "/api/chat", **fields: Any) -> httpx.Response:
    said = {"messages": USER} if path == "/api/chat" else {"prompt": "hi"}
    return send(app, "POST", path, {"model": "fake", "stream": False} | said | fields)


def params_of(engine: FakeAsyncEngine) -> Any:
    return engine.asked[-1][1]


def prompt_of(engine: FakeAsyncEngine) -> str:
    return engine.tokenizer.decode(engine.asked[-1][2]["prompt"])


def cut(text: str, seed: int) -> list[str]:
    chance = random.Random(seed)
    places = sorted(chance.sample(range(1, len(text)), chance.randint(0, 20)))
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


@pytest.mark.parametrize("seed", range(6))
def test_streamed_equals_whole(seed: int) -> None:
    app, _ = app_for(Script(pieces=cut(ANSWER, seed)))
    wanted = {"model": "fake:latest", "messages": USER, "tools": TOOLS}

    async def work(client: Any) -> None:
        whole = await client.chat(**wanted)
        parts = [part async for part in await client.chat(**wanted, stream=True)]
        message = whole.message
        assert (message.content, message.thinking) == ("Hello bye", "why")
        for name in ("content", "thinking"):
            assert "".join(getattr(p.message, name) or "" for p in parts) == getattr(message, name)
        calls = [call for part in parts for call in part.message.tool_calls or ()]
        assert [(c.function.name, c.function.arguments) for c in calls] == [
            ("add", {"a": 1}), ("sub", {}),
        ]  # fmt: skip
        assert [c.function for c in calls] == [c.function for c in message.tool_calls]
        assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
        last = parts[-1]
        assert (last.model, last.done_reason, last.eval_count) == (
            "fake:latest",
            "stop",
            len(ANSWER),
        )
        assert last.prompt_eval_count == whole.prompt_eval_count
        assert (last.prompt_eval_duration, last.eval_duration) == (500_000_000, 1_000_000_000)
        assert last.load_duration >= 0
        assert 0 < last.total_duration < 20_000_000_000

    with_ollama(app, work)


def test_generate_thinks_and_takes_a_system_message() -> None:
    app, engine = app_for(Script(pieces=["<think>a</think>b"], finish_reason="length"))
    answer = ask(app, "/api/generate", system="Be brief.", think=True).json()
    assert (answer["response"], answer["thinking"], answer["done_reason"]) == ("b", "a", "length")
    assert prompt_of(engine) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n"
    )


def test_a_stream_is_the_default_and_made_of_lines() -> None:
    app, _ = app_for(Script(pieces=["a", "b"]))
    answer = send(app, "POST", "/api/generate", {"model": "fake", "prompt": "hi"})
    assert answer.headers["content-type"] == "application/x-ndjson"
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert [line["response"] for line in lines] == ["a", "b", ""]
    assert "done_reason" not in lines[0]


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_options_are_sampling_fields(path: str) -> None:
    app, engine = app_for(engine=with_samplers())
    assert ask(app, path, options=OPTIONS).status_code == 200
    params = params_of(engine)
    got = {name: getattr(params, name) for name in OPTIONS if hasattr(params, name)}
    wanted = {k: v for k, v in OPTIONS.items() if k in got} | {"stop": ("x",)}
    assert got == wanted
    assert (params.max_tokens, params.repetition_penalty) == (7, 1.5)
    free = {"num_predict": -1, "seed": -1, "repeat_last_n": 0, "presence_penalty": 2, "num_gpu": 1}
    answer = ask(app, path, options=free, keep_alive="5m")
    params = params_of(engine)
    assert params.max_tokens > 4000
    assert (params.seed, params.presence_penalty) == (None, 0)
    assert answer.headers["x-dovetail-ignored-fields"] == "keep_alive, options.num_gpu"


def test_options_that_are_null_are_not_there() -> None:
    options = {"mirostat": None, "num_gpu": None, "stop": None, "temperature": 0.5}
    app, _ = app_for()
    answer = ask(app, options=options)
    assert answer.status_code == 200
    assert "x-dovetail-ignored-fields" not in answer.headers


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"options": {"mirostat": 2}}, "options.mirostat: this API has no field"),
        ({"options": {"temperature": -1}}, "options.temperature: "),
        ({"options": {"num_predict": 0}}, "options.num_predict: an answer has at least one"),
        ({"options": {"stop": ["x" * 5000]}}, "options.stop"),
        ({"format": "yaml"}, 'format: "yaml" is neither'),
        ({"format": {"type": "object"}}, "format: no backend"),
        (
            {"messages": [{"role": "user", "content": "", "images": ["QQ=="]}]},
            "messages[0].images[0]: images, sound",
        ),
        ({"top_logprobs": 2}, "top_logprobs: needs logprobs"),
        ({"n": 2}, "n: only one answer"),
        ({"keep_alive": "soon"}, 'keep_alive: "soon" is not a duration'),
    ],
)
def test_what_is_refused_names_the_field(fields: dict[str, Any], where: str) -> None:
    answer = ask(app_for()[0], **fields)
    assert answer.status_code == 400
    assert list(answer.json()) == ["error"]
    assert answer.json()["error"].startswith(where), answer.text


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"template": "{{ nothing .Prompt }}"}, "template: the chat template, written in Go's"),
        ({"template": "{{ messages }}"}, "template: this server does not accept chat templates"),
        ({"raw": True, "template": "{{ .Prompt }}"}, "template: cannot be combined with raw"),
        ({"suffix": "a", "template": "{{ .Prompt }}"}, "template: has no .Suffix"),
        ({"suffix": "a", "system": "b"}, "system: needs a template"),
        ({"think": "extreme"}, "think: "),
        ({"raw": True, "context": [1]}, "context: cannot be combined with raw"),
        ({"suffix": "a", "context": [1]}, "context: cannot be combined with suffix"),
        ({"context": [1], "images": ["QQ=="]}, "images: cannot be combined with context"),
        ({"context": [-1]}, "context: -1 is not a valid token id"),
        ({"context": [97] * 5000}, "context: context and prompt have 5"),
        ({"images": ["QQ=="]}, "images[0]: images, sound and video"),
        ({"raw": True, "images": ["QQ=="]}, "images: cannot be combined with raw"),
        ({"raw": True, "system": "x"}, "system: cannot be combined with raw"),
        ({"raw": True, "think": True}, "think: needs a template"),
        ({"suffix": "end"}, "suffix: this model cannot fill in the middle"),
        ({"prompt": "x" * 5000}, "prompt: the prompt has 5"),
    ],
)
def test_what_generate_refuses(fields: dict[str, Any], where: str) -> None:
    answer = ask(app_for()[0], "/api/generate", **fields)
    assert answer.status_code == 400
    assert answer.json()["error"].startswith(where), answer.text


def test_thinking_asked_of_a_model_without_any_is_refused() -> None:
    from dovetail.server.generate.tools.parsers import Parsers
    from dovetail_testing.fakes.async_engine import FakeFacts

    plain = FakeFacts(chat_template="{{ messages[0].content }}")
    app, _ = app_for(engine=FakeAsyncEngine(facts=plain), parsers=Parsers())
    for think in (True, "high"):
        assert ask(app, think=think).json()["error"].startswith("think: this model does not think")
    assert ask(app, think=False).status_code == 200


def test_raw_is_the_prompt_itself() -> None:
    app, engine = app_for(Script(pieces=["<think>as it is"]))
    answer = ask(app, "/api/generate", prompt="Once", raw=True, logprobs=True, top_logprobs=1)
    assert prompt_of(engine) == "Once"
    assert answer.json()["response"] == "<think>as it is"
    entries = answer.json()["logprobs"]
    assert "".join(entry["token"] for entry in entries) == "<think>as it is"
    assert set(entries[0]) == {"token", "logprob", "bytes", "top_logprobs"}


def test_a_conversation_with_calls_and_results() -> None:
    app, engine = app_for()
    calls = [
        {"function": {"name": "add", "arguments": {"a": 1}}},
        {"function": {"name": "sub", "arguments": {}}},
    ]
    turns = [
        *USER,
        {"role": "assistant", "thinking": "hm", "tool_calls": calls},
        {"role": "tool", "tool_name": "sub", "content": "0"},
        {"role": "tool", "content": "1"},
    ]
    assert ask(app, messages=turns).status_code == 200
    assert '<think>hm</think><tool_call>{"a": 1}</tool_call>' in prompt_of(engine)
    from dovetail_plugins.apis.ollama.input import chat_of
    from dovetail_plugins.apis.ollama.protocol import OllamaChatRequest

    chat = chat_of(OllamaChatRequest.model_validate({"model": "m", "messages": turns}))
    ids = [call.id for call in chat.messages[1].tool_calls or ()]
    assert ids == ["call00001", "call00002"]
    assert [m.tool_call_id for m in chat.messages[2:]] == ["call00002", "call00001"]


def test_models_and_what_a_server_does_not_do() -> None:
    app, _ = app_for(engine=FakeAsyncEngine(spec=fake_spec(max_model_tokens=99)))

    async def work(client: Any) -> None:
        listed = (await client.list()).models
        assert [one.model for one in listed] == ["fake", "alias"]
        assert len({one.digest for one in listed}) == 2
        (loaded, _) = (await client.ps()).models
        assert (loaded.name, loaded.context_length, loaded.size_vram) == ("fake", 99, 0)
        shown = await client.show("alias")
        assert shown.modelinfo["general.architecture"] == "Fake"
        assert shown.modelinfo["Fake.context_length"] == 99
        assert shown.capabilities == ["completion", "tools", "thinking"]
        assert "<|im_start|>" in shown.template
        with pytest.raises(ollama.ResponseError, match='model "other" not found'):
            await client.show("other")
        with pytest.raises(ollama.ResponseError, match='a model that can "embed"'):
            await client.embed("fake", "text")
        for call in (client.pull, client.push, client.delete):
            with pytest.raises(ollama.ResponseError, match="dovetail pull"):
                await call("fake")

    with_ollama(app, work)
    assert send(app, "GET", "/api/version").json() == {"version": __version__}
    assert send(app, "POST", "/api/show", {"name": "fake"}).status_code == 200


def test_an_empty_request_tells_that_the_model_is_loaded() -> None:
    app, engine = app_for()
    assert ask(app, messages=[]).json()["done_reason"] == "load"
    lines = send(app, "POST", "/api/generate", {"model": "fake"}).text.splitlines()
    assert [json.loads(line)["done"] for line in lines] == [True]
    refused = ask(app, "/api/generate", prompt="", keep_alive=0)
    assert refused.json()["error"].startswith("keep_alive: the model stays loaded")
    assert engine.asked == []


def test_a_fault_within_a_stream_is_a_line() -> None:
    app, _ = app_for(Script(pieces=["a"], raises=RequestFault("broke")))

    async def work(client: Any) -> list[str]:
        return [part.response async for part in await client.generate("fake", "hi", stream=True)]

    with pytest.raises(ollama.ResponseError, match="broke"):
        with_ollama(app, work)


def test_a_slow_stream_is_kept_open_by_empty_lines_of_an_answer() -> None:
    app, _ = app_for(Script(pieces=["a"], step_s=0.1), sse_keep_alive_interval=0.04)
    answer = send(app, "POST", "/api/chat", {"model": "fake", "messages": USER})
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert len(lines) > 2
    assert "".join(line["message"]["content"] for line in lines) == "a"


def test_a_longer_context_than_the_servers_is_named() -> None:
    app, _ = app_for()
    for size, is_named in ((4096, False), (4097, True), (131072, True)):
        body = {"model": "fake", "messages": USER, "stream": False, "options": {"num_ctx": size}}
        answer = send(app, "POST", "/api/chat", body)
        assert answer.status_code == 200
        assert (
            "options.num_ctx" in answer.headers.get("x-dovetail-ignored-fields", "")
        ) == is_named


@pytest.mark.parametrize("kind", ["", "application/x-www-form-urlencoded", "text/plain"])
@pytest.mark.parametrize(
    ("path", "said"),
    [("/api/chat", {"messages": USER}), ("/api/generate", {"prompt": "hi"}), ("/api/show", {})],
)
def test_bodies_are_json_whatever_their_type_says(kind: str, path: str, said: Any) -> None:
    app, _ = app_for()
    body = json.dumps({"model": "fake", "stream": False, **said}).encode()

    def ask_with(**headers: str) -> httpx.Response:
        kinds = {"content-type": kind} if kind else {}
        return with_client(
            app, lambda c: c.request("POST", path, content=body, headers=kinds | headers)
        )

    assert ask_with().status_code == 200
    from_a_page = ask_with(origin="http://evil.example")
    assert from_a_page.status_code == 400
    assert "Content-Type: application/json" in from_a_page.json()["error"]


def test_a_body_of_no_type_that_is_no_json_is_refused() -> None:
    answer = with_client(app_for()[0], lambda c: c.request("POST", "/api/chat", content=b"a=1"))
    assert answer.status_code == 400
    assert answer.json()["error"].startswith("the request body is not valid JSON")


@pytest.mark.parametrize("url", ["data:image/png;base64,", " DATA:image/png;base64,", "", "\n"])
def test_images_may_be_data_urls(url: str) -> None:
    body = OllamaGenerateRequest(model="m", prompt="a", images=[f"{url}AAAA"])
    content = chat_of_prompt(body).messages[0].content
    assert isinstance(content, list)
    part = content[0].model_dump(exclude_unset=True)
    assert part["image_url"].lower().startswith("data:")
    assert part["image_url"].endswith(";base64,AAAA")
