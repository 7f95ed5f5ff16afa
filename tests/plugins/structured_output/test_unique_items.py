"""Lists of different items: no item twice whatever the tokens, and a way on while there is one."""

from __future__ import annotations

import json
import random
from functools import cache
from typing import Any

import numpy as np
import pytest

from dovetail import registry
from dovetail.interfaces.data.constraint import Choice, Constraint, JsonSchema, Repeat, concat
from dovetail.interfaces.structured_output import (
    InvalidConstraint,
    LoadedConstraint,
    Matcher,
    StructuredOutputBackend,
)
from dovetail.structured_output.artifacts import ArtifactLoader, compiled, packed
from dovetail.structured_output.schemas import rewritten_constraint
from dovetail_testing.contract import skipping_unavailable
from dovetail_testing.random_walks import Wanderer, allowed, follows, small_vocabulary
from support.schema_judge import Judge

VOCABULARY = small_vocabulary()
LOADER = ArtifactLoader(VOCABULARY)
WANDERER = Wanderer(VOCABULARY)
FLAG = {"type": "boolean"}


def distinct(items: Any, **others: Any) -> dict[str, Any]:
    """Return the schema of a list of different items."""
    return {"type": "array", "items": items, "uniqueItems": True, **others}


NAMES = ["alpha", "beta", "al", "gamma", "delta", "eps", "zeta", "eta", "theta"]
FINITE: dict[str, tuple[Any, int]] = {
    "constants": (distinct({"enum": NAMES}, minItems=4), len(NAMES)),
    "numbers": (distinct({"type": "integer", "minimum": -1, "maximum": 30}, minItems=9), 32),
    "patterns": (distinct({"type": "string", "pattern": "^[ab]{1,2}$"}, minItems=3), 6),
    "objects": (
        distinct(
            {"properties": {"b": FLAG, "t": {"enum": ["x", "y"]}}, "type": "object"}
            | {"additionalProperties": False}
        ),
        9,
    ),
    "contained": (distinct({"enum": NAMES}, contains={"const": "eta"}), len(NAMES)),
    "lists": (distinct(distinct({"type": "integer", "minimum": 0, "maximum": 2})), 16),
}
"""Lists that can be filled up, and how many items they have then."""
OPEN: dict[str, Any] = {
    "texts": distinct({"type": "string"}),
    "anything": {"type": "array", "uniqueItems": True},
    "floats": distinct({"type": "number"}),
    "members": distinct({"type": "object", "additionalProperties": FLAG}),
    "alternatives": distinct({"anyOf": [{"enum": ["a", "b"]}, {"type": "integer"}]}),
    "itself": {
        "$defs": {"s": distinct({"anyOf": [{"const": "auto"}, {"$ref": "#/$defs/s"}]})},
        "$ref": "#/$defs/s",
    },
}


@cache
def backend(name: str) -> StructuredOutputBackend:
    """Return a backend over the kit's vocabulary."""
    with skipping_unavailable():
        plugin = registry.load("structured_output_backend", name)
    made: StructuredOutputBackend = plugin(plugin.Options(), VOCABULARY)
    return made


def loaded(constraint: Constraint, name: str = "guidance") -> LoadedConstraint:
    """Return a constraint, compiled and loaded as the engine does."""
    made = backend(name)
    return LOADER.loaded(made, packed(compiled(made, rewritten_constraint(constraint))))


def full(matcher: Matcher, chance: random.Random) -> bytes:
    """Return an answer that closes no list as long as something else may follow, and likes to
    repeat what it has written."""
    taken: list[int] = []
    tokens = VOCABULARY.tokens
    while True:
        ids = [int(i) for i in np.flatnonzero(allowed(matcher, VOCABULARY))]
        if ids == list(VOCABULARY.eos_ids):
            return WANDERER.written(taken)
        written = WANDERER.written(taken)
        ids = [i for i in ids if tokens[i].strip()] or ids
        fewest = min(tokens[i].count(b"]") for i in ids)
        ways = [i for i in ids if tokens[i].count(b"]") == fewest]
        again = [i for i in ways if written[-2:] + tokens[i] in written]
        token_id = chance.choice(again or ways)
        assert matcher.accept(token_id)
        taken.append(token_id)


@pytest.mark.parametrize("name", FINITE)
@pytest.mark.parametrize("backend_name", ["guidance", "xgrammar"])
def test_a_list_can_be_filled_up_and_then_ends(name: str, backend_name: str) -> None:
    schema, most = FINITE[name]
    text = full(loaded(JsonSchema(schema), backend_name).matcher(), random.Random(name))
    assert Judge(schema).fault(text) is None
    assert len(json.loads(text)) == most


@pytest.mark.parametrize("name", OPEN)
def test_no_item_comes_twice(name: str) -> None:
    found, chance, judge = loaded(JsonSchema(OPEN[name])), random.Random(name), Judge(OPEN[name])
    lengths = []
    for _ in range(12):
        walk = WANDERER.walk(found.matcher(), chance, max_tokens=150)
        assert walk.end in ("end", "long")
        if walk.end == "end":
            text = WANDERER.written(walk.token_ids)
            assert judge.fault(text) is None, text
            lengths.append(len(json.loads(text)))
    assert max(lengths) > 0


@pytest.mark.parametrize(
    ("items", "right", "wrong"),
    [
        ({"type": "string"}, '["a", "b", "ab"]', '["a", "b", "a"]'),
        ({"type": "string"}, r'["a\"", "a"]', r'["a\"", "b","a\""]'),
        ({}, '[1, "1", true, [1], {"a": 1}]', "[1, 2, 1.0]"),
        ({}, "[10, 1]", "[10, 1e1]"),
        ({}, "[0, -1]", "[0, -0]"),
        ({}, '[{"a": 1}, {"a": 2}]', '[{"a": 1, "b": 2}, {"b": 2, "a": 1}]'),
        ({}, "[[1, 1], [1]]", "[[1, 1], [ 1 , 1 ]]"),
        ({"type": ["boolean", "integer"]}, "[1, true, 0, false]", "[true, false, true]"),
    ],
)
def test_items_are_compared_as_values(items: Any, right: str, wrong: str) -> None:
    found = loaded(JsonSchema(distinct(items)))
    assert follows(found.matcher(), VOCABULARY, right.encode())
    assert not follows(found.matcher(), VOCABULARY, wrong.encode())


def test_only_the_lists_that_ask_for_it() -> None:
    inner = {"type": "array", "items": {"type": "integer"}}
    schema = {
        "type": "object",
        "properties": {"free": inner, "all": inner | {"uniqueItems": True}},
    }
    found = loaded(JsonSchema(schema))
    assert follows(found.matcher(), VOCABULARY, b'{"free": [1, 1], "all": [1, 2]}')
    assert not follows(found.matcher(), VOCABULARY, b'{"free": [1, 2], "all": [1, 1]}')
    assert not follows(loaded(JsonSchema({"items": inner | {"uniqueItems": True}})).matcher(),
        VOCABULARY, b"[[1, 1]]")  # fmt: skip


def test_within_calls_and_among_alternatives() -> None:
    calls = [
        concat(f'<call>{{"name": "{name}", "arguments": ', JsonSchema(schema), "}</call>")
        for name, schema in (("f", distinct({"type": "string"})), ("g", {"type": "array"}))
    ]
    found = loaded(Repeat(Choice(tuple(calls)), 1, None))
    one = '<call>{"name": "%s", "arguments": %s}</call>'
    for name, value, is_right in (
        ("f", '["a", "b"]', True),
        ("f", '["a", "a"]', False),
        ("g", '["a", "a"]', True),
    ):
        text = one % ("f", '["a"]') + one % (name, value)
        assert follows(found.matcher(), VOCABULARY, text.encode()) is is_right


def test_tokens_can_be_taken_back() -> None:
    found = loaded(JsonSchema(distinct({"type": "string"})))
    chance = random.Random(0)
    matcher, taken, masks = found.matcher(), list[int](), []
    for _ in range(1500):
        may = allowed(matcher, VOCABULARY)
        masks.append(may)
        text = WANDERER.written(taken)
        ways = [i for i in np.flatnonzero(may) if b"]" not in VOCABULARY.tokens[i]]
        quotes = [i for i in ways if VOCABULARY.tokens[i] == b'"']
        token_id = int(chance.choice(quotes if quotes and text[-1:] != b'"' else ways))
        assert matcher.accept(token_id)
        taken.append(token_id)
    for count in (3, 300, 1100):
        matcher.rollback(count)
        del taken[-count:]
        assert (allowed(matcher, VOCABULARY) == masks[len(taken)]).all()


@pytest.mark.parametrize(
    "schema",
    [
        distinct({"type": "string", "pattern": "^[ab]$"}, minItems=3),
        distinct({"type": "string"}, prefixItems=[FLAG, FLAG]),
        distinct({"type": "string"}, contains={"const": "x"}, maxContains=1),
        {"anyOf": [distinct({"type": "string"}), {"type": "array", "prefixItems": [FLAG, FLAG]}]},
    ],
)
def test_lists_that_may_not_be_completed_are_refused(schema: Any) -> None:
    with pytest.raises(InvalidConstraint):
        loaded(JsonSchema(schema))
