"""What a conversation of Claude Code holds: system turns on the way, failed calls, thoughts."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from dovetail_plugins.apis._sealed import sealed, signature
from dovetail_testing.fakes.async_engine import FakeAsyncEngine, Script
from support.serving import USER, app_for, send

IGNORED = "x-dovetail-ignored-fields"
STRICT = """{%- for m in messages -%}
{%- if m.role == 'system' and not loop.first -%}
{{ raise_exception('System message must be at the beginning.') }}
{%- endif -%}
<{{ m.role }}>{{ m.content }}
{%- endfor -%}<assistant>"""


def ask(app: Any, turns: Any, path: str = "/v1/messages", **fields: Any) -> Any:
    limit = {} if "count" in path else {"max_tokens": 9}
    return send(app, "POST", path, {"messages": turns, **limit, **fields})


def prompt_of(engine: FakeAsyncEngine) -> str:
    return engine.tokenizer.decode(engine.asked[-1][2]["prompt"])


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


NOTE = {"role": "system", "content": [text("two agents")]}
NOTED = "<system-reminder>\ntwo agents\n</system-reminder>"


@pytest.mark.parametrize(
    ("turns", "prompt"),
    [
        ([*USER, NOTE], f"<system>rules<user>hi\n{NOTED}<assistant>"),
        (
            [*USER, {"role": "assistant", "content": "a"}, NOTE],
            f"<system>rules<user>hi<assistant>a<user>{NOTED}<assistant>",
        ),
        ([NOTE, *USER], f"<system>rules<user>{NOTED}<user>hi<assistant>"),
    ],
)
def test_system_turns_that_a_template_refuses_are_text_of_the_user(
    turns: list[Any], prompt: str
) -> None:
    app, engine = app_for(chat_template=STRICT)
    assert ask(app, turns, system="rules").status_code == 200
    assert prompt_of(engine) == prompt
    counted = ask(app, turns, "/v1/messages/count_tokens", system="rules")
    assert counted.json()["input_tokens"] == len(prompt)


def test_a_template_that_takes_system_turns_gets_them() -> None:
    app, engine = app_for()
    assert ask(app, [*USER, NOTE], system="rules").status_code == 200
    assert "<|im_start|>system\ntwo agents" in prompt_of(engine)


def test_other_faults_of_a_template_stay_errors() -> None:
    app, _ = app_for(chat_template="{{ raise_exception('never') }}")
    for turns in (USER, [*USER, NOTE]):
        answer = ask(app, turns)
        assert answer.status_code == 400
        assert "never" in answer.json()["error"]["message"]


def thinking(thought: str, **more: Any) -> list[dict[str, Any]]:
    block = {"type": "thinking", "thinking": thought, **more}
    said = {"role": "assistant", "content": [block, text("so")]}
    return [*USER, said, {"role": "user", "content": "and?"}]


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
@pytest.mark.parametrize(
    "given",
    ["c29t", "\ud800", "x" * 10_000, signature("b", "thinking"), signature("a", "reasoning")],
    ids=["short", "surrogate", "long", "other text", "other purpose"],
)
def test_a_signature_of_another_server_or_text_is_refused(path: str, given: str) -> None:
    answer = ask(app_for()[0], thinking("a", signature=given), path)
    assert answer.status_code == 400
    message = answer.json()["error"]["message"]
    assert message.startswith("messages[1].content[0].signature: ")


@pytest.mark.parametrize("given", [None, "", signature("a\u00e9", "thinking")])
def test_thoughts_come_back(given: str | None) -> None:
    app, engine = app_for()
    assert ask(app, thinking("a\u00e9", signature=given)).status_code == 200
    assert "a\u00e9" in prompt_of(engine)


def test_a_thought_that_the_client_does_not_see_comes_back_in_its_signature() -> None:
    app, engine = app_for(Script(pieces=["<think>\nse", "cret\n</think>\n\nHello"]))
    omitted = {"type": "adaptive", "display": "omitted"}
    said = ask(app, USER, thinking=omitted).json()["content"]
    assert said[0]["thinking"] == ""
    streamed = ask(app, USER, thinking=omitted, stream=True).text
    assert "secret" not in streamed and "thinking_delta" not in streamed
    assert said[0]["signature"] in streamed
    later = [*USER, {"role": "assistant", "content": said}, {"role": "user", "content": "and?"}]
    assert ask(app, later).status_code == 200
    assert "secret" in prompt_of(engine)


def test_redacted_thinking_that_this_server_sealed_is_read() -> None:
    app, engine = app_for()
    turns = thinking("")
    for data, is_ours in ((sealed("hidden", "thinking"), True), ("EmwKAhgB", False)):
        turns[1]["content"][0] = {"type": "redacted_thinking", "data": data}
        answer = ask(app, turns)
        assert answer.status_code == 200
        assert ("hidden" in prompt_of(engine)) is is_ours
        assert (IGNORED in answer.headers) is not is_ours


def result(content: Any, **more: Any) -> list[dict[str, Any]]:
    block = {"type": "tool_result", "tool_use_id": "t", "content": content, **more}
    call = {"type": "tool_use", "id": "t", "name": "add", "input": {}}
    return [*USER, {"role": "assistant", "content": [call]}, {"role": "user", "content": [block]}]


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        ("no such file", "Error: no such file"),
        ([text("no such file")], "Error: no such file"),
        ("<tool_use_error>gone</tool_use_error>", "\n<tool_use_error>gone"),
        (None, "Error: "),
    ],
)
def test_a_failed_call_says_so(content: Any, shown: str) -> None:
    app, engine = app_for()
    answer = ask(app, result(content, is_error=True))
    assert (answer.status_code, IGNORED in answer.headers) == (200, False)
    assert shown in prompt_of(engine)
    ask(app, result("fine", is_error=False))
    assert "Error" not in prompt_of(engine)


def document(source: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "document", "source": source, **more}


def encoded(words: bytes, media_type: str) -> dict[str, Any]:
    data = base64.b64encode(words).decode()
    return {"type": "base64", "media_type": media_type, "data": data}


PICTURE = {"type": "image", "source": encoded(b"?", "image/png")}


@pytest.mark.parametrize("media_type", ["text/plain", "text/markdown", "application/json"])
def test_documents_in_base64_are_read(media_type: str) -> None:
    app, engine = app_for()
    block = document(
        encoded("gr\u00fcn".encode(), media_type),
        title="Sky",
        context="weather",
        citations={"enabled": True},
    )
    answer = ask(app, [{"role": "user", "content": [block]}])
    assert "Sky\nweather\ngr\u00fcn" in prompt_of(engine)
    assert answer.headers[IGNORED] == "messages.content.citations"
    assert ask(app, result([block])).status_code == 200
    assert "Sky\nweather\ngr\u00fcn" in prompt_of(engine)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (encoded(b"%PDF-1.7", "application/pdf"), "PDF"),
        (encoded(b"\xff\xfe", "text/plain"), "UTF-8"),
        ({"type": "base64", "media_type": "text/plain", "data": "?"}, "base64"),
        (encoded(b"PK", "application/zip"), "application/zip"),
        ({"type": "file", "file_id": "f"}, "files are not"),
        ({"type": "content", "content": [{"type": "document", "source": {}}]}, "document"),
    ],
)
def test_documents_that_are_not_read_say_why(source: dict[str, Any], why: str) -> None:
    answer = ask(app_for()[0], [{"role": "user", "content": [text("a"), document(source)]}])
    assert answer.status_code == 400
    message = answer.json()["error"]["message"]
    assert message.startswith("messages[0].content[1].source")
    assert why in message


@pytest.mark.parametrize(
    ("turns", "place"),
    [
        ([{"role": "user", "content": [text("a"), {"type": "hologram"}]}], "content[1]: "),
        (result([{"type": "hologram"}]), "content[0].content[0]: "),
        ([*USER, {"role": "system", "content": [{"type": "hologram"}]}], "content[0]: "),
    ],
)
def test_unknown_blocks_are_refused_with_their_place(turns: Any, place: str) -> None:
    answer = ask(app_for()[0], turns)
    assert answer.status_code == 400
    message = answer.json()["error"]["message"]
    assert message.startswith(f"messages[{len(turns) - 1}].{place}")
    assert "hologram" in message


def test_a_model_of_text_gets_a_note_for_an_image_in_a_result() -> None:
    app, engine = app_for()
    answer = ask(app, result([text("the file:"), PICTURE]))
    assert (answer.status_code, answer.headers[IGNORED]) == (200, "messages.content.content.image")
    assert "the file:\n[The result has an image here" in prompt_of(engine)
    refused = ask(app, [{"role": "user", "content": [PICTURE]}])
    assert refused.status_code == 400


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
@pytest.mark.parametrize(
    ("turns", "place"),
    [
        ([{"role": "user", "content": [text("a"), PICTURE]}], "messages[0].content[1]"),
        (
            [*USER, {"role": "assistant", "content": "b"}, {"role": "user", "content": [PICTURE]}],
            "messages[2].content[0]",
        ),
        (
            [
                *result("5")[:2],
                {"role": "user", "content": [*result("5")[2]["content"], text("a"), PICTURE]},
            ],
            "messages[2].content[2]",
        ),
    ],
)
def test_faults_name_the_clients_turn_and_block(path: str, turns: Any, place: str) -> None:
    for system in ("", "rules"):
        answer = ask(app_for()[0], turns, path, system=system)
        assert answer.status_code == 400
        assert answer.json()["error"]["message"].startswith(f"{place}: ")
