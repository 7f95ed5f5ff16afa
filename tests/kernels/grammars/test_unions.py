"""Unions of many branches, and random ones held against jsonschema."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest

from dovetail.interfaces.structured_output import InvalidConstraint
from dovetail_grammars.rewriting import branches
from dovetail_grammars.rewriting.pipeline import rewritten
from support.samples import sample_of

VALUES: list[Any] = [
    *(None, True, 0, 1, 2, 3, 5.5, "", "a", "ab", [], [1], {}, {"k": 1}, {"k": 2}, {"k": "a"}),
    *({"k": 1, "v": 2}, {"v": 1}, {"a": 1}, {"b": 1}, {"a": 1, "b": 1}, {"m": {"k": 1}}),
    *({"m": {"k": 2}}, {"m": {}}),
]
LEAVES: list[Any] = [
    *({"const": 1}, {"const": 2}, {"enum": [1, 2]}, {"enum": ["a", 1]}, {"type": "string"}),
    *({"minimum": 2}, {"maxLength": 1}, True, {"enum": [1, 1.0]}, {"const": True}),
]
KINDS: list[Any] = [["object", "string"], "object", ["number", "null"], "integer"]


def an_object(number: int) -> Any:
    """Return a branch that its constant tells apart."""
    kind = {"const": f"k{number}"}
    return {"type": "object", "properties": {"kind": kind}, "required": ["kind"]}


def nested(number: int) -> Any:
    """Return a branch whose constant is in a member."""
    return {"type": "object", "properties": {"of": an_object(number)}, "required": ["of"]}


def untyped(number: int) -> Any:
    """Return a branch that says nothing about other values than objects."""
    return {k: v for k, v in an_object(number).items() if k != "type"}


def by_name(number: int) -> Any:
    """Return a branch that is told apart by the name of its member."""
    name = f"k{number}"
    members = {name: {"type": "integer"}}
    return {
        "type": "object",
        "properties": members,
        "required": [name],
        "additionalProperties": False,
    }


def of_two(number: int) -> Any:
    """Return a branch that two constants tell apart together."""
    members = {"a": {"const": f"k{number % 25}"}, "b": {"const": number // 25}}
    return {"type": "object", "properties": members, "required": ["a", "b"]}


def of_different_members(number: int) -> Any:
    """Return a branch with a constant in one of seven members."""
    name = f"p{number % 7}"
    return {"type": "object", "properties": {name: {"const": number}}, "required": [name]}


def a_list(number: int) -> Any:
    """Return a branch whose first item tells it apart."""
    return {"type": "array", "prefixItems": [{"const": f"k{number}"}], "minItems": 1}


def optional(number: int) -> Any:
    """Return a branch whose constant need not be there."""
    return {k: v for k, v in an_object(number).items() if k != "required"}


@pytest.mark.parametrize(
    "branch",
    [an_object, nested, untyped, by_name, of_two, of_different_members, a_list, optional],
)
def test_long_unions_that_constants_or_names_tell_apart_are_taken(
    branch: Callable[[int], Any],
) -> None:
    begun_s = time.process_time()
    made = rewritten({"oneOf": [branch(number) for number in range(500)]})
    assert len(made["anyOf"]) == 500
    assert time.process_time() - begun_s < 3  # pair by pair it takes more than five


def test_a_constant_that_is_needed_beside_the_union_tells_its_branches_apart() -> None:
    union = [optional(number) for number in range(300)]
    made = rewritten({"type": "object", "required": ["kind"], "oneOf": union})
    assert made["anyOf"][7]["properties"]["kind"]["enum"] == ["k7"]
    assert all("required" not in branch for branch in made["anyOf"])


def a_branch(chance: random.Random) -> Any:
    """Return a random small schema."""
    match chance.randrange(6):
        case 0:
            return chance.choice(LEAVES)
        case 1:
            return {"enum": chance.sample(VALUES, 3)}
        case 2:
            return {"type": chance.choice(KINDS)}
        case 3:
            return {"$ref": "#/$defs/x"}
    inner = {
        "type": "object",
        "properties": {"k": chance.choice(LEAVES)},
        "required": ["k"],
    }
    names = chance.sample("kvabm", chance.randint(1, 3))
    made: dict[str, Any] = {
        "properties": {n: inner if n == "m" else chance.choice(LEAVES) for n in names}
    }
    made |= {"required": names[:1]} if chance.random() < 0.8 else {}
    made |= {"additionalProperties": False} if chance.random() < 0.4 else {}
    return made | ({"type": "object"} if chance.random() < 0.6 else {})


@pytest.mark.parametrize("is_long", [False, True])
def test_random_unions_take_nothing_that_jsonschema_refuses(
    is_long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_long:  # each union is made narrower, as long ones are
        monkeypatch.setattr(branches, "MAX_COMPARED", -1)
    chance, num_taken = random.Random(0), 0
    for _ in range(sample_of(300, 100)):
        schema: dict[str, Any] = {
            "oneOf": [a_branch(chance) for _ in range(chance.randint(2, 5))],
            "$defs": {"x": an_object(chance.randrange(3))},
        }
        if chance.random() < 0.4:
            schema["type"] = chance.choice(KINDS)
        judge = jsonschema.Draft202012Validator(schema)
        try:
            ours = jsonschema.Draft202012Validator(rewritten(schema))
        except InvalidConstraint:
            continue
        for value in VALUES:
            is_taken = ours.is_valid(value)
            num_taken += is_taken
            assert judge.is_valid(value) or not is_taken, (schema, value)
    assert num_taken > sample_of(1000, 250)
