"""DeepSeek-V3.2's conversations, as the checkpoint's own code writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dovetail.config.config import Config
from dovetail.errors import RequestError
from dovetail.interfaces.renderer import Renderer, RendererFacts, RendererInput
from dovetail.server.generate.tools.parsers import choose_parsers
from dovetail_plugins.renderers._dsml import BEGIN
from dovetail_plugins.renderers.deepseek_v32 import CODE, TOOLS, DeepseekV32
from dovetail_testing.fakes.async_engine import CHATML, FakeFacts
from support.renderers import known, renderer_named

SYSTEM = {"role": "system", "content": "Be brief."}
HELLO = {"role": "user", "content": "hello"}
ANSWER = {"role": "assistant", "content": "Hello!", "reasoning_content": "A greeting."}
SUM = {"role": "user", "content": "1+1=?"}
TOOL = {
    "type": "function",
    "function": {"name": "weather", "description": "é", "parameters": {"type": "object"}},
}
SCHEMA = '{"name": "weather", "description": "é", "parameters": {"type": "object"}}'


def called(**arguments: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "weather", "arguments": arguments}}


CALLING = {
    "role": "assistant",
    "content": "I look.",
    "reasoning_content": "Two places.",
    "tool_calls": [called(city="Paris", days=2), called()],
}
RESULTS = [{"role": "tool", "content": "sun"}, {"role": "tool", "content": "rain"}]
WRITTEN_CALLS = (
    "I look.\n\n<｜DSML｜function_calls>\n"
    '<｜DSML｜invoke name="weather">\n'
    '<｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="days" string="false">2</｜DSML｜parameter>\n'
    '</｜DSML｜invoke>\n<｜DSML｜invoke name="weather">\n\n</｜DSML｜invoke>\n'
    "</｜DSML｜function_calls><｜end▁of▁sentence｜>"
)
WRITTEN_RESULTS = (
    "\n\n<function_results>\n<result>sun</result>\n<result>rain</result>\n</function_results>"
)


def renderer() -> Renderer:
    return renderer_named("deepseek_v32", known())


def prompt(*messages: dict[str, Any], **fields: Any) -> str:
    text = renderer().render(RendererInput(messages=messages, **fields))
    assert text.startswith(BEGIN)
    return text.removeprefix(BEGIN)


@pytest.mark.parametrize(
    ("variables", "opening"),
    [
        ({}, "</think>"),
        ({"thinking": True}, "<think>"),
        ({"enable_thinking": True}, "<think>"),
        ({"thinking": False, "enable_thinking": True}, "</think>"),
    ],
)
def test_thoughts_before_the_last_question_are_left_out(
    variables: dict[str, Any], opening: str
) -> None:
    assert prompt(SYSTEM, HELLO, ANSWER, SUM, variables=variables) == (
        "Be brief.<｜User｜>hello<｜Assistant｜></think>Hello!<｜end▁of▁sentence｜>"
        f"<｜User｜>1+1=?<｜Assistant｜>{opening}"
    )


@pytest.mark.parametrize(("system", "text"), [((SYSTEM,), "Be brief."), ((), "")])
def test_tools_stand_in_the_first_system_message(
    system: tuple[dict[str, Any], ...], text: str
) -> None:
    assert prompt(*system, HELLO, tools=[TOOL]) == (
        f"{text}\n\n{TOOLS}{SCHEMA}\n</functions>\n<｜User｜>hello<｜Assistant｜></think>"
    )


def test_thoughts_about_results_go_on_after_the_last_question() -> None:
    assert prompt(HELLO, CALLING, *RESULTS, variables={"thinking": True}) == (
        "<｜User｜>hello<｜Assistant｜><think>Two places.</think>"
        f"{WRITTEN_CALLS}{WRITTEN_RESULTS}\n\n<think>"
    )


def test_calls_before_the_last_question_have_no_thoughts() -> None:
    turns = (HELLO, CALLING, *RESULTS, ANSWER, SUM)
    assert prompt(*turns, variables={"thinking": True}) == (
        f"<｜User｜>hello<｜Assistant｜></think>{WRITTEN_CALLS}{WRITTEN_RESULTS}\n\n</think>"
        "Hello!<｜end▁of▁sentence｜><｜User｜>1+1=?<｜Assistant｜><think>"
    )


def test_the_opening_is_written_where_an_answer_follows_or_is_asked_for() -> None:
    assert prompt(HELLO, adds_generation_prompt=False) == "<｜User｜>hello"
    continued = prompt(HELLO, ANSWER, adds_generation_prompt=False)
    assert continued == "<｜User｜>hello<｜Assistant｜></think>Hello!<｜end▁of▁sentence｜>"


def test_results_without_a_call_are_refused() -> None:
    with pytest.raises(RequestError, match="needs a call"):
        prompt(HELLO, RESULTS[0])


def test_its_sample_finds_the_parsers() -> None:
    (sample,) = renderer().sources().values()
    choice = choose_parsers(Config(), sample)
    assert choice.tool is not None and choice.tool.name == "deepseek_v32"
    assert choice.reasoning is not None and choice.reasoning.name == "deepseek_v3"


@pytest.mark.parametrize(
    ("model_type", "has_code", "template", "fits"),
    [
        ("deepseek_v32", False, None, True),
        ("other", True, None, True),
        ("other", False, None, False),
        ("deepseek_v32", True, CHATML, False),
    ],
)
def test_auto_takes_it_for_its_model_without_a_template(
    tmp_path: Path, model_type: str, has_code: bool, template: str | None, fits: bool
) -> None:
    if has_code:
        (tmp_path / CODE).parent.mkdir()
        (tmp_path / CODE).write_text("raise SystemExit('nobody runs this')")
    facts = RendererFacts(
        path=str(tmp_path), model_type=model_type, tokenizer=FakeFacts(chat_template=template)
    )
    assert (not DeepseekV32.why_not(facts)) == fits
