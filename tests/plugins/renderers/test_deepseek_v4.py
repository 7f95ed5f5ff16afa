"""DeepSeek-V4's and V4.1's conversations, as the checkpoints' own code writes them.

The examples with a source are published with the checkpoints, in the folder `encoding`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dovetail.config.config import Config
from dovetail.errors import RequestError
from dovetail.interfaces.renderer import Renderer, RendererFacts, RendererInput
from dovetail.server.generate.tools.parsers import choose_parsers
from dovetail_plugins.renderers.deepseek_v4 import DeepseekV4, DeepseekV41
from dovetail_testing.fakes.async_engine import CHATML, FakeFacts
from support.renderers import known, renderer_named

ON = {"thinking": True}
BEGIN, END = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
SYSTEM = {"role": "system", "content": "You are a helpful assistant."}


def user(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": text, **more}


def answer(text: str, thoughts: str = "", *calls: dict[str, Any], **more: Any) -> dict[str, Any]:
    given = {"role": "assistant", "content": text, "reasoning_content": thoughts, **more}
    return given | ({"tool_calls": list(calls)} if calls else {})


def call(call_id: str, tool: str, **arguments: Any) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": tool, "arguments": arguments}}


def result(text: str, call_id: str = "") -> dict[str, Any]:
    return {"role": "tool", "content": text, "tool_call_id": call_id}


def prompt(*messages: dict[str, Any], name: str = "deepseek_v4", **fields: Any) -> str:
    text = renderer_named(name, known()).render(RendererInput(messages=messages, **fields))
    assert text.startswith(BEGIN)
    return text.removeprefix(BEGIN)


WEATHER_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Get the weather for a specific location",
            "parameters": {
                "type": "object",
                "properties": {
                    "location": {"type": "string", "description": "The city name"},
                    "unit": {
                        "type": "string",
                        "enum": ["celsius", "fahrenheit"],
                        "description": "Temperature unit",
                    },
                },
                "required": ["location"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "search",
            "description": "Search the web for information",
            "parameters": {
                "type": "object",
                "properties": {
                    "query": {"type": "string", "description": "Search query"},
                    "num_results": {
                        "type": "integer",
                        "description": "Number of results to return",
                    },
                },
                "required": ["query"],
            },
        },
    },
]
WEATHER = (
    SYSTEM,
    user("What's the weather in Beijing?"),
    answer(
        "",
        "The user wants to know the weather in Beijing. I should use the get_weather tool.",
        call("call_001", "get_weather", location="Beijing", unit="celsius"),
    ),
    result('{"temperature": 22, "condition": "sunny", "humidity": 45}', "call_001"),
    answer(
        "The weather in Beijing is currently sunny with a temperature of 22°C and 45% humidity.",
        "Got the weather data. Let me format a nice response.",
    ),
)
WEATHER_TEXT = """\
You are a helpful assistant.

## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by \
writing a "<｜DSML｜tool_calls>" block like the following:

<｜DSML｜tool_calls>
<｜DSML｜invoke name="$TOOL_NAME">
<｜DSML｜parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜parameter>
...
</｜DSML｜invoke>
<｜DSML｜invoke name="$TOOL_NAME2">
...
</｜DSML｜invoke>
</｜DSML｜tool_calls>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, \
booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside \
<think>...</think> BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

{"name": "get_weather", "description": "Get the weather for a specific location", "parameters": \
{"type": "object", "properties": {"location": {"type": "string", "description": "The city name"}, \
"unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "description": "Temperature unit"}}, \
"required": ["location"]}}
{"name": "search", "description": "Search the web for information", "parameters": {"type": \
"object", "properties": {"query": {"type": "string", "description": "Search query"}, \
"num_results": {"type": "integer", "description": "Number of results to return"}}, "required": \
["query"]}}

You MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.
<｜User｜>What's the weather in Beijing?<｜Assistant｜><think>The user wants to know the weather \
in Beijing. I should use the get_weather tool.</think>

<｜DSML｜tool_calls>
<｜DSML｜invoke name="get_weather">
<｜DSML｜parameter name="location" string="true">Beijing</｜DSML｜parameter>
<｜DSML｜parameter name="unit" string="true">celsius</｜DSML｜parameter>
</｜DSML｜invoke>
</｜DSML｜tool_calls><｜end▁of▁sentence｜><｜User｜><tool_result>{"temperature": 22, "condition": \
"sunny", "humidity": 45}</tool_result><｜Assistant｜><think>Got the weather data. Let me format a \
nice response.</think>The weather in Beijing is currently sunny with a temperature of 22°C and 45% \
humidity.<｜end▁of▁sentence｜>"""
"""Source: tests/test_input_1.json and tests/test_output_1.txt of DeepSeek-V4."""

FRANCE = (
    SYSTEM,
    user("Hello"),
    answer("Hi there! How can I help you?", "The user said hello, I should greet back."),
    user("What is the capital of France?"),
    answer(
        "The capital of France is Paris.", "The user asks about the capital of France. It is Paris."
    ),
)
FRANCE_TEXT = (
    "You are a helpful assistant.<｜User｜>Hello<｜Assistant｜></think>Hi there! How can I help "
    "you?<｜end▁of▁sentence｜><｜User｜>What is the capital of France?<｜Assistant｜><think>The "
    "user asks about the capital of France. It is Paris.</think>The capital of France is Paris."
    "<｜end▁of▁sentence｜>"
)
"""Source: tests/test_input_2.json and tests/test_output_2.txt of DeepSeek-V4."""

BUDGET = (
    "Reasoning Effort: 75 (range 1-100, the higher the value, the more thorough the reasoning)\n\n"
)


def spaced(text: str) -> str:
    """Return a text of V4 in the tags of V4.1, with what begins its conversations that think."""
    text = text.replace("｜DSML｜tool_calls", "｜DSML｜ calls").replace("<｜DSML｜i", "<｜DSML｜ i")
    for tag in ("invoke", "parameter"):
        text = text.replace(f"/｜DSML｜{tag}", f"/｜DSML｜ {tag}")
    return f"<｜System｜>{BUDGET}{text.replace('<｜DSML｜p', '<｜DSML｜ p')}"


@pytest.mark.parametrize(
    ("name", "changed"), [("deepseek_v4", lambda text: text), ("deepseek_v41", spaced)]
)
def test_the_published_conversations_are_equal(name: str, changed: Any) -> None:
    """V4.1's first example is V4's in its own tags; its texts were made by its published code."""
    shown = prompt(*WEATHER, name=name, tools=WEATHER_TOOLS, variables=ON)
    assert shown == changed(WEATHER_TEXT)
    assert prompt(*FRANCE, name=name, variables=ON) == changed(FRANCE_TEXT)
    question = prompt(SYSTEM, user("What is 2+2?"), name=name, variables=ON)
    assert question == changed(
        "You are a helpful assistant.<｜User｜>What is 2+2?<｜Assistant｜><think>"
    )  # the README's


def test_thoughts_stay_with_tools_and_with_thinking_off_none_is_written() -> None:
    whole = prompt(*FRANCE, tools=WEATHER_TOOLS, variables=ON)
    assert "<think>The user said hello, I should greet back.</think>Hi there!" in whole
    off = prompt(*FRANCE, adds_generation_prompt=False)
    assert off == FRANCE_TEXT.replace(
        "<think>The user asks about the capital of France. It is Paris.", ""
    )
    assert prompt(*FRANCE, variables=ON | {"reasoning_effort": "none"}) == off
    assert prompt(user("a"), adds_generation_prompt=False) == "<｜User｜>a"


@pytest.mark.parametrize("name", ["deepseek_v4", "deepseek_v41"])
def test_results_are_a_users_turn_in_the_order_of_the_calls(name: str) -> None:
    calling = answer("", "", call("a", "now"), call("b", "find", q={"x": [1, True]}, n="<é>"))
    turns = (user("One"), user("two"), calling, result("B", "b"), result("A", "a"), user("Next"))
    given = prompt(*turns, name=name, adds_generation_prompt=False)
    tag = "｜DSML｜ " if name == "deepseek_v41" else "｜DSML｜"
    section = "calls" if name == "deepseek_v41" else "tool_calls"
    assert given == (
        f"<｜User｜>One\n\ntwo<｜Assistant｜></think>\n\n<{tag}{section}>\n"
        f'<{tag}invoke name="now">\n\n</{tag}invoke>\n<{tag}invoke name="find">\n'
        f'<{tag}parameter name="q" string="false">{{"x": [1, true]}}</{tag}parameter>\n'
        f'<{tag}parameter name="n" string="true"><é></{tag}parameter>\n</{tag}invoke>\n'
        f"</{tag}{section}>{END}<｜User｜><tool_result>A</tool_result>\n\n"
        "<tool_result>B</tool_result>\n\nNext"
    )


@pytest.mark.parametrize(
    ("task", "thinking", "ending"),
    [
        ("query", False, "<｜query｜>"),
        ("action", False, "<｜Assistant｜></think><｜action｜>"),
        ("action", True, "<｜Assistant｜><think><｜action｜>"),
    ],
)
def test_a_task_asks_for_a_short_answer(task: str, thinking: bool, ending: str) -> None:
    """The forms of the README's table; the reminder is written as in tests/test_output_4.txt."""
    turns = (SYSTEM, {"role": "latest_reminder", "content": "2026"}, user("Weather?", task=task))
    given = prompt(*turns, answer("Search", "not shown"), variables={"thinking": thinking})
    assert given == (
        "You are a helpful assistant.<｜latest_reminder｜>2026<｜User｜>Weather?"
        f"{ending}Search{END}"
    )
    titled = prompt(user("Hi"), answer("Hello", task="title"), answer("Greetings"))
    assert titled == f"<｜User｜>Hi<｜Assistant｜></think>Hello{END}<｜title｜>Greetings{END}"


def test_the_effort_is_the_text_of_the_checkpoints_own_code(tmp_path: Path) -> None:
    def opening(renderer: Renderer, effort: str) -> str:
        variables = ON | {"reasoning_effort": effort}
        given = RendererInput(messages=[user("a")], variables=variables)
        text = renderer.render(given)
        assert text.endswith("<｜User｜>a<｜Assistant｜><think>")
        return text.removeprefix(BEGIN).partition("<｜User｜>")[0].partition(".")[0]

    thorough = "Reasoning Effort: Absolute maximum with no shortcuts permitted"
    beyond = "Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising"
    newest = renderer_named("deepseek_v4", known())
    found = {name: opening(newest, name) for name in ("low", "medium", "high", "xhigh", "max")}
    assert found == {
        "low": "", "medium": thorough, "high": thorough, "xhigh": beyond, "max": beyond
    }  # fmt: skip
    (tmp_path / "encoding").mkdir()
    (tmp_path / "encoding" / "encoding_dsv4.py").write_text("'Absolute maximum'")
    preview = renderer_named("deepseek_v4", known(path=str(tmp_path)))
    assert {name: opening(preview, name) for name in ("low", "high", "max")} == {
        "low": "", "high": "", "max": thorough
    }  # fmt: skip
    with pytest.raises(RequestError, match="not an effort"):
        opening(newest, "extreme")


def test_a_later_version_says_the_effort_in_numbers_and_has_later_systems() -> None:
    """Source: what encoding/encoding.py of DeepSeek-V4.1-Flash makes of these messages."""

    def shown(*messages: dict[str, Any], **variables: Any) -> str:
        return prompt(*messages, name="deepseek_v41", variables=variables)

    brief, ask = {"role": "system", "content": "S"}, user("U")
    assert shown(brief, ask) == "<｜System｜>S<｜User｜>U<｜Assistant｜></think>"
    assert shown(ask) == "<｜User｜>U<｜Assistant｜></think>"
    assert shown(ask, thinking=True) == f"<｜System｜>{BUDGET}<｜User｜>U<｜Assistant｜><think>"
    for effort, number in {"low": 50, "max": 100, 88: 88, "7": 7}.items():
        given = shown(brief, ask, thinking=True, reasoning_effort=effort)
        assert given.startswith(f"<｜System｜>Reasoning Effort: {number} (range 1-100")
    for wrong in (0, 101, "101", True, "most", 1.5):
        with pytest.raises(RequestError, match="not an effort"):
            shown(ask, thinking=True, reasoning_effort=wrong)
    turns = (brief, user("q1"), answer("a1", "r1"), {"role": "system", "content": "mid"})
    assert shown(*turns, user("q2")) == (
        f"<｜System｜>S<｜User｜>q1<｜Assistant｜></think>a1{END}<｜System｜>mid<｜User｜>q2"
        "<｜Assistant｜></think>"
    )
    assert shown(*turns, thinking=True).endswith(
        f"<｜Assistant｜></think>a1{END}<｜System｜>mid<｜Assistant｜><think>"
    )
    assert prompt(*turns).endswith(f"a1{END}mid")  # of V4, it asks for nothing


def test_the_format_of_an_answer_follows_the_system_message() -> None:
    given = prompt(SYSTEM | {"response_format": {"type": "object"}}, user("a"))
    assert given == (
        "You are a helpful assistant.\n\n## Response Format:\n\nYou MUST strictly adhere to the "
        'following schema to reply:\n{"type": "object"}<｜User｜>a<｜Assistant｜></think>'
    )


@pytest.mark.parametrize(
    ("turn", "what"),
    [(user("a", task="sing"), "not a task"), ({"role": "narrator", "content": ""}, "not a role")],
)
def test_what_the_format_has_no_place_for_is_refused(turn: dict[str, Any], what: str) -> None:
    with pytest.raises(RequestError, match=what):
        prompt(turn)


@pytest.mark.parametrize("name", ["deepseek_v4", "deepseek_v41"])
def test_its_sample_finds_the_parsers(name: str) -> None:
    (sample,) = renderer_named(name, known()).sources().values()
    choice = choose_parsers(Config(), sample)
    assert choice.tool is not None and choice.tool.name == name
    assert choice.reasoning is not None and choice.reasoning.name == "deepseek_v3"


@pytest.mark.parametrize(
    ("model_type", "template", "chosen"),
    [
        ("deepseek_v4", None, {"DeepseekV4"}),
        ("deepseek_v41", None, {"DeepseekV41"}),
        ("deepseek_v32", None, set()),
        ("deepseek_v4", CHATML, set()),
    ],
)
def test_auto_takes_each_for_its_models_without_a_template(
    tmp_path: Path, model_type: str, template: str | None, chosen: set[str]
) -> None:
    facts = RendererFacts(
        path=str(tmp_path), model_type=model_type, tokenizer=FakeFacts(chat_template=template)
    )
    fits = {one.__name__ for one in (DeepseekV4, DeepseekV41) if not one.why_not(facts)}
    assert fits == chosen
