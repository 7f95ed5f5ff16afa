"""Texts of a tool parser's constraint, drawn at random token by token, are calls of the tool.

Checked against what we did not write: llguidance draws, jsonschema judges the arguments.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from dovetail import registry
from dovetail.config.checkpoint.sources.model_path import DEMO_PATH
from dovetail.interfaces.data.constraint import Constraint
from dovetail.interfaces.data.text import Tool
from dovetail.interfaces.structured_output import Matcher, Vocabulary
from dovetail.interfaces.tool_parser import ToolParser
from dovetail.structured_output.vocabulary import vocabulary_of
from dovetail_testing.text_splits import parse_in_pieces
from support.samples import sample_of

pytest.importorskip("llguidance")
jsonschema = pytest.importorskip("jsonschema")

NUM_ANSWERS = int(os.environ.get("DOVETAIL_TEST_ANSWERS", sample_of(12, 6)))
MAX_TOKENS = 400
WITHOUT_CONSTRAINT = {
    "functiongemma": ("deep",),
    "gemma4": ("deep",),
    "minimax_m3": ("deep", "open"),
    "minimax-m3": ("deep", "open"),
}
"""Syntaxes that hold plain values alone, or need a name again where the value ends."""
WAYS_OUT = ("<|close|>argument<|sep|>", "</｜DSML｜parameter>", "</｜DSML｜ parameter>",
            "</｜GCML｜parameter>", "</ifm|arg_value>", '<|"|>', "]<]minimax[>[</city>",
            "</param>", "</longcat_arg_value>", "</parameter>", "\n</parameter>", "</arg_value>",
            "</steptml:parameter>", "<escape>",
            '"', "}", "]", ")")  # fmt: skip
FLAT = {
    "city": {"type": "string"},
    "code": {"type": "string", "maxLength": 8},
    "kind": {"type": "string", "enum": ["a b", 'c"d', "e\\f\n"]},
    "count": {"type": "integer", "minimum": -5, "maximum": 90},
    "is-it": {"type": "boolean"},
    "note": {"type": "string", "minLength": 1, "maxLength": 5},
    "share": {"type": "number"},
}
DEEP = {
    **FLAT,
    "deep": {
        "type": "object",
        "properties": {"x": {"type": "boolean"}, "s": {"$ref": "#/$defs/short"}},
        "required": ["x"],
        "additionalProperties": False,
    },
    "maybe": {"type": ["string", "null"], "maxLength": 5},
    "either": {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "integer"}]},
    "list": {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
    "short": {"$ref": "#/$defs/short"},
}
ONE_NAME = {entry.target: entry for entry in registry.entries("tool_parser")}
"""Of parsers with several names, one of them."""
NAMES = sorted(
    entry.name
    for entry in ONE_NAME.values()
    if "constrains_calls" in registry.load("tool_parser", entry.id).capabilities
)


def tool_of(properties: dict[str, Any], required: Sequence[str]) -> Tool:
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
        "$defs": {"short": {"type": "string", "maxLength": 4}},
    }
    return Tool(name="find_it", parameters=schema)


TOOLS = {
    "deep": tool_of(DEEP, ["kind", "city", "deep"]),
    "flat": tool_of(FLAT, ["city", "count"]),
    "all optional": tool_of({name: FLAT[name] for name in ("city", "count", "kind")}, []),
    "empty": tool_of({}, []),
    "open": Tool(name="find_it"),
}


class Drawer:
    """Draws texts of a constraint, by tokens of the demo model's vocabulary."""

    def __init__(self) -> None:
        tokenizer = registry.load("tokenizer", "hf")
        self.tokenizer = tokenizer(tokenizer.Options(), str(DEMO_PATH))
        facts = self.tokenizer.facts()
        self.vocabulary: Vocabulary = vocabulary_of(
            self.tokenizer, (facts.eos_token_id,), facts.vocab_size
        )
        backend = registry.load("structured_output_backend", "guidance")
        self.backend = backend(backend.Options(), self.vocabulary)
        self.ways_out = [self.tokenizer.encode(text) for text in WAYS_OUT]

    def texts(self, constraint: Constraint, num: int, seed: int) -> list[str]:
        """Return random texts; those that do not come to an end are left out."""
        compiled = self.backend.load(self.backend.compile(constraint))
        chance = random.Random(seed)
        drawn = [self._draw(compiled.matcher(), chance) for _ in range(num)]
        return [text for text in drawn if text is not None]

    def _draw(self, matcher: Matcher, chance: random.Random) -> str | None:
        ids: list[int] = []
        while len(ids) < MAX_TOKENS:
            if chance.random() < 0.3:
                self._leave(matcher, ids, chance)
            mask = np.zeros(self.vocabulary.mask_words, np.uint32)
            matcher.fill(mask)
            allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
            token_id = int(allowed[chance.randrange(len(allowed))])
            if token_id in self.vocabulary.eos_ids:
                return str(self.tokenizer.decode(ids, skip_special_tokens=False))
            assert matcher.accept(token_id)
            ids.append(token_id)
        return None

    def _leave(self, matcher: Matcher, ids: list[int], chance: random.Random) -> None:
        """Write what ends a string or a list, as far as it may be written."""
        for token_id in chance.choice(self.ways_out):
            if token_id in self.vocabulary.eos_ids or not matcher.accept(token_id):
                return
            ids.append(token_id)


@pytest.fixture(scope="module")
def drawer() -> Drawer:
    return Drawer()


def constraint_of(parser: ToolParser, tool: Tool, most: int | None) -> Constraint | None:
    constraint = parser.constraint(tool)
    return None if constraint is None else parser.calls_constraint(constraint, most)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", NAMES)
def test_drawn_texts_are_calls(name: str, drawer: Drawer) -> None:
    plugin = registry.load("tool_parser", name)
    parser = plugin(plugin.Options())
    num_ended = 0
    for number, (about, tool) in enumerate(TOOLS.items()):
        constraint = constraint_of(parser, tool, 2)
        if constraint is None:
            assert about in WITHOUT_CONSTRAINT.get(name, ()), "plain values can always be held"
            continue
        has_more, num_before = False, num_ended
        judge = jsonschema.Draft202012Validator(tool.parameters)
        # Many draws for a tool without parameters are calls without arguments.
        num_draws = NUM_ANSWERS * (3 if about == "open" else 1)
        for text in drawer.texts(constraint, num_draws, number):
            num_ended += 1
            got = parse_in_pieces([text], tool_parser=parser, tools=(tool,))
            assert (got.content, {call.name for call in got.calls}) == ("", {"find_it"}), text
            for call in got.calls:
                judge.validate(json.loads(call.arguments))
                has_more |= json.loads(call.arguments) != {}
            assert len(got.calls) <= 2
        assert num_ended > num_before, about
        assert has_more or about != "open", "of a tool that says nothing, anything may be written"
    assert num_ended >= 2 * NUM_ANSWERS


@pytest.mark.parametrize(
    ("value", "is_allowed"),
    [
        ("Paris", True),
        ("", True),
        ("two\nlines\n", True),
        ("a </para", True),
        ("</parameter>", False),
    ],
)
def test_a_bare_string_ends_where_its_tag_begins(
    value: str, is_allowed: bool, drawer: Drawer
) -> None:
    plugin = registry.load("tool_parser", "qwen3_coder")
    parser = plugin(plugin.Options())
    tool = tool_of({"city": {"type": "string"}}, ["city"])
    compiled = drawer.backend.load(drawer.backend.compile(parser.constraint(tool)))
    text = (
        f"<tool_call>\n<function=find_it>\n<parameter=city>\n{value}\n</parameter>\n</function>\n"
        "</tool_call>"
    )
    matcher = compiled.matcher()
    assert all(map(matcher.accept, drawer.tokenizer.encode(text))) is is_allowed
    if is_allowed:
        (call,) = parse_in_pieces([text], tool_parser=parser, tools=(tool,)).calls
        assert json.loads(call.arguments) == {"city": value}
