"""Tool parsers beyond their contract: many random cuts, odd bodies, the model's own bytes."""

from __future__ import annotations

import json
import random

import pytest

from dovetail.interfaces.tool_parser import MalformedToolCall, UnfinishedToolCall
from dovetail.testing.cuts import Parsed, parse_in_pieces
from dovetail_plugins.tool_parsers.hermes import Hermes

NUM_CUTS = 2500
ODD_CALL = (
    '<tool_call>{"name": "g", "arguments": '
    '{"t": "a \\"</tool_call>\\" \\u00e9 ☃", "n": [1.0, {}]}}</tool_call>'
)
PARTS = (
    "text before ", "\n\n", '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>', ODD_CALL,
    "<tool_call>broken</tool_call>", "<tool", "</tool_call>", "<think>no</think>", "☃",
    '<tool_call>{"name": "cut", "argu',
)  # fmt: skip


def parsed(pieces: list[str]) -> Parsed:
    return parse_in_pieces(pieces, tool_parser=Hermes(None))


def test_random_cuts_of_random_texts() -> None:
    chance = random.Random(0)
    num_calls = 0
    for _ in range(NUM_CUTS // 10):
        text = "".join(chance.choices(PARTS, k=chance.randint(1, 6)))
        whole = parsed([text])
        num_calls += len(whole.calls)
        for _ in range(10):
            places = sorted(chance.choices(range(len(text) + 1), k=chance.randint(1, 30)))
            pieces = [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]
            assert parsed(pieces) == whole, pieces
        assert all(isinstance(json.loads(call.arguments), dict) for call in whole.calls)
    assert num_calls > 100


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        (
            '{"name": "f", "arguments": {"x":  1.50, "y": "\\u00e9"}}',
            '{"x":  1.50, "y": "\\u00e9"}',
        ),
        ('{"arguments": {"a": {}}, "name": "f"}', '{"a": {}}'),
        ('{"name": "f"}', "{}"),
        (' \n{"name":"f","arguments":{"name":"x","arguments":2}} ', '{"name":"x","arguments":2}'),
        ('{"name": "f", "extra": [1, "a}"], "arguments": {"b": null}}', '{"b": null}'),
    ],
)
def test_arguments_keep_the_models_bytes(body: str, arguments: str) -> None:
    (call,) = Hermes(None).parse(body, ())
    assert (call.name, call.arguments) == ("f", arguments)


@pytest.mark.parametrize(
    "body",
    ["", "{}", "[]", "{", '{"name": ""}', '{"name": 1}', '{"name": "f", "arguments": [1]}',
     '{"name": "f", "arguments": {"x": NaN}}', "[" * 100_000, "{'name': 'f'}"],
)  # fmt: skip
def test_bodies_that_are_no_call(body: str) -> None:
    with pytest.raises(MalformedToolCall):
        Hermes(None).parse(body, ())


def test_an_open_string_may_hold_the_end_marker() -> None:
    with pytest.raises(UnfinishedToolCall):
        Hermes(None).parse('{"name": "f", "arguments": {"a": "</tool_call>', ())
