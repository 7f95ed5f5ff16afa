"""References: to metaschemas, by `$id` and `$anchor`, that lead back; held against jsonschema."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest
from jsonschema import validators

from dovetail import registry
from dovetail.interfaces.structured_output import InvalidConstraint
from dovetail_grammars.rewriting.pipeline import rewritten
from dovetail_testing.contract import skipping_unavailable
from dovetail_testing.random_walks import Wanderer, follows, small_vocabulary
from support.schema_sampling import compiled_or_refusal

METASCHEMAS = [
    *(f"http://json-schema.org/draft-0{number}/schema#" for number in (4, 6, 7)),
    *(f"https://json-schema.org/draft/{year}/schema" for year in ("2019-09", "2020-12")),
]
SCHEMAS: list[Any] = [
    *(True, {}, 1, "a", [], {"type": "object"}, {"type": "nothing"}, {"type": ["string", "null"]}),
    *({"type": []}, {"minLength": 1}, {"minLength": -1}, {"minLength": 1.5}, {"required": ["a"]}),
    *({"required": []}, {"required": ["a", "a"]}, {"required": True}, {"enum": []}, {"enum": [1]}),
    *({"properties": {"a": {"type": "integer"}}}, {"properties": {"a": {"type": 5}}}),
    *({"items": [{}]}, {"items": {}}, {"items": 1}, {"items": []}, {"not": {"items": 1}}),
    *({"allOf": []}, {"anyOf": [{"not": {}}]}, {"oneOf": [3]}, {"const": 1}, {"contains": 1}),
    *({"exclusiveMinimum": True, "minimum": 1}, {"exclusiveMinimum": True}, {"minimum": "1"}),
    *({"exclusiveMinimum": 1}, {"multipleOf": 0}, {"multipleOf": 0.5}, {"if": {"type": 1}}),
    *({"$defs": {"a": 1}}, {"definitions": {"a": {"type": 1}}}, {"dependencies": {"a": ["b"]}}),
    *({"dependentRequired": {"a": 1}}, {"prefixItems": [{"type": 1}]}, {"minContains": "a"}),
    *({"title": 1}, {"description": "a"}, {"additionalProperties": False}, {"id": 1}, {"$id": 1}),
    *({"$anchor": "1a"}, {"unevaluatedItems": 1}, {"propertyNames": 1}, {"uniqueItems": "a"}),
    *({"unknown": 1}, {"patternProperties": {"a": {"type": 1}}}, {"examples": 1}, {"$ref": 1}),
]


@pytest.mark.parametrize("address", METASCHEMAS)
def test_a_reference_to_a_metaschema_means_the_published_one(address: str) -> None:
    published = validators.validator_for({"$schema": address})
    judge = published(published.META_SCHEMA)
    ours = jsonschema.Draft202012Validator(rewritten({"items": {"$ref": address}}))
    for schema in SCHEMAS:
        assert ours.is_valid([schema]) is judge.is_valid(schema), schema


def test_answers_under_a_metaschema_are_schemas() -> None:
    with skipping_unavailable():
        plugin = registry.load("structured_output_backend", "guidance")
    vocabulary = small_vocabulary()
    backend = plugin(plugin.Options(), vocabulary)
    member = {"schema": {"$ref": METASCHEMAS[-1]}}
    found = compiled_or_refusal(
        backend, {"type": "object", "properties": member, "required": ["schema"]}
    )
    assert not isinstance(found, str), found
    wanted = {"type": "object", "properties": {"a": {"type": "string", "minLength": 2}}}
    text = json.dumps({"schema": wanted | {"required": ["a"]}}, sort_keys=False)
    ordered = json.dumps({"schema": {"type": "object", "required": ["a"]}})
    assert follows(found.matcher(), vocabulary, ordered.encode()), text
    assert not follows(found.matcher(), vocabulary, ordered.replace("object", "objekt").encode())
    wanderer, chance = Wanderer(vocabulary), random.Random(0)
    num_ended = 0
    for _ in range(40):
        walk = wanderer.walk(found.matcher(), chance, max_tokens=200)
        if walk.end == "end":
            num_ended += 1
            answer = json.loads(wanderer.written(walk.token_ids))
            jsonschema.Draft202012Validator.check_schema(answer["schema"])
    assert num_ended > 5


def test_parts_of_metaschemas_and_two_drafts_at_once() -> None:
    count = "http://json-schema.org/draft-07/schema#/definitions/nonNegativeInteger"
    vocabulary = "https://json-schema.org/draft/2020-12/meta/validation#/$defs/stringArray"
    schema = rewritten(
        {
            "properties": {
                "n": {"$ref": count},
                "names": {"$ref": vocabulary},
                "old": {"$ref": METASCHEMAS[0]},
                "new": {"$ref": METASCHEMAS[4]},
            }
        }
    )
    ours = jsonschema.Draft202012Validator(schema)
    nested = {"not": {"exclusiveMinimum": True, "minimum": 1}}
    assert ours.is_valid({"n": 0, "names": ["a"], "old": nested})
    for wrong in ({"n": -1}, {"names": [1]}, {"new": nested}, {"old": {"not": {"type": 1}}}):
        assert not ours.is_valid(wrong), wrong


@pytest.mark.parametrize(
    "address", ["https://example.com/schema", "http://json-schema.org/draft-99/schema"]
)
def test_other_documents_are_refused_with_their_place(address: str) -> None:
    with pytest.raises(InvalidConstraint, match="no schema within") as caught:
        rewritten({"properties": {"a": {"$ref": address}}})
    assert caught.value.pointer == "/properties/a/$ref"


@pytest.mark.parametrize(
    "given",
    ["http://[::1", "http://[bad]/x", "::no uri::", "//[", "", "#", "urn:x:y", "%zz"],
)
def test_an_id_that_is_no_address_harms_nothing(given: str) -> None:
    inner = {"$id": given, "type": "integer"}
    schema = {
        "$id": given,
        "$defs": {"a": inner, "b": {"$anchor": "there", "type": "string"}},
        "properties": {"a": {"$ref": "#/$defs/a"}, "b": {"$ref": "#there"}},
        "examples": [{"$id": given}],
    }
    ours = jsonschema.Draft202012Validator(rewritten(schema))
    assert ours.is_valid({"a": 1, "b": "x"})
    assert not ours.is_valid({"a": "x"}) and not ours.is_valid({"b": 1})
    with pytest.raises(InvalidConstraint):
        rewritten({"properties": {"a": {"$ref": f"{given or 'x'}/nowhere"}}})


NODE = {"v": {"type": "integer"}, "next": {"$ref": "#/$defs/n", "minProperties": 1}}
BACK: dict[str, tuple[Any, list[Any], list[Any]]] = {
    "a keyword": (
        {"$defs": {"n": {"type": "object", "properties": NODE}}, "$ref": "#/$defs/n"},
        [{"v": 1, "next": {"v": 2, "next": {"v": 3}}}],
        [{"next": {}}, {"v": 1, "next": {"v": 2, "next": {}}}, {"next": {"v": "a"}}],
    ),
    "in a list": (
        {
            "type": "object",
            "properties": {
                "v": {"type": "integer"},
                "kids": {"type": "array", "items": {"$ref": "#", "required": ["v"]}},
            },
        },
        [{"kids": [{"v": 1, "kids": []}, {"v": 2, "kids": [{"v": 3}]}]}],
        [{"kids": [{}]}, {"kids": [{"v": 1, "kids": [{"kids": []}]}]}],
    ),
    "of both": (
        {
            "$defs": {"n": {"type": "object", "properties": {"c": {"$ref": "#/$defs/n"}}}},
            "$ref": "#/$defs/n",
            "properties": {"c": {"properties": {"c": {"required": ["d"]}}}},
        },
        [{"c": {"c": {"d": 1}}}, {"c": {"c": {"c": {"c": {}}, "d": 1}}}],
        [{"c": {"c": {}}}, {"c": {"c": {"c": 1}}}, {"c": 1}],
    ),
    "two that lead to each other": (
        {
            "$defs": {
                "a": {
                    "type": "object",
                    "properties": {"b": {"$ref": "#/$defs/b", "maxProperties": 1}},
                },
                "b": {
                    "type": "object",
                    "properties": {"a": {"$ref": "#/$defs/a", "required": ["b"]}},
                },
            },
            "allOf": [{"$ref": "#/$defs/a"}, {"required": ["b"]}],
        },
        [{"b": {"a": {"b": {}}}}],
        [{"b": {"a": {}}}, {"b": {"a": {"b": {}}, "x": 1}}, {}],
    ),
    "a type": (
        {
            "$defs": {
                "t": {
                    "anyOf": [{"type": "null"}, {"items": {"$ref": "#/$defs/t"}, "type": "array"}]
                }
            },
            "$ref": "#/$defs/t",
            "type": "array",
            "maxItems": 1,
        },
        [[], [None], [[None, [None]]]],
        [None, [None, None], [1]],
    ),
}


@pytest.mark.parametrize("name", BACK)
def test_keywords_beside_a_reference_that_leads_back_are_enforced(name: str) -> None:
    schema, right, wrong = BACK[name]
    with skipping_unavailable():
        plugin = registry.load("structured_output_backend", "guidance")
    backend = plugin(plugin.Options(), small_vocabulary())
    found = compiled_or_refusal(backend, schema)
    assert not isinstance(found, str), found
    judge = jsonschema.Draft202012Validator(schema)
    for value in [*right, *wrong]:
        assert judge.is_valid(value) is (value in right)
        taken = follows(found.matcher(), small_vocabulary(), json.dumps(value).encode())
        assert taken is (value in right), value


def a_recursive_schema(chance: random.Random, depth: int) -> Any:
    """Return a random schema that refers to two definitions, beside other keywords."""
    made: dict[str, Any] = {}
    if chance.random() < 0.6:
        made["$ref"] = chance.choice(["#/$defs/p", "#/$defs/q", "#"])
    if depth and chance.random() < 0.7:
        made["properties"] = {
            name: a_recursive_schema(chance, depth - 1) for name in chance.sample("ab$", 2)
        }
    if depth and chance.random() < 0.3:
        made["allOf"] = [a_recursive_schema(chance, depth - 1) for _ in range(2)]
    if chance.random() < 0.3:
        made["required"] = [chance.choice("ab")]
    if chance.random() < 0.2:
        made |= chance.choice(
            [{"type": "object"}, {"maxProperties": 1}, {"additionalProperties": False}]
        )
    return made


def a_value(chance: random.Random, depth: int) -> Any:
    if not depth or chance.random() < 0.2:
        return chance.choice([1, {}, None, {"a": 1}])
    return {name: a_value(chance, depth - 1) for name in chance.sample("ab$", chance.randrange(3))}


def test_random_schemas_that_lead_back_keep_their_meaning() -> None:
    chance, num_valid, num_made = random.Random(0), 0, 0
    values = [a_value(chance, 4) for _ in range(150)]
    for _ in range(150):
        schema = a_recursive_schema(chance, 2)
        schema["$defs"] = {
            name: {"properties": {"a": a_recursive_schema(chance, 1)}} for name in "pq"
        }
        try:
            made = rewritten(schema)
            judge = jsonschema.Draft202012Validator(schema)
            expected = [judge.is_valid(value) for value in values]
        except (InvalidConstraint, RecursionError):
            continue
        num_made += "together_0" in json.dumps(made)
        ours = jsonschema.Draft202012Validator(made)
        for value, is_valid in zip(values, expected, strict=True):
            assert not ours.is_valid(value) or is_valid, (schema, value)
            num_valid += is_valid and ours.is_valid(value)
    assert num_made > 30 and num_valid > 1000
