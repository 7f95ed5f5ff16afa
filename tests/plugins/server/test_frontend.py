"""Flags of the HTTP server, one test each that fails when the flag does nothing."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import httpx
import pytest

from dovetail.config.sections.frontend import FrontendConfig
from dovetail.errors import ConfigError
from dovetail.server.launch.frontend_checks import check_frontend
from dovetail_plugins.renderers import _budget as budget
from dovetail_testing.fakes.async_engine import FakeAsyncEngine, FakeFacts, Script, fake_spec
from support.serving import TOOLS, USER, app_for, chat, client_of, complete, events_of, send

LOUD = "{% for m in messages %}{{ m.content | upper }}!{% endfor %}"


def prompt_of(engine: FakeAsyncEngine) -> str:
    """Return the last prompt that the engine was asked to continue."""
    return "".join(map(chr, engine.asked[-1][2]["prompt"]))


@pytest.mark.parametrize("root_path", ["/proxy", "/proxy/"])
def test_root_path(root_path: str) -> None:
    app, _ = app_for(root_path=root_path)
    for path in ("/v1/models", "/proxy/v1/models"):  # the prefix taken off by the proxy, or left
        assert send(app, "GET", path).status_code == 200
    assert send(app, "GET", "/openapi.json").json()["servers"] == [{"url": "/proxy"}]
    assert "/proxy/openapi.json" in send(app, "GET", "/docs").text
    plain, _ = app_for()
    assert send(plain, "GET", "/proxy/v1/models").status_code == 404
    closed, _ = app_for(root_path=root_path, api_key=("k",))
    for path, status in (("/proxy/v1/models", 401), ("/v1/models", 401), ("/proxy/live", 200)):
        assert send(closed, "GET", path).status_code == status
    with pytest.raises(ConfigError, match="begin it with a slash: /proxy"):
        check_frontend(FrontendConfig(root_path="proxy"))


def preflight(method: str = "POST", header: str = "x-mine", **flags: Any) -> httpx.Response:
    app, _ = app_for(**flags)
    return send(
        app, "OPTIONS", "/v1/models", origin="http://any", access_control_request_method=method,
        access_control_request_headers=header,
    )  # fmt: skip


def test_cross_origin_rules() -> None:
    usual = preflight()
    assert usual.status_code == 200
    assert usual.headers["access-control-allow-origin"] == "*"
    assert "access-control-allow-credentials" not in usual.headers
    assert preflight(allowed_methods=("GET",)).status_code == 400
    assert preflight("GET", allowed_methods=("GET",)).status_code == 200
    assert preflight(allowed_headers=("x-other",)).status_code == 400
    assert preflight(allowed_headers=("X-Mine",)).status_code == 200
    assert preflight(allowed_origins=("http://one",)).status_code == 400
    with_cookies = preflight(allow_credentials=True)
    assert with_cookies.headers["access-control-allow-credentials"] == "true"


def test_server_load_counts_requests_in_flight() -> None:
    app, _ = app_for(Script(hangs=True), enable_server_load_tracking=True)

    async def main() -> list[int]:
        loads = []
        async with client_of(app) as client:

            async def load() -> int:
                return int((await client.get("/load")).json()["server_load"])

            loads.append(await load())
            body = {"messages": USER}
            tasks = [
                asyncio.ensure_future(client.post("/v1/chat/completions", json=body))
                for _ in range(2)
            ]
            await asyncio.sleep(0.1)
            loads.append(await load())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            loads.append(await load())
        return loads

    assert asyncio.run(main()) == [0, 2, 0]
    plain, _ = app_for()
    assert "server_load" not in send(plain, "GET", "/load").json()


@pytest.mark.parametrize("stream", [False, True])
def test_tokens_as_token_ids(stream: bool) -> None:
    def tokens(**flags: Any) -> list[list[str]]:
        app, _ = app_for(Script(pieces=("a-",)), **flags)
        answers = (
            chat(app, logprobs=True, stream=stream), complete(app, logprobs=0, stream=stream)
        )  # fmt: skip
        bodies = [events_of(a)[:-1] if stream else [a.json()] for a in answers]
        found = [[c["logprobs"] for b in body for c in b["choices"] if c["logprobs"]]
                 for body in bodies]  # fmt: skip
        return [
            [entry["token"] for part in found[0] for entry in part["content"]],
            [token for part in found[1] for token in part["tokens"]],
        ]

    assert tokens(return_tokens_as_token_ids=True) == [["token_id:97", "token_id:45"]] * 2
    assert tokens() == [["a", "-"]] * 2


@pytest.mark.parametrize("ask", [chat, complete])
@pytest.mark.parametrize("has_flag", [False, True])
def test_prompt_tokens_details(ask: Any, has_flag: bool) -> None:
    app, _ = app_for(**({} if has_flag else {"enable_prompt_tokens_details": False}))
    options = {"include_usage": True}
    usages = [
        ask(app).json()["usage"],
        events_of(ask(app, stream=True, stream_options=options))[-2]["usage"],
    ]
    for usage in usages:
        details = usage.get("prompt_tokens_details")
        assert (details["cached_tokens"] > 0) if has_flag else details is None


@pytest.mark.parametrize("ask", [chat, complete])
def test_forced_usage_comes_unasked(ask: Any) -> None:
    app, _ = app_for(enable_force_include_usage=True)
    *chunks, last, done = events_of(ask(app, stream=True))
    assert done == "[DONE]"
    assert last["choices"] == []
    assert last["usage"] == ask(app).json()["usage"]
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts) and counts[-1] == last["usage"]["completion_tokens"]
    plain, _ = app_for()
    assert all("usage" not in event for event in events_of(ask(plain, stream=True))[:-1])


def test_chat_template_as_text_and_as_file(tmp_path: Path) -> None:
    file = tmp_path / "loud.jinja"
    file.write_text(LOUD)
    for given in (LOUD, str(file)):
        app, engine = app_for(chat_template=given)
        assert chat(app).status_code == 200
        assert prompt_of(engine) == "HI!"


def test_content_format() -> None:
    pytest.importorskip("dovetail_plugins")
    shows = "{% for m in messages %}{{ m.content | tojson }}{% endfor %}"
    parts = [{"role": "user", "content": [{"type": "text", "text": t} for t in "ab"]}]
    prompts = []
    for content_format in ("auto", "string", "openai"):
        app, engine = app_for(chat_template=shows, chat_template_content_format=content_format)
        assert chat(app, messages=parts).status_code == 200
        prompts.append(json.loads(prompt_of(engine)))
    assert prompts[:2] == ["a\nb"] * 2
    assert prompts[2] == parts[0]["content"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize"])
def test_templates_of_requests(path: str) -> None:
    body = {"messages": USER, "chat_template": LOUD}
    refusing, engine = app_for()
    answer = send(refusing, "POST", path, body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "chat_template"
    assert "--trust-request-chat-template" in answer.json()["error"]["message"]
    assert not engine.asked
    trusting, engine = app_for(trust_request_chat_template=True)
    for _ in range(2):  # the second time it is compiled already
        answer = send(trusting, "POST", path, body)
        assert answer.status_code == 200
        ids = answer.json()["tokens"] if path == "/tokenize" else map(ord, prompt_of(engine))
        assert list(ids) == list(map(ord, "HI!"))
    named = {"chat_template": "{{ word }}{{ eos_token }}", "chat_template_kwargs": {"word": "so"}}
    chat(trusting, **named)
    if path != "/tokenize":
        assert prompt_of(engine) == "so<|im_end|>"
    assert chat(trusting).status_code == 200
    assert "<|im_start|>" in prompt_of(engine)


@pytest.mark.parametrize(
    ("template", "told"),
    [
        ("{% for x %}", "line 1"),
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "loop"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ 'x' * 99999999 }}", "characters"),
        ("{{ raise_exception('no') }}", "no"),
        ("x" * (1 << 19), "chat_template"),
    ],
)
def test_templates_of_requests_are_held_in(template: str, told: str) -> None:
    app, engine = app_for(trust_request_chat_template=True)
    answer = chat(app, chat_template=template)
    assert answer.status_code == 400, answer.text
    assert told in answer.json()["error"]["message"]
    assert not engine.asked
    assert chat(app).status_code == 200


def test_a_slow_template_of_a_request_blocks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "MAX_TICKS", 10**9)
    monkeypatch.setattr(budget, "MAX_CHARS_IN_ALL", 10**12)
    slow = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    app, _ = app_for(trust_request_chat_template=True)

    async def main() -> int:
        num_answers = 0
        async with client_of(app) as client:
            body = {"messages": USER, "chat_template": slow}
            task = asyncio.ensure_future(client.post("/v1/chat/completions", json=body))
            while not task.done():
                assert (await client.get("/live")).status_code == 200
                num_answers += 1
                await asyncio.sleep(0.01)
            assert (await task).status_code == 400
        return num_answers

    assert asyncio.run(main()) > 5


def test_tools_that_are_not_to_be_called_stay_in_the_prompt() -> None:
    for excludes in (False, True):
        app, engine = app_for(exclude_tools_when_tool_choice_none=excludes)
        chat(app, tools=TOOLS, tool_choice="none")
        assert ("[1 tools]" in prompt_of(engine)) is not excludes
        chat(app, tools=TOOLS)
        assert "[1 tools]" in prompt_of(engine)


def test_tokenizer_info(tmp_path: Path) -> None:
    settings = {
        "tokenizer_class": "FastOne", "model_max_length": 10**30, "padding_side": "left",
        "odd": float("nan"), "half": "\ud800", "name_or_path": "/home/me/model",
        "added_tokens_decoder": {"0": {"content": "<|im_end|>", "special": True}},
    }  # fmt: skip
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    engine = FakeAsyncEngine(spec=fake_spec(tokenizer_path=str(tmp_path)))
    app, _ = app_for(
        engine=engine, enable_tokenizer_info_endpoint=True, chat_template=LOUD, api_key=("k",)
    )
    assert send(app, "GET", "/get_tokenizer_info").status_code == 401
    answer = send(app, "GET", "/get_tokenizer_info", authorization="Bearer k")
    assert send(app, "GET", "/tokenizer_info", authorization="Bearer k").json() == answer.json()

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    info = json.loads(answer.text, parse_constant=refuse)
    assert info["tokenizer_class"] == "FastOne"
    assert info["chat_template"] == LOUD
    assert info["eos_token"] == "<|im_end|>"
    assert (info["eos_token_id"], info["special_token_ids"]) == (0, [0])
    assert (info["odd"], info["model_max_length"], info["half"]) == (None, None, "?")
    assert info["added_tokens_decoder"] == settings["added_tokens_decoder"]
    assert "/home/me" not in answer.text
    for engine in (None, FakeAsyncEngine(facts=FakeFacts(chat_template=None))):
        app, _ = app_for(engine=engine, enable_tokenizer_info_endpoint=engine is not None)
        found = send(app, "GET", "/get_tokenizer_info")
        assert found.status_code == (404 if engine is None else 200)
    assert found.json()["tokenizer_class"] == "FakeTokenizer"
    assert found.json()["chat_template"] is None


@pytest.mark.parametrize("has_flag", [False, True])
def test_tracebacks_of_error_answers(caplog: pytest.LogCaptureFixture, has_flag: bool) -> None:
    app, _ = app_for(log_error_stack=has_flag)
    with caplog.at_level(logging.INFO, "dovetail.server"):
        assert chat(app, n=0).status_code == 400
        assert chat(app, model="none").status_code == 404
    assert caplog.text.count("Traceback") == (2 if has_flag else 0)
    caplog.clear()
    ended, _ = app_for(Script(pieces=("a", "b"), finish_reason="abort"), log_error_stack=has_flag)
    assert "error" in events_of(chat(ended, stream=True))[-1]
    assert caplog.text.count("Traceback (most recent") == (1 if has_flag else 0)


@pytest.mark.parametrize("stream", [False, True])
def test_answers_are_logged_whole(caplog: pytest.LogCaptureFixture, stream: bool) -> None:
    script = Script(pieces=("<think>sin", "ce</think>", "be\n", "cause"))
    app, _ = app_for(script, enable_log_requests=True, enable_log_outputs=True)
    with caplog.at_level(logging.INFO, "dovetail.server"):
        chat(app, stream=stream, request_id="one", n=2)
        complete(app, stream=stream, request_id="two")
    told = [r.getMessage() for r in caplog.records if ": answer " in r.getMessage()]
    text = r"'<think>since</think>be\ncause'"
    assert told == [
        f"request one: answer 0 {text}", f"request one: answer 1 {text}",
        f"request two: answer 0 {text}",
    ]  # fmt: skip
    caplog.clear()
    app, _ = app_for(script, enable_log_requests=True, enable_log_outputs=True, max_log_len=7)
    with caplog.at_level(logging.INFO, "dovetail.server"):
        chat(app, stream=stream)
    assert "answer 0 '<think>... (21 more)'" in caplog.text
    caplog.clear()
    app, _ = app_for(script, enable_log_requests=True)
    with caplog.at_level(logging.INFO, "dovetail.server"):
        chat(app, stream=stream)
    assert "since" not in caplog.text


def test_a_log_flag_without_effect_is_named_and_ends_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    check_frontend(FrontendConfig(enable_log_outputs=True))
    assert "--enable-log-outputs has no effect without --enable-log-requests" in caplog.text
    caplog.clear()
    check_frontend(FrontendConfig(enable_log_outputs=True, enable_log_requests=True))
    assert not caplog.records


def test_the_response_role_in_streams_and_whole() -> None:
    app, _ = app_for(response_role="bot")
    assert chat(app).json()["choices"][0]["message"]["role"] == "bot"
    assert events_of(chat(app, stream=True))[0]["choices"][0]["delta"]["role"] == "bot"
