"""Numbers that doubles do not hold: the answer has the schema's own number, or it is refused."""

from __future__ import annotations

import json
import random
from functools import cache
from typing import Any

import pytest

from dovetail import registry
from dovetail.interfaces.structured_output import StructuredOutputBackend
from dovetail_testing.contract import skipping_unavailable
from dovetail_testing.random_walks import Wanderer, follows, small_vocabulary
from support.schema_judge import Judge
from support.schema_sampling import compiled_or_refusal

NAMES = ("guidance", "xgrammar")
B = 2**53
NEAR = (B - 1, B, B + 1, B + 2, B + 3, 2**60 + 1, 2**63 - 1, 2**63, -B - 1, -B - 2)


@cache
def backend(name: str) -> StructuredOutputBackend:
    """Return a backend over the kit's vocabulary."""
    with skipping_unavailable():
        plugin = registry.load("structured_output_backend", name)
    made: StructuredOutputBackend = plugin(plugin.Options(), small_vocabulary())
    return made


EXACT: list[Any] = [
    {"const": B + 1},
    {"enum": [B + 1, 2**60 + 1, "x", None]},
    {"enum": [-B - 1, 12345678901234567890]},
    {"type": "integer", "minimum": B + 1, "maximum": B + 1},
    {"type": "integer", "minimum": B + 1, "maximum": B + 3, "not": {"const": B + 2}},
    {"type": "integer", "exclusiveMinimum": B, "exclusiveMaximum": B + 4},
    {"type": "integer", "exclusiveMaximum": 2**63 - 1},
    {"type": ["integer", "null"], "minimum": -B - 1},
    {"type": "integer", "maximum": 2**63 - 1},
    {"oneOf": [{"const": B}, {"const": B + 1}]},
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("schema", EXACT, ids=json.dumps)
def test_whole_numbers_are_exact(name: str, schema: Any) -> None:
    compiled, judge = compiled_or_refusal(backend(name), schema), Judge(schema)
    assert not isinstance(compiled, str), compiled
    for number in NEAR:
        text = str(number).encode()
        is_taken = follows(compiled.matcher(), small_vocabulary(), text)
        assert is_taken == (judge.fault(text) is None), number


@pytest.mark.parametrize("name", NAMES)
def test_they_are_exact_within_objects(name: str) -> None:
    schema = {
        "type": "object",
        "properties": {
            "id": {"enum": [B + 1, B + 3]},
            "of": {"type": "array", "items": {"type": "integer", "minimum": B + 1}, "maxItems": 2},
            "next": {"$ref": "#"},
        },
        "required": ["id", "of"],
        "additionalProperties": False,
    }
    compiled, judge, chance = (
        compiled_or_refusal(backend(name), schema),
        Judge(schema),
        random.Random(0),
    )
    assert not isinstance(compiled, str), compiled
    wanderer, ended = Wanderer(small_vocabulary()), 0
    for _ in range(20):
        walk = wanderer.walk(compiled.matcher(), chance, max_tokens=200)
        if walk.end == "end":
            ended += 1
            assert judge.fault(wanderer.written(walk.token_ids)) is None
    assert ended


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("schema", "wrong"),
    [
        ({"type": "object", "patternProperties": {"^a": {"const": B + 1}}}, b'{"a":%d}' % B),
        ({"type": "integer", "minimum": B + 1, "multipleOf": 2}, b"%d" % B),
        ({"type": "integer", "maximum": B + 1, "multipleOf": 2}, b"%d" % (B + 2)),
        ({"type": "integer", "multipleOf": B + 1}, b"%d" % B),
        ({"const": 12345678901234567.5}, b"12345678901234568"),
        ({"type": "number", "minimum": 12345678901234567.5}, b"12345678901234567"),
        ({"type": "integer", "maximum": 2**63 - 1}, b"9223372036854775808"),
        ({"type": "integer", "minimum": -(2**63)}, b"-9223372036854775809"),
        ({"type": "number", "maximum": 2**63 - 1}, b"9223372036854775808"),
    ],
)  # fmt: skip
def test_what_is_not_exact_is_refused(name: str, schema: Any, wrong: bytes) -> None:
    compiled = compiled_or_refusal(backend(name), schema)
    if not isinstance(compiled, str):
        assert not follows(compiled.matcher(), small_vocabulary(), wrong)


@pytest.mark.parametrize("name", NAMES)
def test_decimals_between_near_bounds_are_taken(name: str) -> None:
    schema = {"type": "number", "minimum": 0.1, "maximum": 0.30000000000000004}
    compiled = compiled_or_refusal(backend(name), schema)
    assert not isinstance(compiled, str), compiled
    texts = {"0.1": True, "0.25": True, "0.30000000000000004": True, "0.31": False, "0.0999": False}
    for text, is_right in texts.items():
        assert follows(compiled.matcher(), small_vocabulary(), text.encode()) == is_right, text
