"""Strings of Python calls as models quote them: single, double, triple, within each other."""

from __future__ import annotations

import ast
import json
import random
from typing import Any

import pytest

from dovetail import registry
from dovetail_testing.text_splits import parse_in_pieces
from support.cut_texts import cuts

TAGGED = ("<|tool_call_start|>", "<|tool_call_end|>")


def _value(written: str, *, brackets: bool = True) -> Any:
    """Return the argument that LFM2 wrote so: the same wherever the text is cut."""
    parser: Any = registry.make(registry.choose("tool_parser", "lfm2"))
    call = f"f(a={written}, b=1)"
    text = (f"[{call}]" if brackets else call).join(TAGGED)
    whole = parse_in_pieces([text], tool_parser=parser)
    for pieces in cuts(text):
        assert parse_in_pieces(pieces, tool_parser=parser) == whole, pieces
    (made,) = whole.calls
    assert whole.content == ""
    arguments = json.loads(made.arguments)
    assert arguments["b"] == 1
    return arguments["a"]


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("'it's here'", "it's here"),
        ("'it's, here'", "it's, here"),
        ('"say "hi" now"', 'say "hi" now'),
        ('"she said "hi""', 'she said "hi"'),
        ("'''it's''''", "it's'"),
        ('"""He said "hi""""', 'He said "hi"'),
        ('"""a ""b"" c"""', 'a ""b"" c'),
        ("{'k': 'it's', \"q\": \"a 'b'\"}", {"k": "it's", "q": "a 'b'"}),
        ("['a', \"b's\", '''c\"d''']", ["a", "b's", 'c"d']),
        ('\'{"k": "v, w"}\'', '{"k": "v, w"}'),
        ("\"f(x='y')\"", "f(x='y')"),
    ],
)
def test_quotes_that_are_nearly_right(written: str, value: Any) -> None:
    assert _value(written) == value
    assert _value(written, brackets=False) == value


def test_quotes_that_are_right_are_pythons() -> None:
    """Against Python's own reading of random strings in every kind of quotes."""
    chance = random.Random(4)
    for _ in range(60):
        text = "".join(chance.choices(["'", '"', "a", " ", "\\", ",", ")", "\n", "é"], k=6))
        mark = chance.choice(("'", '"', "'''", '"""'))
        inside = text.replace("\\", "\\\\").replace(mark[0], "\\" + mark[0])
        written = mark + (inside if len(mark) > 1 else inside.replace("\n", "\\n")) + mark
        assert ast.literal_eval(written) == text
        assert _value(written) == text, written


def test_strings_in_a_row_are_one() -> None:
    assert _value('"a" "b"') == _value('"a""b"') == "ab"
    assert _value("''") == _value('""') == _value('""""""') == ""
