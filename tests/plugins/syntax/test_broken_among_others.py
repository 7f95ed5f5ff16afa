"""A call that is broken does not take others with it, and none is made without its arguments."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dovetail import registry
from dovetail.interfaces.data.text import Tool
from dovetail_testing.text_splits import Parsed, parse_in_pieces, random_cuts

TOOLS = tuple(Tool(name=name) for name in ("now", "find", "go"))
LISTS = {
    "hermes": ("<tool_call>[", ", ", "]</tool_call>"),
    "jamba": ("<tool_calls>[", ",\n  ", "]</tool_calls>"),
    "minimax": ("<tool_calls>\n", "\n", "\n</tool_calls>"),
    "granite": ("<|tool_call|>[", ", ", "]"),
    "mistral": ("[TOOL_CALLS][", ",", "]"),
    "phi4_mini_json": ("functools[", ", ", "]"),
    "cohere_command4": ("<|START_ACTION|>[\n    ", ",\n    ", "\n]<|END_ACTION|>"),
}
BROKEN = [
    '{"NAME": "find", "ARGS": {x: 1}}',
    '{"NAME": "find", "ARGS": {"a": "b"c"}}',
    '{"NAME": "find", "ARGS": [1]}',
    '{"NAME": "find", "ARGS": "{\\"a\\": "}',
    '{"NAME": 5, "ARGS": {}}',
    '{"NAME": "find", "ARGS": {"a": {"b": 1}}, }',
]


def _good(name: str, function: str) -> str:
    return _named(name, f'{{"NAME": "{function}", "ARGS": {{"a": 1}}}}')


def _named(name: str, text: str) -> str:
    words = ("tool_name", "parameters") if name == "cohere_command4" else ("name", "arguments")
    return text.replace("NAME", words[0]).replace("ARGS", words[1])


def _read(name: str, text: str, *, is_cut: bool = False) -> Parsed:
    parser: Any = registry.make(registry.choose("tool_parser", name))
    whole = parse_in_pieces([text], tool_parser=parser, tools=TOOLS, is_cut=is_cut)
    for pieces in random_cuts(text, seed=3, num=25):
        cut = parse_in_pieces(pieces, tool_parser=parser, tools=TOOLS, is_cut=is_cut)
        assert cut == whole, pieces
    return whole


CASES = [
    (name, place, bad)
    for name in LISTS
    for place in (0, 1, 2)
    for bad in [_named(name, text) for text in BROKEN]
]


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(("name", "place", "bad"), CASES)
def test_the_others_are_made(name: str, place: int, bad: str) -> None:
    before, between, behind = LISTS[name]
    items = [_good(name, "now"), _good(name, "go")]
    items.insert(place, bad)
    got = _read(name, before + between.join(items) + behind)
    made = [(call.name, json.loads(call.arguments)) for call in got.calls]
    broken_too = [("find", {"a": {"b": 1}})] if '{"b": 1}}, }' in bad else []
    expected = [("now", {"a": 1}), ("go", {"a": 1})]
    expected[place:place] = broken_too
    assert made == expected


@pytest.mark.parametrize("name", ["hermes", "longcat", "gigachat3", "internlm", "minimax"])
@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ('{"name": "go", "parameters": {"a": 1}}', {"a": 1}),
        ('{"name": "go", "arguments": null, "parameters": {"a": 1}}', {"a": 1}),
        ('{"name": "go", "arguments": {}, "parameters": {"a": 1}}', {"a": 1}),
        ('{"name": "go", "parameters": {}, "arguments": { }}', {}),
        ('{"parameters": {}, "name": "go", "arguments": {"a": 1}}', {"a": 1}),
        ('{"name": "go", "arguments": {}', {}),
        ('{"name": "go", "id": "7"}', {}),
        ('{"name": "go"}', {}),
        ('{"name": "go", "arguments": null}', {}),
        ('{"name": "go", "input": {"a": 1}}', None),
        ('{"name": "go", "a": 1}', None),
        ('{"a": 1, "name": "go"}', None),
        ('{"name": "go", "arguments": null, "a": 1}', None),
        ('{"name": "go", "arguments": "", "args": {"a": 1}}', None),
    ],
)
def test_what_is_left_over_is_no_call(
    name: str, written: str, arguments: dict[str, Any] | None
) -> None:
    around = {
        "hermes": ("<tool_call>\n", "\n</tool_call>"),
        "longcat": ("<longcat_tool_call>\n", "\n</longcat_tool_call>"),
        "gigachat3": ("function call<|role_sep|>\n", ""),
        "internlm": ("<|action_start|><|plugin|>", "<|action_end|>"),
        "minimax": ("<tool_calls>\n", "\n</tool_calls>"),
    }[name]
    got = _read(name, written.join(around))
    if arguments is None:
        assert (got.calls, got.content.strip()) == ((), written.join(around).strip())
    else:
        assert [json.loads(call.arguments) for call in got.calls] == [arguments]


def test_text_within_a_broken_string_is_not_executed() -> None:
    bad = '{"name": "find", "arguments": {"a": "say "{"name": "go", "arguments": {}}" now"}}'
    assert _read("hermes", f"<tool_call>{bad}</tool_call>").calls == ()
    nested = '{"name": "find", "arguments": {x: [{"name": "a"}, {"name": "go"}]}}'
    assert _read("hermes", f"<tool_call>[{nested}]</tool_call>").calls == ()
