"""Every key of a chat's message that clients send: read by the template, refused by name, or named
among the ignored fields. None is lost."""

from __future__ import annotations

import typing
from dataclasses import replace
from typing import Any

import pytest

from dovetail.errors import RequestError
from dovetail.interfaces.renderer import Reads
from dovetail.server.generate.body.chat import Message
from dovetail.server.generate.rendering.messages import normalise, unused_extras
from dovetail_plugins.renderers._jinja import ChatTemplate
from support.serving import USER, app_for, send

PLAIN = "{% for m in messages %}{{ m.role }} {{ m.content }} {{ m.reasoning_content }}{% endfor %}"
THINKS = "{% for m in messages %}{{ m.role }} {{ m.thinking }} {{ m.content }}{% endfor %}"
OLDER = (
    """{% for m in messages %}{% if m['role'] == "function" %}{{ m.name }}{% endif %}{% endfor %}"""
)
NAMED = ("messages", "weight", "prefix", "partial", "cache_control", "reasoning_details", "id")
CALL = {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
READ_CALL = {"id": "c", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}


def reads_of(template: str) -> Reads:
    return replace(ChatTemplate(template).reads, content="string")


def turn_of(template: str = PLAIN, **fields: Any) -> dict[str, Any]:
    message = Message.model_validate({"role": "assistant", **fields})
    turns, _ = normalise([message], reads_of(template))
    return turns[0]


def keys_of_clients() -> set[str]:
    from openai.types.chat import ChatCompletionMessageParam

    found: set[str] = set()
    for typed in typing.get_args(ChatCompletionMessageParam):
        found |= set(typing.get_type_hints(typed))
    return found


READ: dict[str, tuple[Any, dict[str, Any]]] = {
    "role": ("assistant", {"role": "assistant"}),
    "content": ("said", {"content": "said"}),
    "name": ("Ann", {"name": "Ann"}),
    "refusal": ("no", {"content": "no"}),
    "tool_calls": ([CALL], {"tool_calls": [READ_CALL]}),
    "function_call": (CALL["function"], {"tool_calls": [READ_CALL | {"id": ""}]}),
    "tool_call_id": ("c", {"tool_call_id": "c"}),
    "reasoning": ("why", {"reasoning_content": "why", "reasoning": "why"}),
    "reasoning_content": ("why", {"reasoning_content": "why", "reasoning": "why"}),
    "thinking": ("why", {"reasoning_content": "why", "reasoning": "why"}),
}


def test_the_table_holds_every_key_of_the_client() -> None:
    pytest.importorskip("openai")
    assert keys_of_clients() <= {*READ, "audio"}


@pytest.mark.parametrize("key", READ)
def test_a_key_that_says_something_is_read(key: str) -> None:
    value, expected = READ[key]
    fields = {"content": ""} | {key: value}
    turn = turn_of(**fields)
    assert {name: turn[name] for name in expected} == expected
    message = Message.model_validate({"role": "assistant", **fields})
    assert unused_extras([message], reads_of(PLAIN)) == set()


@pytest.mark.parametrize("key", ["reasoning", "reasoning_content", "thinking"])
@pytest.mark.parametrize("calls", [[], [CALL]])
@pytest.mark.parametrize("content", ["", "said"])
def test_templates_get_thoughts_by_their_own_name(key: str, calls: Any, content: str) -> None:
    turn = turn_of(THINKS, **{key: "why"}, content=content, tool_calls=calls)
    assert turn.get("thinking") == (None if calls and content else "why")


@pytest.mark.parametrize(("template", "role"), [(PLAIN, "tool"), (OLDER, "function")])
def test_results_in_the_older_role_are_read(template: str, role: str) -> None:
    turn = turn_of(template, role="function", name="add", content="2")
    assert turn == {"role": role, "content": "2", "name": "add"}


def test_an_answer_in_sound_alone_is_refused_by_name() -> None:
    with pytest.raises(RequestError) as refused:
        turn_of(audio={"id": "a"})
    assert refused.value.where == "messages[0].audio"
    assert turn_of(audio={"id": "a"}, content="said")["content"] == "said"
    message = Message.model_validate({"role": "assistant", "content": "x", "audio": {"id": "a"}})
    assert unused_extras([message], reads_of(PLAIN)) == {"audio"}


@pytest.mark.parametrize("key", NAMED)
def test_other_keys_go_to_templates_that_read_them_and_are_named_else(key: str) -> None:
    message = Message.model_validate({"role": "user", "content": "x", key: {"a": 1}})
    assert unused_extras([message], reads_of("{{ m.content }}")) == {key}
    reads = "{{ m." + key + " }}"
    assert unused_extras([message], reads_of(reads)) == set()
    assert turn_of(reads, role="user", content="x", **{key: {"a": 1}})[key] == {"a": 1}


def test_keys_that_say_nothing_are_not_named() -> None:
    app, _ = app_for()
    nulls = dict.fromkeys((*keys_of_clients(), "annotations", "reasoning_details"))
    turn = nulls | {"role": "assistant", "content": "said", "annotations": []}
    answer = send(app, "POST", "/v1/chat/completions", {"messages": [*USER, turn, *USER]})
    assert answer.status_code == 200
    assert "x-dovetail-ignored-fields" not in answer.headers
