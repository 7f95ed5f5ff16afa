"""Passes "conditions": `if`, `dependentRequired` and `dependentSchemas` become alternatives.

"If A then B else C" is A and B, or not A and C. If several conditions test the value of one member
(the usual way to distinguish kinds of objects), there is one alternative per value instead of one
per combination. If the negation of A cannot be expressed, the alternative is B and C, which is
valid whether or not A holds. Source: https://json-schema.org/draft/2020-12/json-schema-core
(10.2.2), -validation (6.5.4).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dovetail_grammars.rewriting.automaton import Undecided
from dovetail_grammars.rewriting.context import Context
from dovetail_grammars.rewriting.negation import opposite, other_values
from dovetail_grammars.rewriting.tree import (
    KINDS,
    ORIGIN,
    Schema,
    all_of,
    any_of,
    is_any,
    origin,
    with_parts,
)
from dovetail_grammars.rewriting.values import same

_OF_A_CONDITION = {"if", "then", "else", ORIGIN}
_OF_A_TEST = {"properties", "required", "type", ORIGIN}


def without_dependents(node: Schema, context: Context) -> Any:
    """Return a node with its dependent keywords rewritten as alternatives."""
    at = origin(node)
    rest = {k: v for k, v in node.items() if k not in ("dependentRequired", "dependentSchemas")}
    needed = set(node.get("required", ()))
    for name, others in node.get("dependentRequired", {}).items():
        context.budget.spend(2, at)
        if name in needed:
            fresh = [other for other in others if other not in rest["required"]]
            rest["required"] = [*rest["required"], *fresh]
        else:
            absent = {ORIGIN: f"{at}/dependentRequired", "properties": {name: False}}
            present = {ORIGIN: f"{at}/dependentRequired", "required": [name, *others]}
            rest = with_parts(rest, any_of([absent, present], f"{at}/dependentRequired"))
    for name, schema in node.get("dependentSchemas", {}).items():
        context.budget.spend(2, at)
        here = f"{at}/dependentSchemas"
        if name in needed:
            rest = with_parts(rest, schema)
            continue
        absent = {ORIGIN: here, "properties": {name: False}}
        present = all_of([{ORIGIN: here, "required": [name]}, schema], here)
        rest = with_parts(rest, any_of([absent, present], here))
    return rest


@dataclass(frozen=True, slots=True, kw_only=True)
class _Test:
    """A condition that tests the value of one member."""

    name: str
    values: list[Any]
    needs_member: bool
    needs_object: bool
    then: Any
    other: Any

    def outcome(self, value: Any) -> Any:
        """Return the schema that applies if the member has this value."""
        return self.then if any(same(value, one) for one in self.values) else self.other


def without_conditions(node: Schema, context: Context) -> Any:
    """Return a node with its conditions, including those in `allOf`, rewritten as alternatives."""
    own = {k: v for k, v in node.items() if k in _OF_A_CONDITION}
    conditions = [own] if "if" in node else []
    rest: list[Any] = []
    for part in node.get("allOf", ()):
        is_one = isinstance(part, Mapping) and "if" in part and not set(part) - _OF_A_CONDITION
        (conditions if is_one else rest).append(part)
    if not conditions:
        return node
    remaining = {k: v for k, v in node.items() if k not in _OF_A_CONDITION - {ORIGIN}}
    if rest:
        remaining["allOf"] = rest
    else:
        remaining.pop("allOf", None)
    tests: dict[str, list[_Test]] = {}
    others = []
    for condition in conditions:
        test = _test(condition, context)
        if test is None:
            others.append(condition)
        else:
            tests.setdefault(test.name, []).append(test)
    at = f"{origin(node)}/if"
    parts = [_by_value(remaining, group, context, at) for group in tests.values()]
    parts += [_alternatives(condition, context) for condition in others]
    return False if any(part is False for part in parts) else with_parts(remaining, *parts)


def _test(condition: Mapping[str, Any], context: Context) -> _Test | None:
    premise = condition["if"]
    if not isinstance(premise, Mapping) or set(premise) - _OF_A_TEST or "properties" not in premise:
        return None
    members = premise["properties"]
    if len(members) != 1 or premise.get("type", "object") not in ("object", ["object"]):
        return None
    (name, schema), needed = next(iter(members.items())), premise.get("required", [])
    if set(needed) - {name} or not isinstance(schema, Mapping) or set(schema) - {"enum", ORIGIN}:
        return None
    return _Test(
        name=name,
        values=schema["enum"],
        needs_member=bool(needed),
        needs_object="type" in premise,
        then=condition.get("then", True),
        other=condition.get("else", True),
    )


def _by_value(node: Schema, tests: list[_Test], context: Context, at: str) -> Any:
    """Return one alternative per outcome of the tests of one member."""
    name = tests[0].name
    kinds = context.kinds(node)
    parts = [part for part in context.parts(node) if isinstance(part, Mapping)]
    known = context.values(
        all_of([s for part in parts for s in context.members_at(part, name)], at)
    )
    is_needed = any(name in part.get("required", ()) for part in parts)
    tested: list[Any] = []
    for test in tests:
        tested += [v for v in test.values if not any(same(v, w) for w in tested)]
    others: Any = any_of(_opposite_values(tested, at), at)
    if known is not None:
        tested = [v for v in tested if any(same(v, k) for k in known)]
        rest = [k for k in known if not any(same(k, v) for v in tested)]
        others = {ORIGIN: at, "enum": rest} if rest else False
    branches: list[Any] = []
    for values in _grouped(tested, tests):
        outcomes = [test.outcome(values[0]) for test in tests]
        branches.append(_branch(name, {ORIGIN: at, "enum": values}, outcomes, at, is_needed=True))
    elses = [test.other for test in tests]
    absences = [test.other if test.needs_member else test.then for test in tests]
    is_alike = all(test.needs_member for test in tests)
    branches.append(_branch(name, others, elses, at, is_needed=is_needed or not is_alike))
    if not is_needed and not is_alike:
        branches.append(_branch(name, False, absences, at, is_needed=False))
    if kinds - {"object"}:
        free = {ORIGIN: at, "type": [kind for kind in KINDS if kind in kinds - {"object"}]}
        outcomes = [test.other if test.needs_object else test.then for test in tests]
        branches.append(all_of([free, *outcomes], at))
    context.budget.spend(2 * len(branches), at)
    return any_of(branches, at)


def _opposite_values(values: list[Any], at: str) -> list[Any]:
    try:
        return other_values(values, at)
    except Undecided:
        return []


def _grouped(values: list[Any], tests: list[_Test]) -> list[list[Any]]:
    """Return values grouped by their outcomes."""
    groups: dict[tuple[int, ...], list[Any]] = {}
    for value in values:
        key = tuple(id(test.outcome(value)) for test in tests)
        groups.setdefault(key, []).append(value)
    return list(groups.values())


def _branch(name: str, schema: Any, outcomes: list[Any], at: str, *, is_needed: bool) -> Any:
    if schema is False and is_needed:
        return False
    head = {ORIGIN: at, "type": "object", "properties": {name: schema}}
    if is_needed:
        head["required"] = [name]
    return all_of([head, *outcomes], at)


def _alternatives(condition: Mapping[str, Any], context: Context) -> Any:
    at = f"{origin(condition)}/if"
    premise, then = condition["if"], condition.get("then", True)
    other = condition.get("else", True)
    context.budget.spend(4, at)
    met = all_of([premise, then], at)
    try:
        unmet = all_of([opposite(premise, context, at), other], at)
    except Undecided:
        unmet = all_of([then, other], at)
    return True if is_any(met) or is_any(unmet) else any_of([met, unmet], at)
