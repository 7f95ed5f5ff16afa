"""The passes over schemas, one by one: what they make, what they refuse and where, and that they
end."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from dovetail.interfaces.data.constraint import Concat, JsonSchema, Literal
from dovetail.interfaces.structured_output import InvalidConstraint
from dovetail.structured_output.schemas import rewritten_constraint
from dovetail_grammars.rewriting.automaton import (
    Effort,
    Undecided,
    are_disjoint,
    left,
    matches,
    other_texts,
    searched,
    shared,
)
from dovetail_grammars.rewriting.context import Context
from dovetail_grammars.rewriting.pipeline import original, rewritten
from dovetail_grammars.rewriting.tree import ORIGIN, Budget
from dovetail_grammars.rewriting.values import meets

STRING, INTEGER = {"type": "string"}, {"type": "integer"}


def plain(schema: Any) -> Any:
    """Return a schema without the origins of its nodes."""
    if isinstance(schema, dict):
        return {k: plain(v) for k, v in schema.items() if k != ORIGIN}
    return [plain(v) for v in schema] if isinstance(schema, list) else schema


@pytest.mark.parametrize(
    ("given", "made"),
    [
        # Annotations, whoever they are of.
        ({"id": "x", "markdownDescription": "d", "javaType": "T", "ui:widget": "w"}, {}),
        ({"self": {"vendor": "v"}, "//": 1, "type": "null", "x-y": {"type": 3}}, {"type": "null"}),
        ({"type": "string", "format": "currency", "nullable": True}, STRING),
        # What changes nothing.
        ({"type": "array", "uniqueItems": False, "minItems": 0}, {"type": "array"}),
        ({"type": "object", "dependencies": {}, "required": []}, {"type": "object"}),
        ({"type": "array", "contains": STRING, "minContains": 0}, {"type": "array"}),
        ({"type": "string", "minimum": 3, "items": False}, STRING),
        ({"type": "integer", "multipleOf": 0.5}, INTEGER),
        ({"then": False, "allOf": [{}, True], "not": False}, {}),
        # Older spellings.
        (
            {"items": [STRING], "additionalItems": False},
            {"prefixItems": [STRING], "items": False},
        ),
        ({"minimum": 3, "exclusiveMinimum": True}, {"exclusiveMinimum": 3}),
        ({"maximum": 3, "exclusiveMaximum": False}, {"maximum": 3}),
        (
            {"properties": {"a": {"type": "string", "required": True}, "b": {"required": False}}},
            {"properties": {"a": STRING, "b": {}}, "required": ["a"]},
        ),
        # In draft 7 a reference hides what stands beside it, later it does not.
        (
            {
                "$schema": "http://json-schema.org/draft-07/schema#",
                "properties": {"a": {"$ref": "#/definitions/i", "maximum": 2}},
                "definitions": {"i": INTEGER},
            },
            {"properties": {"a": {"$ref": "#/$defs/i"}}, "$defs": {"i": INTEGER}},
        ),
        (
            {
                "properties": {"a": {"$ref": "#/definitions/i", "maximum": 2}},
                "definitions": {"i": INTEGER, "unused": {"frobs": 1, "not": {"format": "date"}}},
            },
            {"properties": {"a": {"$ref": "#/$defs/i", "maximum": 2}}, "$defs": {"i": INTEGER}},
        ),
        # Constants take up what stands beside them.
        ({"enum": [1, 2, "a", None], "type": "integer", "minimum": 2}, {"enum": [2]}),
        ({"const": "ab", "pattern": "^a"}, {"enum": ["ab"]}),
        # Names.
        (
            {"propertyNames": {"enum": ["a", "b"]}, "additionalProperties": STRING},
            {
                "additionalProperties": False,
                "properties": {"a": STRING, "b": STRING},
            },
        ),
        # Few values that differ.
        (
            {"type": "array", "items": {"type": "boolean"}, "uniqueItems": True},
            {"enum": [[], [True], [False], [True, False], [False, True]]},
        ),
        ({"type": "array", "uniqueItems": True, "maxItems": 1}, {"type": "array", "maxItems": 1}),
        # Bounds beyond what is written, and such that nothing else is left.
        (
            {"type": "integer", "minimum": -(2**63), "exclusiveMaximum": 1e50},
            {"type": "integer", "minimum": -(2**63), "maximum": 10**38},
        ),
        ({"type": "number", "maximum": 1.7e308}, {"type": "number", "maximum": 10**38}),
        # Counts that no answer reaches.
        ({"type": "string", "maxLength": 2**53}, {"type": "string"}),
        ({"type": "integer", "minimum": 2**63}, {"type": "integer", "minimum": 2**63}),
    ],
)  # fmt: skip
def test_schemas_are_rewritten(given: Any, made: Any) -> None:
    assert plain(rewritten(given)) == made


@pytest.mark.parametrize(
    ("reference", "kind"),
    [
        ("#/$defs/a", "string"),
        ("#part", "integer"),
        ("other.json", "boolean"),
        ("https://example.com/dir/other.json#/properties/x", "null"),
        ("https://example.com/dir/root.json#/$defs/a", "string"),
        ("#/components/schemas/C%20d", "array"),
        ("#/properties/p", "number"),
    ],
)
def test_references_within_the_document(reference: str, kind: str) -> None:
    schema = {
        "$id": "https://example.com/dir/root.json",
        "properties": {"r": {"$ref": reference}, "p": {"type": "number"}},
        "components": {"schemas": {"C d": {"type": "array"}}},
        "$defs": {
            "a": {"type": "string"},
            "b": {"$anchor": "part", "type": "integer"},
            "c": {"$id": "other.json", "type": "boolean", "properties": {"x": {"type": "null"}}},
        },
    }
    made = rewritten(schema)
    name = made["properties"]["r"]["$ref"].removeprefix("#/$defs/")
    assert made["$defs"][name]["type"] == kind


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        ({"properties": {"a/b": {"minLength": "x"}}}, "/properties/a~1b/minLength"),
        ({"items": {"$ref": "other.json"}}, "/items/$ref"),
        ({"anyOf": [{"$ref": "#/$defs/none"}]}, "/anyOf/0/$ref"),
        ({"properties": {"a": {"not": {"format": "date"}}}}, "/properties/a/not"),
        ({"oneOf": [{"multipleOf": 2}, {"multipleOf": 3}]}, "/oneOf/1"),
        ({"definitions": {"x": {"enum": 3}}, "$ref": "#/definitions/x"}, "/definitions/x/enum"),
        ({"type": "object", "items": [{"type": "strange"}]}, "/items/0/type"),
        ({"contains": STRING, "minContains": 2}, "/contains"),
    ],
)
def test_refusals_say_where(schema: Any, pointer: str) -> None:
    with pytest.raises(InvalidConstraint) as caught:
        rewritten(schema)
    assert caught.value.pointer == pointer
    assert str(caught.value)


def test_places_lead_back_to_the_schema_as_it_was() -> None:
    schema = {"definitions": {"x": {"items": [{"pattern": "a"}]}}, "$ref": "#/definitions/x"}
    made = rewritten(schema)
    assert original(made, "/$defs/x/prefixItems/0/pattern") == "/definitions/x/items/0/pattern"
    assert original(made, "/$ref") == "/$ref"
    condition = {"if": {"required": ["a"]}, "then": {"properties": {"b": {"pattern": "x"}}}}
    made = rewritten({"type": "object", **condition})
    found = next(at for at in pointers(made) if at.endswith("/pattern"))
    assert original(made, found) == "/then/properties/b/pattern"


def pointers(value: Any, at: str = "") -> list[str]:
    """Return the JSON Pointer of every part of a value."""
    parts = value.items() if isinstance(value, dict) else enumerate(value)
    inner = [(f"{at}/{key}", part) for key, part in parts]
    below = [
        p for here, part in inner if isinstance(part, dict | list) for p in pointers(part, here)
    ]
    return [here for here, _ in inner] + below  # fmt: skip


def test_parts_of_other_constraints_are_rewritten() -> None:
    found = rewritten_constraint(Concat((Literal("x"), JsonSchema({"ui:widget": 1}))))
    assert found == Concat((Literal("x"), JsonSchema({})))


HOSTILE: dict[str, Any] = {
    "conditions": {
        "allOf": [
            {"if": {"required": [f"a{n}"]}, "then": {"minItems": n}, "else": {"maxItems": n}}
            for n in range(3000)
        ]
    },
    "oneOf of many": {"oneOf": [{"required": [f"a{n}"]} for n in range(2000)]},
    "not within not": {"not": {"anyOf": [{"not": {"allOf": [{"enum": [*range(500)]}] * 99}}] * 20}},
    "patterns": {
        "patternProperties": {f"(a|b)*a(a|b){{{n}}}": {"minimum": n} for n in range(9, 20)}
    },
    "names": {"propertyNames": {"allOf": [{"pattern": f"(x|y)*x(x|y){{{n}}}"} for n in range(20)]}},
    "itself": {"$defs": {"a": {"not": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"},
    "itself by allOf": {"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"},
    "unevaluated": {
        "allOf": [{"anyOf": [{"properties": {f"p{n}{m}": {}}} for m in "abc"]} for n in range(40)],
        "unevaluatedProperties": False,
    },
    "constants": {"enum": ["a" * 2000] * 500, "pattern": "(a|aa|aaa)*b"},
    "different": {"items": {"enum": list(range(200))}, "uniqueItems": True, "type": "array"},
    "places": {"contains": {"contains": {"contains": {"contains": {"contains": STRING}}}}},
    "laughs": {
        "$defs": {
            **{f"l{n}": {"not": {"anyOf": [{"$ref": f"#/$defs/l{n + 1}"}] * 9}} for n in range(30)},
            "l30": STRING,
        },
        "$ref": "#/$defs/l0",
    },
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_rewriting_is_bounded(name: str) -> None:
    start_s = time.process_time()
    try:
        made = rewritten(HOSTILE[name])
    except InvalidConstraint:
        made = {}
    assert time.process_time() - start_s < 5
    assert len(json.dumps(made)) < 40 * len(json.dumps(HOSTILE[name])) + 200_000


@pytest.mark.parametrize("depth", [130, 900, 20_000])
@pytest.mark.parametrize("keyword", ["items", "not", "anyOf", "default"])
def test_depth_is_bounded(keyword: str, depth: int) -> None:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {keyword: [schema] if keyword == "anyOf" else schema}
    with pytest.raises(InvalidConstraint, match="deep"):
        rewritten(schema)


@pytest.mark.parametrize(
    "pattern",
    ["^a+$", "foo", "^x-", r"^\d+(\.\d+)*$", "^(foo|bar)$", "^[A-Z]{2}-[0-9]{2}$", "^(?!a)[ab]*$"],
)
def test_automata_agree_with_the_standard_library(pattern: str) -> None:
    import re

    texts = ["", "a", "aa", "b", "ba", "foo", "xfoox", "x-", "1.2", "1.", "bar", "AB-12", "AB-1"]
    node, others = searched(pattern), other_texts(searched(pattern), Effort())
    assert others is not None
    for text in texts:
        is_found = re.search(pattern, text) is not None
        assert matches(node, text, Effort()) is is_found
        assert matches(others, text, Effort()) is not is_found


def test_automata_share_and_cut() -> None:
    one, other = searched("^a"), searched("b$")
    both, rest = shared(one, other, Effort()), left(one, other, Effort())
    assert both is not None and rest is not None
    assert [matches(both, t, Effort()) for t in ("ab", "a", "b")] == [True, False, False]
    assert [matches(rest, t, Effort()) for t in ("ab", "a", "b")] == [False, True, False]
    assert are_disjoint(both, rest, Effort())
    with pytest.raises(Undecided):
        other_texts(searched("(a|b)*a(a|b){30}"), Effort())


def test_what_is_surely_apart() -> None:
    context = Context({}, Budget())
    closed = {"type": "object", "properties": {"b": {}}, "additionalProperties": False}
    apart = [
        (STRING, INTEGER),
        ({"enum": [1, 2]}, {"minimum": 3}),
        ({"minimum": 3}, {"type": "number", "exclusiveMaximum": 3}),
        ({**STRING, "pattern": "^a"}, {**STRING, "pattern": "^b"}),
        ({"type": "object", "required": ["a"]}, closed),
        ({"type": "array", "minItems": 3}, {"type": "array", "maxItems": 2}),
    ]
    assert [pair for pair in apart if not context.are_apart(*pair)] == []
    together = [(INTEGER, {"type": "number"}), ({"required": ["b"]}, closed), (STRING, {})]
    assert [pair for pair in together if context.are_apart(*pair)] == []


def test_constants_are_judged_like_anything() -> None:
    schema = {"if": {"type": "string"}, "then": {"minLength": 2}, "else": {"multipleOf": 0.1}}
    found = [meets(value, schema, {}, Effort()) for value in ("a", "ab", 0.3, 0.35, None)]
    assert found == [False, True, True, False, True]


@pytest.mark.parametrize(
    ("items", "least", "is_enough"),
    [
        ({"type": "string", "pattern": "^[ab]{2}$"}, 4, True),
        ({"type": "string", "pattern": "^[ab]{2}$"}, 5, False),
        ({"type": "string", "pattern": "^a*$"}, 900, True),
        ({"type": "string", "format": "ipv4"}, 900, True),
        ({"type": "string", "maxLength": 0}, 2, False),
        ({"type": "integer", "minimum": 0, "maximum": 99}, 90, True),
        ({"type": "integer", "minimum": 0, "maximum": 99}, 101, False),
        ({"anyOf": [{"type": "null"}, {"type": "string"}]}, 30, True),
        ({"properties": {"a": {"type": "number"}}, "additionalProperties": False}, 9, True),
        (
            {"type": "object", "properties": {"a": {"const": 1}}, "additionalProperties": False},
            3,
            False,
        ),
    ],
)
def test_lists_of_different_items_need_as_many(items: Any, least: int, is_enough: bool) -> None:
    schema = {"type": "array", "items": items, "uniqueItems": True, "minItems": least}
    try:
        rewritten(schema)
    except InvalidConstraint as error:
        assert error.pointer == "/uniqueItems"
        assert not is_enough
    else:
        assert is_enough


@pytest.mark.parametrize("reference", ["#node", "tree#node", "https://example.com/tree#node"])
def test_a_reference_that_depends_on_the_way_is_refused(reference: str) -> None:
    schema: dict[str, Any] = {
        "$id": "https://example.com/strict",
        "$dynamicAnchor": "node",
        "properties": {"a": {"$ref": "tree"}},
        "$defs": {
            "tree": {
                "$id": "tree",
                "$dynamicAnchor": "node",
                "properties": {"b": {"$dynamicRef": reference}},
            }
        },
    }
    with pytest.raises(InvalidConstraint, match="leads to no schema"):
        rewritten(schema)
    del schema["$dynamicAnchor"]
    assert rewritten(schema)


@pytest.mark.parametrize(
    "inner",
    [
        {"items": True},
        {"unevaluatedItems": True},
    ],
)
def test_what_allows_everything_still_evaluates_items(inner: dict[str, Any]) -> None:
    schema = {"type": "array", "allOf": [inner], "unevaluatedItems": False}
    assert "false" not in json.dumps(rewritten(schema))


@pytest.mark.parametrize(
    "schema",
    [
        {"const": float("inf")},
        {"enum": [1, float("nan")]},
        {"const": {"a": [-float("inf")]}},
        {"enum": [float("inf")], "minimum": 0},
    ],
)
def test_constants_that_json_cannot_write_are_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(InvalidConstraint, match="finite") as caught:
        rewritten(schema)
    assert caught.value.pointer in ("/const", "/enum")


@pytest.mark.full_only
def test_a_search_without_an_end_is_the_schemas_fault() -> None:
    """Telling 500 branches apart pair by pair takes more work than one schema may cost."""

    def nested(schema: dict[str, Any], depth: int) -> dict[str, Any]:
        inner = nested(schema, depth - 1) if depth else schema
        return {"type": "object", "required": ["in"], "properties": {"in": inner}}

    branches = [nested({"const": f"k{i}"}, 5) for i in range(500)]
    with pytest.raises(InvalidConstraint) as caught:
        rewritten({"properties": {"a": {"oneOf": branches}}})
    assert caught.value.pointer == "/properties/a"
