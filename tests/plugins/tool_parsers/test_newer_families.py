"""Newer families: transcripts written after their chat templates, and the names users bring."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dovetail import registry
from dovetail.interfaces.data.text import Tool
from dovetail_testing.text_splits import parse_in_pieces
from support.cut_texts import cuts

TOOL = Tool(
    name="find",
    parameters={
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "tags": {"type": "array", "items": {"type": "integer"}},
            "deep": {
                "type": "object",
                "properties": {"on": {"type": "boolean"}, "name": {"type": "string"}},
            },
        },
    },
)
NS = "]<]minimax[>["
D = "｜DSML｜"
OPEN, S, C = "<|open|>", "<|sep|>", "<|close|>"
TRANSCRIPTS = [
    # tool parser, reasoning parser, text, reasoning, content, arguments of calls of find
    ("deepseek_v32", "deepseek_v32",
     f'<think>hm</think>\n\n<{D}function_calls>\n<{D}invoke name="find">\n<{D}parameter name='
     f'"city" string="true">12</{D}parameter>\n<{D}parameter name="x" string="true">12'
     f'</{D}parameter>\n<{D}parameter name="y" string="false">[1, 2]</{D}parameter>\n</{D}invoke>\n'
     f"</{D}function_calls>", "hm", "", [{"city": "12", "x": "12", "y": [1, 2]}]),
    ("deepseek_v4", "deepseek_v4",
     f'Look.\n\n<{D}tool_calls>\n<{D}invoke name="find">\n</{D}invoke>\n<{D}invoke name="find">\n'
     f'<{D}parameter name="days" string="false">2</{D}parameter>\n</{D}invoke>\n</{D}tool_calls>',
     "", "Look.", [{}, {"days": 2}]),
    ("kimi_k3", "kimi_k3",
     f"{OPEN}think{S}hm{C}think{S}{OPEN}response{S}Look.{C}response{S}{OPEN}tools{S}"
     f'{OPEN}call tool="find" index="1"{S}{OPEN}argument key="city" type="string"{S}a <b> & "c"'
     f'{C}argument{S}{OPEN}argument key="x" type="string"{S}7{C}argument{S}'
     f'{OPEN}argument key="y" type="null"{S}null{C}argument{S}'
     f"{C}call{S}{C}tools{S}{C}message{S}<|end_of_msg|>", "hm", "Look.",
     [{"city": 'a <b> & "c"', "x": "7", "y": None}]),
    ("minimax_m3", "minimax_m3",
     f"<mm:think>hm</mm:think>Look.{NS}<tool_call>\n{NS}<invoke name=\"find\">{NS}<city>a<b> c"
     f"{NS}</city>{NS}<tags>{NS}<item>1{NS}</item>{NS}<item>2{NS}</item>{NS}</tags>{NS}<deep>{NS}"
     f"<on>true{NS}</on>{NS}<name>7{NS}</name>{NS}</deep>{NS}</invoke>\n{NS}</tool_call>",
     "hm", "Look.", [{"city": "a<b> c", "tags": [1, 2], "deep": {"on": True, "name": "7"}}]),
    ("gemma4", "gemma4",
     '<|channel>thought\nhm\n<channel|>Look.<|tool_call>call:find{city:<|"|>a "b", {c}<|"|>,days:2,'
     'tags:[1,2],deep:{<|"|>on<|"|>:true,name:<|"|>7<|"|>}}<tool_call|>', "hm", "Look.",
     [{"city": 'a "b", {c}', "days": 2, "tags": [1, 2], "deep": {"on": True, "name": "7"}}]),
    ("gigachat3", None,
     'Look.<|message_sep|>\n\nfunction call<|role_sep|>\n{"name": "find", "arguments": {"days": 2}}'
     "<|message_sep|>\n\n", "", "Look.", [{"days": 2}]),
    ("apertus", "apertus",
     '<|inner_prefix|>hm<|inner_suffix|>Look.<|tools_prefix|>[{"find": {"days": 2}}, {"find": {}}]'
     "<|tools_suffix|>", "hm", "Look.", [{"days": 2}, {}]),
    ("cohere_command3", "cohere_command3",
     '<|START_THINKING|>hm<|END_THINKING|><|START_ACTION|>[\n    {"tool_call_id": "0", '
     '"tool_name": "find", "parameters": {"days": 2}}\n]<|END_ACTION|>', "hm", "", [{"days": 2}]),
    ("cohere_command4", "cohere_command4",
     "<|START_THINKING|>hm<|END_THINKING|><|START_TEXT|>Look.<|END_TEXT|><|START_ACTION|>"
     '{"tool_name": "find", "parameters": {}}<|END_ACTION|>', "hm", "Look.", [{}]),
    ("ernie45", "ernie45",
     'hm\n</think>\n\n<tool_call>\n{"name": "find", "arguments": {"days": 2}}\n</tool_call>\n',
     "hm", "", [{"days": 2}]),
    ("ernie45", "ernie45", "hm\n</think>\n\n<response>\nLook.\n</response>", "hm", "Look.", []),
    ("hy_v3", "hy_v3",
     "<think>hm</think>Look.<tool_calls>\n<tool_call>find<tool_sep>\n<arg_key>city</arg_key>\n"
     "<arg_value>12</arg_value>\n<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>\n"
     "<tool_call>find<tool_sep>\n</tool_call>\n</tool_calls>", "hm", "Look.",
     [{"city": "12", "days": 2}, {}]),
    ("longcat", "longcat",
     '<longcat_think>\nhm\n</longcat_think>\n<longcat_tool_call>{"name": "find", "arguments": '
     '{"days": 2}}</longcat_tool_call>\n<longcat_tool_call>find\n<longcat_arg_key>city'
     "</longcat_arg_key>\n<longcat_arg_value>12</longcat_arg_value>\n</longcat_tool_call>", "hm",
     "", [{"days": 2}, {"city": "12"}]),
    ("minicpm5", "minicpm5",
     '<think>hm</think>\n<function name="find"><param name="city"><![CDATA[a\n</param> b]]></param>'
     '<param name="days">2</param></function>\n<function name="find"></function>', "hm", "",
     [{"city": "a\n</param> b", "days": 2}, {}]),
    ("dots", None,
     '<dots_function_call>\n<invoke name="find">\n<parameter name="city">12</parameter>\n'
     "</invoke>\n</dots_function_call>", "", "", [{"city": "12"}]),
    ("apriel", "apriel",
     'hm\n[BEGIN FINAL RESPONSE]\nLook.\n<tool_calls>[{"name": "find", "arguments": {"days": 2}, '
     '"id": "1"}]</tool_calls>\n[END FINAL RESPONSE]', "hm", "Look.", [{"days": 2}]),
    ("granite4", "granite",
     '<tool_call>\n{"name": "find", "arguments": {"days": 2}}\n</tool_call>', "", "",
     [{"days": 2}]),
    ("glm47", "glm47",
     "<think>hm</think><tool_call>find<arg_key>days</arg_key><arg_value>2</arg_value></tool_call>",
     "hm", "", [{"days": 2}]),
    ("poolside_v1", "poolside_v1",
     "<think>hm</think>\n<tool_call>find\n<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n"
     "</tool_call>", "hm", "", [{"days": 2}]),
    *((name, name,
       "<think>hm</think>\n<tool_call>\n<function=find>\n<parameter=days>\n2\n</parameter>\n"
       "</function>\n</tool_call>", "hm", "", [{"days": 2}])
      for name in ("step3p5", "mimo", "nemotron_v3")),
    ("qwen3_json", "holo2",
     '<think>hm</think>\n<tool_call>\n{"name": "find", "arguments": {"days": 2}}\n</tool_call>',
     "hm", "", [{"days": 2}]),
]  # fmt: skip


def made(kind: str, name: str) -> Any:
    plugin = registry.load(kind, name)
    return plugin(plugin.Options())


@pytest.mark.parametrize(
    ("name", "reasoning_name", "text", "reasoning", "content", "arguments"), TRANSCRIPTS
)
def test_transcripts(
    name: str,
    reasoning_name: str | None,
    text: str,
    reasoning: str,
    content: str,
    arguments: list[dict[str, object]],
) -> None:
    parser = made("tool_parser", name)
    thinking = made("reasoning_parser", reasoning_name) if reasoning_name else None
    for pieces in cuts(text):
        got = parse_in_pieces(
            pieces,
            tool_parser=parser,
            tools=(TOOL,),
            reasoning=thinking.markers if thinking else None,
            starts_inside=thinking.starts_inside("user: ") if thinking else False,
            layout=thinking.layout if thinking else (),
        )
        assert (got.reasoning, got.content) == (reasoning, content)
        assert {call.name for call in got.calls} <= {"find"}
        assert [json.loads(call.arguments) for call in got.calls] == arguments


@pytest.mark.parametrize(
    "inside",
    [
        f"{NS}<city>a{NS}</days>",
        f"{NS}</city>",
        f"{NS}<city>a",
        "text",
        f"{NS}<deep>b{NS}<on>true{NS}</on>{NS}</deep>",
    ],
)
def test_nested_tags_that_do_not_fit_are_no_call(inside: str) -> None:
    text = f'{NS}<tool_call>{NS}<invoke name="find">{inside}{NS}</invoke>{NS}</tool_call>'
    for pieces in cuts(text):
        got = parse_in_pieces(pieces, tool_parser=made("tool_parser", "minimax_m3"), tools=(TOOL,))
        assert (got.content, got.calls) == (text, ())


def test_the_names_of_a_syntax_are_one_parser() -> None:
    for kind, names in (
        ("tool_parser", ("qwen3_coder", "qwen3_xml", "step3p5", "mimo", "nemotron_v3")),
        ("tool_parser", ("hermes", "qwen3_json", "ernie45")),
        ("tool_parser", ("glm45", "glm47", "poolside_v1", "glm4_moe")),
        ("reasoning_parser", ("qwen3", "holo2", "nemotron_v3", "step3p5")),
    ):
        assert len({registry.load(kind, name) for name in names}) == 1
