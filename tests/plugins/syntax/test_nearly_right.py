"""Values that are nearly in a syntax's notation, and the text around calls."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dovetail import registry
from dovetail.interfaces.data.text import Markers, Tool
from dovetail_testing.text_splits import Parsed, parse_in_pieces
from support.cut_texts import cuts

pytest.importorskip("dovetail_plugins")

LIST = Tool(
    name="find",
    parameters={
        "type": "object",
        "properties": {"tags": {"type": "array"}, "n": {"type": "integer"}},
    },
)
PYTHON = {
    "lfm2": "<|tool_call_start|>[{}]<|tool_call_end|>",
    "pythonic": "[{}]",
    "olmo3": "<function_calls>\n{}\n</function_calls>",
    "gemma": "```tool_code\n{}\n```",
}


def parsed(name: str, text: str, **fields: Any) -> Parsed:
    """Return what a text comes to, having seen that it does so in any pieces."""
    plugin = registry.load("tool_parser", name)
    parser = plugin(plugin.Options())
    whole = parse_in_pieces([text], tool_parser=parser, **fields)
    for pieces in cuts(text):
        assert parse_in_pieces(pieces, tool_parser=parser, **fields) == whole, pieces
    return whole


@pytest.mark.parametrize("name", PYTHON)
@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("07", 7),
        ("-007.50", -7.5),
        ("00", 0),
        ("{'a', 'b'}", ["a", "b"]),
        ("{1, 2,}", [1, 2]),
        ("{(1, 2)}", [[1, 2]]),
        ("{}", {}),
        ("{'a': {1}}", {"a": [1]}),
        ('"say "hi" to all"', 'say "hi" to all'),
        ("'it's here'", "it's here"),
        ("'a' 'b'", "ab"),
        ('["x "y" z", "w"]', ['x "y" z', "w"]),
    ],
)
def test_what_is_nearly_python(name: str, written: str, value: object) -> None:
    got = parsed(name, PYTHON[name].format(f"find(a={written}, b=1)"))
    assert got.content == ""
    assert [json.loads(call.arguments) for call in got.calls] == [{"a": value, "b": 1}]


@pytest.mark.parametrize("written", ["0x", "{1: 2, 3}", "{1, 2: 3}", "1 2", "a 'b'"])
def test_what_is_not_python_is_content(written: str) -> None:
    text = PYTHON["lfm2"].format(f"find(a={written})")
    got = parsed("lfm2", text)
    assert (got.content, got.calls) == (text, ())


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ('[\\"a\\", \\"b \\\\\\"c\\\\\\"\\"]', ["a", 'b "c"']),
        ('"[1, 2]"', [1, 2]),
        ('["a", "b"]', ["a", "b"]),
        ("[\\'a\\']", "[\\'a\\']"),
    ],
)
def test_lists_that_are_written_as_strings(written: str, value: object) -> None:
    for name, text in (
        ("glm45", "<tool_call>find<arg_key>tags</arg_key><arg_value>{}</arg_value></tool_call>"),
        ("qwen3_coder", "<tool_call><function=find><parameter=tags>\n{}\n</parameter></function>"
         "</tool_call>"),
    ):  # fmt: skip
        (call,) = parsed(name, text.replace("{}", written), tools=(LIST,)).calls
        assert json.loads(call.arguments) == {"tags": value}


@pytest.mark.parametrize(
    ("around", "content"),
    [
        ("Here:{}and more.", "Here:and more."),
        ("Here: {}and more.", "Here: and more."),
        ("Here:{} and more.", "Here: and more."),
        ("Here:\n\n{}\nand more.\n", "Here:\n\nand more.\n"),
        ("Here:\n{}\n{}\n\n", "Here:"),
        ("Here:\n{}\n{}\n\nand {}\nmore.", "Here:\nand more."),
        ("\n{}\nand more.", "and more."),
        (" {} ", ""),
    ],
)
def test_text_around_calls_stays_apart_as_it_was(around: str, content: str) -> None:
    call = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    got = parsed("hermes", around.replace("{}", call))
    assert got.content == content
    assert len(got.calls) == around.count("{}")


def test_thinking_between_words_leaves_them_apart() -> None:
    thinking = Markers(start="<think>", end="</think>", may_reopen=True)
    for text in ("one <think>hm</think>two", "one<think>hm</think>\n\ntwo"):
        got = parsed("hermes", text, reasoning=thinking)
        assert (got.content.split(), got.reasoning) == (["one", "two"], "hm")


def test_the_end_of_thinking_that_nobody_reads_is_content() -> None:
    call = '[{"name": "now", "arguments": {}}]'
    for thought in ("<think>why</think>", "why</think>"):
        got = parsed("xlam", f"{thought}\n{call}")
        assert (got.content, len(got.calls)) == (thought, 1)
    for text in ("</think>", "why</think>", "why</think> [1] is it"):
        assert parsed("xlam", text) == Parsed(content=text, reasoning="")
