"""A Python call that is broken does not take others with it, and none within another is made."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dovetail import registry
from dovetail.interfaces.data.text import Tool
from dovetail_testing.text_splits import Parsed, parse_in_pieces, random_cuts

TOOLS = tuple(Tool(name=name) for name in ("now", "find", "go"))
SYNTAXES = {
    "pythonic": ("[", ", ", "]"),
    "llama4_pythonic": ("<|python_start|>[", ", ", "]<|python_end|>"),
    "lfm2": ("<|tool_call_start|>[", ",\n  ", "]<|tool_call_end|>"),
    "olmo3": ("<function_calls>\n", "\n", "\n</function_calls>"),
    "gemma": ("```tool_code\n", "\n", "\n```"),
}
BROKEN = [
    "find(x)",
    "find('a', b=2)",
    "find(a=b)",
    "find(a=go())",
    "find(now(), go(), 3)",
    "find(a=1+2)",
    "find(a=[1)",
    "find(a=1]",
    "find(a: 1)",
    "find(q=it's)",
    'find(a=2 + ", go()")',
]
UNNAMED = ["find", "5", "find{a=1}"]


def _read(name: str, text: str) -> Parsed:
    parser: Any = registry.make(registry.choose("tool_parser", name))
    whole = parse_in_pieces([text], tool_parser=parser, tools=TOOLS)
    for pieces in random_cuts(text, seed=4, num=30):
        assert parse_in_pieces(pieces, tool_parser=parser, tools=TOOLS) == whole, pieces
    return whole


@pytest.mark.sampled
@pytest.mark.parametrize("name", list(SYNTAXES))
@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("bad", [*BROKEN, *UNNAMED])
def test_the_others_are_made_and_the_broken_one_is_content(name: str, place: int, bad: str) -> None:
    if place == 0 and bad in UNNAMED and name not in ("lfm2", "olmo3"):
        pytest.skip("text without a tag that does not begin like a call is prose")
    before, between, behind = SYNTAXES[name]
    items = ["now()", 'go(a="x")']
    items.insert(place, bad)
    got = _read(name, before + between.join(items) + behind)
    made = [(call.name, json.loads(call.arguments)) for call in got.calls]
    assert made == [("now", {}), ("go", {"a": "x"})]
    assert bad in got.content


@pytest.mark.parametrize("name", list(SYNTAXES))
def test_calls_within_a_broken_one_are_not_made(name: str) -> None:
    before, _, behind = SYNTAXES[name]
    for bad in ("find(now(), go())", "find(\n  now(),\n  go()\n)", "find(x, ', now(), go()')"):
        assert _read(name, before + bad + behind).calls == ()


def test_a_call_that_is_computed_with_is_none() -> None:
    assert _read("pythonic", "[now(), find(a=1) + go(b=2), go()] so").calls == (
        _read("pythonic", "[now(), go()]").calls
    )


def test_prose_in_brackets_is_soon_passed_on() -> None:
    parser: Any = registry.make(registry.choose("tool_parser", "pythonic"))
    text = "[f(x) is a function of x, and so is"
    with pytest.raises(ValueError, match="keyword"):
        parser.so_far(text, TOOLS)
