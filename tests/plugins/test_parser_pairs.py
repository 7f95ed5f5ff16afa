"""Every tool parser beside reasoning parsers of any family: a stream comes to the same as the
whole, with tools and without, cut off or not, within thinking or not."""

from __future__ import annotations

import random
from functools import partial

import pytest

from dovetail import registry
from dovetail.interfaces.data.text import Tool
from dovetail.interfaces.reasoning_parser import ReasoningParser
from dovetail_testing.text_splits import parse_in_pieces, random_cuts
from support.parser_fuzz import examples, random_text, registered

NUM_TEXTS = 8
PROPERTIES = {
    "city": {"type": "string"},
    "days": {"type": "integer"},
    "q": {"type": "string"},
    "o": {"type": "object"},
}
TOOL_PARSERS = dict(registered())


def reasoning_parsers() -> list[ReasoningParser]:
    """Return each reasoning parser once."""
    first = {entry.target: entry for entry in registry.entries("reasoning_parser")}
    plugins = [registry.admin.load_entry(entry) for entry in first.values()]
    return [plugin(plugin.Options()) for plugin in plugins]


THINKING = reasoning_parsers()


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", TOOL_PARSERS)
def test_pairs_of_parsers_do_not_depend_on_cuts(name: str) -> None:
    parser, chance = TOOL_PARSERS[name], random.Random(name)
    names = sorted({call.name for sample in parser.samples for call in sample.calls})
    schema = {"type": "object", "properties": PROPERTIES}
    tools = tuple(Tool(name=tool_name, parameters=schema) for tool_name in names)
    for number in range(NUM_TEXTS):
        thinking = chance.choice(THINKING)
        marks = (thinking.markers.start, thinking.markers.end, *examples(thinking.layout), "why ")
        before = "".join(chance.choices(marks, k=chance.randrange(4)))
        text = before + random_text(parser, chance) + chance.choice(("", *marks))
        read = partial(
            parse_in_pieces,
            tool_parser=parser,
            reasoning=thinking.markers,
            layout=thinking.layout,
            starts_inside=number % 2 == 0,
            tools=chance.choice(((), tools)),
            is_cut=number % 3 == 0,
        )
        whole = read([text])
        for pieces in (list(text), *random_cuts(text, seed=number, num=6)):
            assert read(pieces) == whole, (text, pieces)
