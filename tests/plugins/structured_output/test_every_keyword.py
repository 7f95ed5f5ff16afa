"""Random small schemas of every keyword, three and more at one place, in two drafts: whatever is
written or taken under them is valid for jsonschema, so no keyword is dropped."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest

from dovetail import registry
from dovetail.interfaces.structured_output import InvalidConstraint
from dovetail_grammars.rewriting.pipeline import rewritten
from dovetail_testing.contract import skipping_unavailable
from dovetail_testing.random_walks import Wanderer, small_vocabulary
from support.samples import sample_of
from support.schema_judge import Judge
from support.schema_sampling import compiled_or_refusal

NUM_SCHEMAS = sample_of(40, 8)
NUM_WALKED = 12
LEAVES: list[Any] = [
    *(True, False, {}, {"type": "integer"}, {"type": "string"}, {"const": 1}, {"enum": ["a", 2]}),
    *({"minimum": 2}, {"maxLength": 1}, {"type": ["null", "array"]}, {"type": "object"}),
]
VALUES: list[Any] = [
    *(None, True, 0, 1, 2, 5, "", "a", "ab", [], [1], [1, 2], ["a"], [1, "a", None], [[1], {}]),
    *({}, {"a": 1}, {"a": "a"}, {"b": 1}, {"a": 1, "b": 2}, {"a": 1, "b": "x", "c": None}),
    *({"c": []}, {"ab": 1}, {"a": {"a": 1}}, {"a": [1, 1], "b": {}}, [1, 1], [2, 2, 2], {"abc": 1}),
]


class Draft:
    """Draws schemas of one draft."""

    def __init__(self, chance: random.Random, *, is_latest: bool) -> None:
        self.chance = chance
        self.is_latest = is_latest

    def schema(self, depth: int) -> Any:
        """Return a random schema."""
        if not depth or self.chance.random() < 0.25:
            return self.chance.choice(LEAVES)
        made: dict[str, Any] = {}
        for _ in range(self.chance.randint(1, 4)):
            made |= self.keyword(depth - 1)
        return made

    def members(self, depth: int) -> dict[str, Any]:
        """Return random schemas by name."""
        return {name: self.schema(depth) for name in self.chance.sample("abc", 2)}

    def keyword(self, depth: int) -> dict[str, Any]:
        """Return one keyword, or a group of keywords that read each other."""
        chance, one, members = self.chance, self.schema, self.members
        several = [one(depth) for _ in range(2)]
        choices: list[dict[str, Any]] = [
            {"properties": members(depth)},
            {"required": chance.sample("abc", 1)},
            {"additionalProperties": one(depth)},
            {"patternProperties": {chance.choice(["^a", "b$", "."]): one(depth)}},
            {"propertyNames": chance.choice([{"maxLength": 1}, {"enum": ["a", "b"]}, one(0)])},
            {"minProperties": chance.randrange(3)},
            {"maxProperties": chance.randrange(3)},
            {"contains": one(depth)},
            {"if": one(depth), "then": one(depth)},
            {"if": one(depth), "then": one(depth), "else": one(depth)},
            {"if": one(depth), "else": one(depth)},
            *({"not": one(depth)}, {"allOf": several}, {"anyOf": several}, {"oneOf": several}),
            *({"type": chance.choice(["object", "array", ["object", "string"]])},) * 3,
            *({"uniqueItems": True}, {"minItems": 1}, {"maxItems": 2}),
            {"$ref": chance.choice(["#/definitions/d", "#/definitions/e"])},
            *(self.of_the_latest(depth) if self.is_latest else self.of_draft_7(depth)),
        ]
        return chance.choice(choices)

    def of_the_latest(self, depth: int) -> list[dict[str, Any]]:
        """Return keywords that draft 2020-12 alone has."""
        chance, one, members = self.chance, self.schema, self.members
        return [
            *({"unevaluatedProperties": chance.choice([False, one(depth)])},) * 3,
            *({"unevaluatedItems": chance.choice([False, one(depth)])},) * 3,
            {"prefixItems": [one(depth)], "items": chance.choice([True, False, one(depth)])},
            {"items": chance.choice([True, one(depth)])},
            {"contains": one(depth), "minContains": chance.randrange(3)},
            {"contains": one(depth), "maxContains": chance.randrange(3)},
            {"dependentSchemas": members(depth)},
            {"dependentRequired": {"a": ["b"]}},
        ]

    def of_draft_7(self, depth: int) -> list[dict[str, Any]]:
        """Return keywords that draft 7 alone has."""
        one = self.schema
        return [
            {"items": [one(depth)], "additionalItems": one(depth)},
            {"items": one(depth)},
            {"dependencies": {"a": self.chance.choice([["b"], one(depth)])}},
        ]

    def document(self) -> dict[str, Any]:
        """Return a whole schema."""
        made: Any = self.schema(3)
        while not isinstance(made, dict):
            made = self.schema(3)
        year = "https://json-schema.org/draft/2020-12/schema"
        named = year if self.is_latest else "http://json-schema.org/draft-07/schema#"
        defs = {"d": self.schema(1), "e": {"type": "object", "properties": self.members(0)}}
        return {"$schema": named, **made, "definitions": defs}


@pytest.mark.parametrize("is_latest", [True, False])
def test_no_keyword_is_dropped(is_latest: bool) -> None:
    drawn = Draft(random.Random(1), is_latest=is_latest)
    latest, older = jsonschema.Draft202012Validator, jsonschema.Draft7Validator
    num_taken, num_valid = 0, 0
    for _ in range(NUM_SCHEMAS):
        schema = drawn.document()
        try:
            made = rewritten(schema)
        except InvalidConstraint:
            continue
        num_taken += 1
        judge, ours = (latest if is_latest else older)(schema), latest(made)
        for value in VALUES:
            is_taken = ours.is_valid(value)
            assert not is_taken or judge.is_valid(value), (schema, value)
            num_valid += is_taken
    assert num_taken > NUM_SCHEMAS // 3 and num_valid > 5 * NUM_SCHEMAS


@pytest.mark.parametrize("is_latest", [True, False])
def test_answers_under_every_keyword_are_valid(is_latest: bool) -> None:
    with skipping_unavailable():
        plugin = registry.load("structured_output_backend", "guidance")
    backend = plugin(plugin.Options(), small_vocabulary())
    chance, wanderer = random.Random(2), Wanderer(small_vocabulary())
    drawn, num_ended = Draft(chance, is_latest=is_latest), 0
    for _ in range(NUM_WALKED):
        schema = drawn.document()
        found = compiled_or_refusal(backend, schema)
        if isinstance(found, str):
            continue
        judge = Judge(schema)
        for _ in range(5):
            walk = wanderer.walk(found.matcher(), chance, max_tokens=60)
            if walk.end == "end":
                num_ended += 1
                text = wanderer.written(walk.token_ids)
                assert judge.fault(text) is None, (json.dumps(schema), text)
    assert num_ended > 3
