"""Hy3's checkpoints write every tag with a suffix of their own, which their vocabulary has."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from dovetail import registry
from dovetail.interfaces.data.text import Tool
from dovetail_plugins.syntax.tag_suffixes import suffixed
from dovetail_testing.text_splits import parse_in_pieces
from support.cut_texts import cuts

TAGS = (
    "<think>", "</think>", "<tool_calls>", "</tool_calls>", "<tool_call>", "</tool_call>",
    "<tool_sep>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",
)  # fmt: skip
TEXT = (
    "<think>hm</think>Look.<tool_calls>\n<tool_call>find<tool_sep>\n<arg_key>city</arg_key>\n"
    "<arg_value>a <b></arg_value>\n</tool_call>\n</tool_calls>"
)


def _bound(kind: str, suffix: str) -> Any:
    texts = frozenset(suffixed(tag, suffix) for tag in TAGS)
    tokenizer: Any = SimpleNamespace(added_texts=lambda: texts)
    parser: Any = registry.make(registry.choose(kind, "hy_v3"))
    return parser.bound(tokenizer)


@pytest.mark.parametrize("suffix", ["", ":opensource", ":6124c78e"])
def test_tags_are_the_vocabularys(suffix: str) -> None:
    tool, reasoning = _bound("tool_parser", suffix), _bound("reasoning_parser", suffix)
    tools = (Tool(name="find", parameters={"properties": {"city": {"type": "string"}}}),)
    text = suffixed(TEXT, suffix).replace(f"<b{suffix}>", "<b>")
    for pieces in cuts(text):
        got = parse_in_pieces(pieces, tool_parser=tool, tools=tools, reasoning=reasoning.markers)
        assert (got.reasoning, got.content) == ("hm", "Look.")
        assert [json.loads(call.arguments) for call in got.calls] == [{"city": "a <b>"}]


def test_a_call_can_be_forced_in_these_tags() -> None:
    tool = _bound("tool_parser", ":x1")
    written = str(tool.calls_constraint(tool.constraint(Tool(name="find")), 1))
    assert "<tool_calls:x1>" in written
    assert "<tool_sep:x1>" in written
