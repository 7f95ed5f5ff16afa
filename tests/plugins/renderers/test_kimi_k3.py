"""Kimi K3's conversations, as the checkpoint's own code (encoding_k3.py) writes them."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.config.config import Config
from dovetail.errors import RequestError
from dovetail.interfaces.renderer import RendererFacts, RendererInput
from dovetail.server.generate.tools.parsers import choose_parsers
from dovetail_plugins.renderers.kimi_k3 import KimiK3
from dovetail_testing.fakes.async_engine import FakeFacts
from support.renderers import known, renderer_named

OFF = {"thinking": False}
MESSAGE_END = "<|close|>message<|sep|><|end_of_msg|>"
HELLO = {"role": "user", "content": "Hello!"}
HELLO_TEXT = f'<|open|>message role="user"<|sep|>Hello!{MESSAGE_END}'
OPENING = '<|open|>message role="assistant"<|sep|>'
EFFORT = (
    '<|open|>message role="system" type="thinking-effort"<|sep|>`thinking_effort` guides on how '
    "much to think in your thinking channel (not including the response channel), supported values "
    "include `low`, `medium`, `high`, and `max`.\nNow the system is invoked with "
    f"`thinking_effort=EFFORT`.{MESSAGE_END}"
)
TOOL = {
    "type": "function",
    "function": {"name": "find", "description": "é", "parameters": {"type": "object"}},
}
SCHEMA = (
    '[{"function":{"description":"é","name":"find","parameters":{"type":"object"}},'
    '"type":"function"}]'
)


def call(call_id: str, tool: str, **arguments: Any) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": tool, "arguments": arguments}}


def answer(text: str, thoughts: str = "", *calls: dict[str, Any]) -> dict[str, Any]:
    given = {"role": "assistant", "content": text, "reasoning_content": thoughts}
    return given | ({"tool_calls": list(calls)} if calls else {})


def result(text: str, call_id: str = "", **more: Any) -> dict[str, Any]:
    return {"role": "tool", "content": text, "tool_call_id": call_id, **more}


def prompt(*messages: dict[str, Any], **fields: Any) -> str:
    return renderer_named("kimi_k3", known()).render(RendererInput(messages=messages, **fields))


def test_a_question_opens_thoughts_or_an_answer() -> None:
    thinking = EFFORT.replace("EFFORT", "max") + HELLO_TEXT
    assert prompt(HELLO) == f"{thinking}{OPENING}<|open|>think<|sep|>"
    assert prompt(HELLO, variables=OFF) == f"{HELLO_TEXT}{OPENING}<|open|>response<|sep|>"
    assert prompt(HELLO, variables=OFF, adds_generation_prompt=False) == HELLO_TEXT
    assert prompt(HELLO, variables={"reasoning_effort": "none"}) == prompt(HELLO, variables=OFF)
    named = prompt(HELLO | {"name": 'a&"b"'}, variables=OFF, adds_generation_prompt=False)
    assert named == HELLO_TEXT.replace('"user"', '"user" name="a&amp;&quot;b&quot;"')


@pytest.mark.parametrize(
    ("variables", "effort"),
    [
        ({"reasoning_effort": "low"}, "low"),
        ({"reasoning_effort": "medium"}, "high"),
        ({"reasoning_effort": "low", "thinking_effort": "high"}, "high"),
    ],
)
def test_the_effort_is_a_message_of_the_system(variables: dict[str, Any], effort: str) -> None:
    assert prompt(HELLO, variables=variables).startswith(EFFORT.replace("EFFORT", effort))
    with pytest.raises(RequestError, match="not an effort"):
        prompt(HELLO, variables={"thinking_effort": "extreme"})


def test_tools_come_first_and_more_tools_where_they_are_loaded() -> None:
    more = {"role": "system", "content": "", "tools": [TOOL]}
    declared = f"```json\n{SCHEMA}\n```{MESSAGE_END}"
    given = prompt(HELLO, more, tools=[TOOL], variables=OFF, adds_generation_prompt=False)
    assert given == (
        '<|open|>message role="system" type="tool-declare"<|sep|># Tools\nHere are the available '
        f"tools, described in JSONSchema.\n\n{declared}{HELLO_TEXT}"
        '<|open|>message role="system" type="tool-declare"<|sep|>## New Tools Available\nThe '
        "system dynamically extends the toolset via lazy-loading.\nYou have access to all existing "
        "and extended tools.\nHere are the specs for the extended tools.\n\n" + declared
    )


@pytest.mark.parametrize("is_thinking", [True, False])
def test_answers_have_sections_and_results_the_order_of_the_calls(is_thinking: bool) -> None:
    values = {"q": 'a"b<c>', "n": 2.5, "yes": True, "none": None, "o": {"x": [1]}, "l": ["é"]}
    calling = answer("I look.", "Two.", call("c1", "now"), call("c2", "find", **values))
    turns = (HELLO, calling, result("sun", "c2"), result("noon", "c1", name="stale"), answer("Ok."))
    given = prompt(
        *turns, variables={"thinking": is_thinking}, adds_generation_prompt=False
    ).partition(HELLO_TEXT)[2]

    def thoughts(text: str) -> str:
        return f"<|open|>think<|sep|>{text}<|close|>think<|sep|>" if is_thinking else ""

    def argument(key: str, kind: str, text: str) -> str:
        return f'<|open|>argument key="{key}" type="{kind}"<|sep|>{text}<|close|>argument<|sep|>'

    arguments = (
        argument("q", "string", 'a"b<c>') + argument("n", "number", "2.5")
        + argument("yes", "boolean", "true") + argument("none", "null", "null")
        + argument("o", "object", '{"x": [1]}') + argument("l", "array", '["é"]')
    )  # fmt: skip
    assert given == (
        f"{OPENING}{thoughts('Two.')}<|open|>response<|sep|>I look.<|close|>response<|sep|>"
        '<|open|>tools<|sep|><|open|>call tool="now" index="1"<|sep|><|close|>call<|sep|>'
        f'<|open|>call tool="find" index="2"<|sep|>{arguments}<|close|>call<|sep|>'
        f"<|close|>tools<|sep|>{MESSAGE_END}"
        f'<|open|>message role="tool" tool="now" index="1"<|sep|>noon{MESSAGE_END}'
        f'<|open|>message role="tool" tool="find" index="2"<|sep|>sun{MESSAGE_END}'
        f"{OPENING}{thoughts('')}<|open|>response<|sep|>Ok.<|close|>response<|sep|>{MESSAGE_END}"
    )


def test_a_result_without_a_known_call_has_the_next_calls_name_or_its_own() -> None:
    turns = (HELLO, answer("", "", call("c1", "now")), result("noon", "other"))
    assert '<|open|>message role="tool" tool="now" index="1"<|sep|>noon' in prompt(*turns)
    own = prompt(HELLO, result("noon", name="clock"))
    assert '<|open|>message role="tool" tool="clock" index="1"<|sep|>noon' in own
    with pytest.raises(RequestError, match="needs a call before it"):
        prompt(HELLO, result("noon"))


def test_the_choice_of_tools_and_the_answers_format_are_said_last() -> None:
    schema = {"type": "object", "properties": {"b": {}, "a": {}}}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    given = prompt(HELLO, variables=OFF | {"tool_choice": "required", "response_format": form})
    assert given == (
        f'{HELLO_TEXT}<|open|>message role="system" type="tool-choice"<|sep|>The system is invoked '
        "with `tool_choice=required`.\nYou MUST call tools in the next message."
        f'{MESSAGE_END}<|open|>message role="system" type="response-format"<|sep|>The system is '
        "invoked with `response_format=json_schema`.\nYour response must be raw JSON data without "
        "markdown code blocks (```json) or any additional formatting.\nThe JSON data must match "
        'the following schema:\n```json\n{"properties":{"a":{},"b":{}},"type":"object"}\n```'
        f"{MESSAGE_END}{OPENING}<|open|>response<|sep|>"
    )
    for name in ("tool_choice", "response_format"):
        with pytest.raises(RequestError, match="means nothing"):
            prompt(HELLO, variables={name: "often"})


def test_its_sample_finds_the_parsers() -> None:
    (sample,) = renderer_named("kimi_k3", known()).sources().values()
    choice = choose_parsers(Config(), sample)
    assert choice.tool is not None and choice.tool.name == "kimi_k3"
    assert choice.reasoning is not None and choice.reasoning.name == "kimi_k3"


@pytest.mark.parametrize(("model_type", "fits"), [("kimi_k3", True), ("kimi_linear", False)])
def test_auto_takes_it_for_its_models(model_type: str, fits: bool) -> None:
    facts = RendererFacts(path="", model_type=model_type, tokenizer=FakeFacts(chat_template=None))
    assert (not KimiK3.why_not(facts)) == fits
