"""Apertus and MiniMax-M3: a call that is broken does not take others with it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dovetail import registry
from dovetail.interfaces.data.text import Tool
from dovetail_testing.text_splits import Parsed, parse_in_pieces, random_cuts

TOOLS = tuple(Tool(name=name) for name in ("now", "find", "go"))
M = "]<]minimax[>["
GOOD = {
    "minimax_m3": (
        f'{M}<invoke name="now">{M}</invoke>',
        f'{M}<invoke name="go">{M}<a>1{M}</a>{M}</invoke>',
    ),
    "apertus": ('{"now": {}}', '{"go": {"a": 1}}'),
}
AROUND = {
    "minimax_m3": (f"{M}<tool_call>\n", "\n", f"\n{M}</tool_call>"),
    "apertus": ("<|tools_prefix|>[", ", ", "]<|tools_suffix|>"),
}
BROKEN = [
    ("minimax_m3", f'{M}<invoke name="find">{M}<a>x{M}</a> text {M}</invoke>'),
    ("minimax_m3", f'{M}<invoke nme="find">{M}<a>x{M}</a>{M}</invoke>'),
    ("minimax_m3", f'{M}<invoke name="find">{M}<a>x{M}</b>{M}</invoke>'),
    ("minimax_m3", f'{M}<invoke name="find">{M}<a>x{M}</invoke>'),
    ("minimax_m3", f'{M}<invoke name="find">{M}<a>x{M}<b>1{M}</b>{M}</a>{M}</invoke>'),
    ("minimax_m3", f"{M}</x>"),
    ("apertus", '{"find": {x: 1}}'),
    ("apertus", '{"find": 5}'),
    ("apertus", '{"find": {"a": "b"c"}}'),
    ("apertus", '{"find": [1]}'),
    ("apertus", "{5: {}}"),
    ("apertus", '{"find": {x: [{"a": {}}, {"b": {"c": 1}}]}}'),
]


def _read(name: str, text: str) -> Parsed:
    parser: Any = registry.make(registry.choose("tool_parser", name))
    whole = parse_in_pieces([text], tool_parser=parser, tools=TOOLS)
    for pieces in random_cuts(text, seed=5, num=40):
        assert parse_in_pieces(pieces, tool_parser=parser, tools=TOOLS) == whole, pieces
    return whole


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize(("name", "bad"), BROKEN)
def test_the_others_are_made_and_the_broken_one_is_content(name: str, bad: str, place: int) -> None:
    before, between, behind = AROUND[name]
    items = list(GOOD[name])
    items.insert(place, bad)
    got = _read(name, before + between.join(items) + behind)
    made = [(call.name, json.loads(call.arguments)) for call in got.calls]
    assert made == [("now", {}), ("go", {"a": 1})]
    assert bad in got.content


def test_text_between_calls_is_content() -> None:
    before, _, behind = AROUND["minimax_m3"]
    got = _read("minimax_m3", before + " and\n".join(GOOD["minimax_m3"]) + behind)
    assert [call.name for call in got.calls] == ["now", "go"]
    assert got.content.strip() == "and"


def test_a_call_whose_end_is_missing_is_over_where_the_next_begins() -> None:
    before, _, behind = AROUND["minimax_m3"]
    open_one = f'{M}<invoke name="find">{M}<a>1{M}</a>'
    got = _read("minimax_m3", before + open_one + GOOD["minimax_m3"][0] + behind)
    assert [call.name for call in got.calls] == ["find", "now"]


def test_a_head_alone_is_no_call_without_arguments() -> None:
    before, _, behind = AROUND["minimax_m3"]
    head = f'{M}<invoke name="find">'
    got = _read("minimax_m3", before + head + GOOD["minimax_m3"][0] + behind)
    assert ([call.name for call in got.calls], got.content) == (["now"], head)
