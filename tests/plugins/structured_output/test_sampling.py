"""A seeded part of the sweep for every backend, and faults that sampling has found, kept found."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import pytest

from dovetail import registry
from dovetail.interfaces.data.constraint import JsonSchema
from dovetail.interfaces.structured_output import StructuredOutputBackend
from dovetail.structured_output.select_backend import unsupported_parts
from dovetail_grammars.schema import ENFORCED_BESIDE
from dovetail_testing.contract import skipping_unavailable
from dovetail_testing.random_walks import follows, small_vocabulary
from support.schema_judge import Judge
from support.schema_keywords import pairs_of
from support.schema_sampling import compiled_or_refusal, sample

NAMES = ("guidance", "lm-format-enforcer", "outlines", "xgrammar")
NUM_PAIRS = {"lm-format-enforcer": 2, "outlines": 2}
"""The slow ones: fewer pairs and single keywords here, all of them in the sweep."""
SEED = 1
TAKEN: list[tuple[Any, bytes]] = [
    # A name spelled with an escape passed for another name, and its value for any value.
    ({"properties": {"a": {"type": "integer"}}, "required": ["a"]}, b'{"a": 1, "\\u0061": "x"}'),
    ({"patternProperties": {"^x": {"type": "null"}}, "type": "object"}, b'{"\\u0078y": 1}'),
    # Half a surrogate pair, and control characters, within strings.
    ({"type": "string"}, b'"\xed\xa0\x9f"'),
    ({"type": "string", "minLength": 1}, b'"\x08"'),
    # Leap seconds, days that there are not, Unicode digits.
    ({"type": "string", "format": "time"}, b'"12:02:60-09:02"'),
    ({"type": "string", "format": "date"}, b'"2023-02-29"'),
    ({"type": "string", "pattern": r"^\d$"}, '"\u0663"'.encode()),
    # Lengths beside a pattern, alternatives of which one alone is anchored.
    ({"type": "string", "pattern": "^a+$", "maxLength": 2}, b'"aaa"'),
    ({"type": "string", "pattern": "^a|b$"}, b'"xay"'),
    # NUL in a set let quotation marks through, and was left out of constants.
    ({"type": "string", "pattern": '^[^"]{2}$'}, b'"\\"\\""'),
    ({"type": "string", "pattern": r"^[^\\]$"}, b'"\\\\"'),
    ({"const": "a\0b"}, b'"ab"'),
    ({"const": "a\x7fb"}, b'"ab"'),
    # What may follow leads nowhere: the next character cannot be written.
    ({"type": "string", "pattern": "^a\x01b$"}, b'"ab"'),
    # A keyword beside one that hides it in some libraries.
    ({"type": "string", "enum": ["a", "b"], "const": "b"}, b'"a"'),
    ({"anyOf": [{"type": "integer"}, {"type": "string"}], "minimum": 3}, b"2"),
    ({"$ref": "#/$defs/n", "maximum": 9, "$defs": {"n": {"type": "integer"}}}, b"12"),
    ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, b"1"),
    ({"oneOf": [{"enum": ["a", "b"]}, {"enum": ["b", "c"]}]}, b'"b"'),
    ({"type": "object", "minProperties": 2}, b'{"": 1, "": 2}'),
    ({"required": ["a"]}, b"{}"),
    ({"type": "array", "items": {"type": "integer"}, "minItems": 2}, b"[1]"),
    ({"type": "integer", "exclusiveMaximum": 9.5}, b"10"),
    # The formats of OpenAPI's integers are bounds.
    ({"type": "integer", "format": "int32"}, b"2147483648"),
    ({"type": ["integer", "null"], "format": "int32", "minimum": -5}, b"-6"),
    ({"type": "integer", "format": "int64"}, b"9223372036854775808"),
    ({"type": "number", "format": "int32"}, b"0.5"),
]


@cache
def backend(name: str) -> StructuredOutputBackend:
    """Return a backend over the kit's vocabulary."""
    with skipping_unavailable():
        plugin = registry.load("structured_output_backend", name)
    made: StructuredOutputBackend = plugin(plugin.Options(), small_vocabulary())
    return made


@pytest.mark.parametrize("name", NAMES)
def test_samples_meet_their_schemas(name: str) -> None:
    made = backend(name)
    pairs = list(pairs_of(made.keywords | ENFORCED_BESIDE))
    singles = [words for words in pairs if len(words) == 1]
    chosen = random.Random(SEED).sample(pairs, NUM_PAIRS.get(name, 30))
    num_ended = 0
    for words in [*singles[:: 5 if name in NUM_PAIRS else 1], *chosen]:
        tally = sample(made, words, 20, SEED, 5.0)
        assert tally.faults == []
        num_ended += tally.counts["end"]
    assert num_ended > 20 * len(singles) // 6


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("schema", "text"), TAKEN, ids=range(len(TAKEN)))
def test_wrong_texts_are_not_taken(name: str, schema: Any, text: bytes) -> None:
    made = backend(name)
    compiled = compiled_or_refusal(made, schema)
    if isinstance(compiled, str):
        return  # it is refused, which is as good
    assert not follows(compiled.matcher(), small_vocabulary(), text)


def test_the_judge_can_find_fault() -> None:
    judge = Judge({"type": "string", "format": "date"})
    assert judge.fault(b'"2024-02-29"') is None
    assert judge.fault(b'"2023-02-29"')
    assert judge.fault(b'"\xed\xa0\x9f"')
    assert judge.fault(b" " * 9 + b'"2024-02-29"')


@pytest.mark.parametrize("name", NAMES)
def test_what_everyone_asks_for_is_enforced(name: str) -> None:
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Order",
        "type": "object",
        "properties": {
            "id": {"type": "string", "format": "uuid", "description": "its number"},
            "kind": {"enum": ["new", "old"], "default": "new"},
            "lines": {"type": "array", "items": {"$ref": "#/definitions/line"}, "minItems": 1},
            "note": {"anyOf": [{"type": "string", "maxLength": 40}, {"type": "null"}]},
        },
        "required": ["id", "kind", "lines"],
        "additionalProperties": False,
        "definitions": {
            "line": {
                "type": "object",
                "properties": {
                    "count": {"type": "integer", "minimum": 1, "maximum": 99},
                    "price": {"type": "number", "minimum": 0},
                },
                "required": ["count", "price"],
                "additionalProperties": False,
            }
        },
    }
    made = backend(name)
    assert unsupported_parts(type(made), JsonSchema(schema)) == []
    compiled = made.load(made.compile(JsonSchema(schema)))
    text = (
        b'{"id": "123e4567-e89b-12d3-a456-426614174000", "kind": "old", "lines": [{"count": 2, '
        b'"price": 3.50}], "note": null}'
    )
    assert follows(compiled.matcher(), small_vocabulary(), text)
    assert not follows(compiled.matcher(), small_vocabulary(), text.replace(b"null", b"nul"))
