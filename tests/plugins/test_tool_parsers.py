"""Every registered tool parser beyond its contract: many random cuts of hostile texts, long texts.

`python tests/support/parser_fuzz.py 10000` tries more of the same.
"""

from __future__ import annotations

import pytest

from dovetail.interfaces.tool_parser import MalformedToolCall, ToolParser, UnfinishedToolCall
from dovetail_plugins.tool_parsers.hermes import Hermes
from support.parser_fuzz import longest_s, mismatches, registered
from support.samples import sample_of

NUM_CUTS = sample_of(300, 40)
LONG_CHARS = 10_000
LONG_S = 2.0
PARSERS = dict(registered())


@pytest.mark.parametrize("parser", PARSERS.values(), ids=PARSERS.keys())
def test_random_cuts_of_hostile_texts(parser: ToolParser) -> None:
    assert mismatches(parser, NUM_CUTS, seed=1) == []


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("parser", PARSERS.values(), ids=PARSERS.keys())
def test_long_hostile_texts_take_little_time(parser: ToolParser) -> None:
    assert longest_s(parser, LONG_CHARS, every=sample_of(1, 6)) < LONG_S


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
