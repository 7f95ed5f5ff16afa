"""Tool parsers of the JSON families: transcripts beyond their samples, ids, constraints, special
tokens.

The transcripts are written after the families' chat templates and model cards.
"""

from __future__ import annotations

import json
from types import MappingProxyType

import pytest

from dovetail import registry
from dovetail.interfaces.data.text import Tool
from dovetail.interfaces.tool_parser import ToolParser
from dovetail.server.generate.body.chat import ChatRequest
from dovetail.server.generate.events import Collected, Session, SessionPlan
from dovetail.server.generate.tools.tool_choice import texts_in_use, tool_constraint
from dovetail_testing.constraint_examples import example
from dovetail_testing.text_splits import parse_in_pieces

NAMES = (
    "deepseek_v3", "deepseek_v31", "granite", "granite-20b-fc", "hermes", "hunyuan_a13b",
    "internlm", "jamba", "kimi_k2", "llama3_json", "llama4_json", "minimax", "mistral",
    "phi4_mini_json", "xlam",
)  # fmt: skip
SCHEMA = MappingProxyType({"type": "object", "properties": {"a": {"type": "integer"}}})
ARGUMENTS = '{ "a":1.50,\n "b": "\\u00e9 \\" } ] ;" }'
V3 = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>"
V3_END = "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
KIMI, KIMI_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"

TRANSCRIPTS: list[tuple[str, str, list[tuple[str, str]], str]] = [
    # parser, text, calls, content
    ("deepseek_v3", f"{V3}function<｜tool▁sep｜>f\n```json\n{ARGUMENTS}\n```{V3_END}",
     [("f", ARGUMENTS)], ""),
    ("deepseek_v3", f"{V3}function<｜tool▁sep｜>f\n```json\n{ARGUMENTS}{V3_END}",
     [("f", ARGUMENTS)], ""),
    ("deepseek_v31", f"a{V3}f<｜tool▁sep｜>{ARGUMENTS}{V3_END}b", [("f", ARGUMENTS)], "ab"),
    ("deepseek_v31", f"{V3}f g<｜tool▁sep｜>{{}}{V3_END}", [],
     f"{V3}f g<｜tool▁sep｜>{{}}{V3_END}"),
    ("granite", f'<tool_call>[{{"name": "f", "arguments": {ARGUMENTS}}}]', [("f", ARGUMENTS)], ""),
    ("granite", '<|tool_call|>[{"name": "f"}] and on', [("f", "{}")], "and on"),
    ("granite-20b-fc", f'<function_call> {{"name": "f", "arguments": {ARGUMENTS}}}\n\n'
     '<function_call> {"name": "g", "arguments": {}}', [("f", ARGUMENTS), ("g", "{}")], ""),
    ("hunyuan_a13b", f'<tool_calls>[{{"name": "f", "arguments": {ARGUMENTS}}}]</tool_calls>',
     [("f", ARGUMENTS)], ""),
    ("internlm", f'<|action_start|><|plugin|>{{"name": "f", "parameters": {ARGUMENTS}}}'
     "<|action_end|>", [("f", ARGUMENTS)], ""),
    ("internlm", "<|action_start|><|interpreter|>\nprint(1)<|action_end|>", [],
     "<|action_start|><|interpreter|>\nprint(1)<|action_end|>"),
    ("jamba", '<tool_calls>[\n{"name": "f", "arguments": "{\\"a\\": 1}"}\n]</tool_calls>',
     [("f", '{"a": 1}')], ""),
    ("kimi_k2", f"{KIMI}<|tool_call_begin|>f:3<|tool_call_argument_begin|>{ARGUMENTS}"
     f"<|tool_call_end|>{KIMI_END}", [("f", ARGUMENTS)], ""),
    ("llama3_json", f'{{"name": "f", "parameters": {ARGUMENTS}}};'
     '{"name": "g", "parameters": {}}', [("f", ARGUMENTS), ("g", "{}")], ""),
    ("llama3_json", '<|python_tag|>{"name": "f", "parameters": {}}\n'
     '{"name": "g", "parameters": {}}', [("f", "{}"), ("g", "{}")], ""),
    ("llama3_json", '<|python_tag|>brave_search.call(query="x")', [],
     '<|python_tag|>brave_search.call(query="x")'),
    ("llama3_json", '{"answer": {"name": "f", "parameters": {}}}', [],
     '{"answer": {"name": "f", "parameters": {}}}'),
    ("llama4_json", '<|python_start|>{"name": "f", "parameters": {}}<|python_end|> so',
     [("f", "{}")], "so"),
    ("minimax", '<tool_calls>\n{"name": "f", "arguments": {"a": 1}}\n{"name": "g", "arguments": {}}'
     "\n</tool_calls>", [("f", '{"a": 1}'), ("g", "{}")], ""),
    ("mistral", f'[TOOL_CALLS] [{{"name": "f", "arguments": {ARGUMENTS}}}]',
     [("f", ARGUMENTS)], ""),
    ("mistral", f"so[TOOL_CALLS]f[ARGS]{ARGUMENTS}[TOOL_CALLS]g[ARGS]{{}} on",
     [("f", ARGUMENTS), ("g", "{}")], "so on"),
    ("mistral", "[TOOL_CALLS]f{}", [("f", "{}")], ""),
    ("phi4_mini_json", f'functools[{{"name": "f", "arguments": {ARGUMENTS}}}]',
     [("f", ARGUMENTS)], ""),
    ("phi4_mini_json", "import functools\nfunctools[0]", [], "import functools\nfunctools[0]"),
    ("xlam", f'why</think>\n[{{"name": "f", "arguments": {ARGUMENTS}}}]',
     [("f", ARGUMENTS)], "why</think>"),
    ("xlam", '```json\n{"name": "f", "arguments": {}}\n```', [("f", "{}")], ""),
    ("xlam", '```json\n{"colour": "red"}\n```', [], '```json\n{"colour": "red"}\n```'),
    ("xlam", "[]", [], "[]"),
    ("hermes", '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n', [("f", '{"a": 1}')], ""),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1} oops}</tool_call> on',
     [("f", '{"a": 1}')], "on"),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": ' + "1" * 5000 + "}}</tool_call>",
     [("f", '{"a": ' + "1" * 5000 + "}")], ""),
]  # fmt: skip


def made(name: str) -> ToolParser:
    plugin = registry.load("tool_parser", name)
    parser: ToolParser = plugin(plugin.Options())  # type: ignore[operator]
    return parser


@pytest.mark.parametrize(("name", "text", "calls", "content"), TRANSCRIPTS)
def test_transcripts(name: str, text: str, calls: list[tuple[str, str]], content: str) -> None:
    for pieces in ([text], list(text), [text[i : i + 7] for i in range(0, len(text), 7)]):
        got = parse_in_pieces(pieces, tool_parser=made(name))
        assert [(call.name, call.arguments) for call in got.calls] == calls
        assert got.content == content


def ids(name: str, text: str) -> list[str]:
    session, answer = Session(SessionPlan(tool_parser=made(name))), Collected()
    for letter in text:
        answer.add(session.feed(letter))
    answer.add(session.finish())
    return [call.call_id for call in answer.calls]


def test_ids_are_the_models_own_where_it_writes_them() -> None:
    call = "<|tool_call_begin|>{}<|tool_call_argument_begin|>{{}}<|tool_call_end|>"
    text = KIMI + call.format("functions.f:0") + call.format("functions.g.h:12") + KIMI_END
    assert ids("kimi_k2", text) == ["functions.f:0", "functions.g.h:12"]
    assert ids("mistral", "[TOOL_CALLS]f[CALL_ID]a1B2c3D4e[ARGS]{}") == ["a1B2c3D4e"]


def test_other_ids_have_the_shape_that_templates_take() -> None:
    first, second = ids("mistral", "[TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]f[ARGS]{}")
    assert first != second
    assert all(len(made) == 9 and made.isalnum() for made in (first, second))
    (other,) = ids("hermes", '<tool_call>{"name": "f"}</tool_call>')
    assert other.startswith("call_")
    assert len(other) == 29


@pytest.mark.parametrize("name", NAMES)
def test_a_json_answer_is_not_held_back(name: str) -> None:
    """Also where calls have no tag, an answer in JSON is seen to be none before it ends."""
    session, answer = Session(SessionPlan(tool_parser=made(name))), Collected()
    answer.add(session.feed('{"colour": "red", "sizes": [1, 2, 3], "more": {"a": "'))
    assert answer.content.startswith('{"colour": "red"')


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("is_parallel", [False, True])
def test_strict_tools_hold_what_follows_the_marker(name: str, is_parallel: bool) -> None:
    """What a strict tool's constraint allows after the opening marker is a call of that tool."""
    function = {"name": "add", "parameters": dict(SCHEMA), "strict": True}
    body = ChatRequest.model_validate(
        {
            "model": "m",
            "messages": [{"role": "user", "content": "hi"}],
            "tools": [{"type": "function", "function": function}],
            "parallel_tool_calls": is_parallel,
        }
    )
    parser = made(name)
    constraint = tool_constraint(body, parser)
    assert constraint is not None
    if constraint.constraint is not None:
        text = example(constraint.constraint.parts[1], {"a": 1})  # type: ignore[union-attr]
    else:
        ((marker, constraint),) = constraint.tags
        text = marker + example(constraint, {"a": 1})
    got = parse_in_pieces([text], tool_parser=parser, tools=(Tool(name="add"),))
    assert not got.content
    assert {(call.name, call.arguments) for call in got.calls} == {("add", '{"a": 1}')}
    assert len(got.calls) == 1 or is_parallel


def test_texts_within_regions_are_kept_where_they_are_special_tokens() -> None:
    inner = {
        "deepseek_v31": "<｜tool▁sep｜>",
        "kimi_k2": "<|tool_call_argument_begin|>",
        "mistral": "[ARGS]",
    }
    for name, text in inner.items():
        assert text in texts_in_use(SessionPlan(tool_parser=made(name)))


@pytest.mark.parametrize("name", NAMES)
def test_arguments_come_while_they_are_written(name: str) -> None:
    """Half of a long argument is passed on before the other half was written."""
    parser = made(name)
    sample = next(s for s in parser.samples if s.calls and not s.calls[0].arguments.endswith("}"))
    session, answer = Session(SessionPlan(tool_parser=parser)), Collected()
    answer.add(session.feed(sample.text + "ris" * 50))
    answer.add(session.feed("ris" * 50))
    assert len(answer.calls[0].arguments) > 150


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("hermes", '<tool_call>{"name": "f", "arguments": ', "}</tool_call>"),
        ("mistral", "[TOOL_CALLS]f[ARGS]", ""),
        ("llama3_json", '{"name": "f", "parameters": ', "}"),
    ],
)
def test_line_ends_in_strings_are_escaped(name: str, before: str, after: str) -> None:
    """Models write them as they are; no client's reader of JSON takes them."""
    text = before + '{"t":\n "a\nb\\"\t\x01",\t"u": "\\n"}' + after
    told = '{"t":\n "a\\nb\\"\\t\\u0001",\t"u": "\\n"}'
    assert json.loads(told) == {"t": 'a\nb"\t\x01', "u": "\n"}
    for size in (1, 2, 3, 7, len(text)):
        session, answer = Session(SessionPlan(tool_parser=made(name))), Collected()
        for at in range(0, len(text), size):
            answer.add(session.feed(text[at : at + size]))
        answer.add(session.finish())
        assert [(call.name, call.arguments) for call in answer.calls] == [("f", told)]
