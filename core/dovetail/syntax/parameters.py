"""What a tool's schema says of its parameters one by one, and values that were not written as JSON.

For syntaxes that write parameters apart from each other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dovetail.interfaces.constraint import (
    Choice,
    Concat,
    Constraint,
    Literal,
    Regex,
    concat,
    optional,
)
from dovetail.interfaces.text import Tool
from dovetail.interfaces.tool_parser import MalformedToolCall
from dovetail.syntax.json_text import loads
from dovetail.syntax.literals import PYTHON
from dovetail.syntax.type_words import with_json_types

TEXT = frozenset({"string"})
NUMBERS = frozenset({"integer", "number"})
MAX_REFERENCES = 8
MAX_OPEN = 8
OPEN_NAME = Regex("[a-z][a-z0-9_]{0,30}")
"""What is written for a tool that says nothing: so many parameters at most, with such names."""
CONSTANTS = {"true": "true", "false": "false", "null": "null", "none": "null"}
SEPARABLE = frozenset(
    ("type", "properties", "required", "additionalProperties", "title", "description", "$defs",
     "definitions", "$schema", "$id", "$comment", "default", "examples", "strict")
)  # fmt: skip
"""Keywords of an object that hold if every parameter by itself is right."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter; its schema stands alone: definitions it may refer to are within."""

    name: str
    schema: dict[str, Any]
    is_required: bool


def parameters_of(tool: Tool) -> list[Parameter] | None:
    """Return the parameters that can be written, required ones first, each in the schema's order.

    None where parameters that are right one by one may still be wrong together.
    """
    schema = with_json_types(tool.parameters)
    declared = schema.get("properties", {})
    required = schema.get("required", [])
    if not (SEPARABLE.issuperset(schema) and isinstance(declared, dict)):
        return None
    if schema.get("type", "object") != "object" or not isinstance(required, list):
        return None
    needed = [name for name in declared if name in required]
    needed += [name for name in required if name not in declared]
    more = [name for name in declared if name not in required]
    return [
        Parameter(name, _alone(declared.get(name, {}), schema), name in required)
        for name in (*needed, *more)
    ]


def is_open(tool: Tool) -> bool:
    """Return whether a tool says nothing of its parameters: then any may be written."""
    schema = tool.parameters
    return "properties" not in schema and schema.get("additionalProperties") is not False


def schema_of_parameter(tools: Mapping[str, Tool], tool_name: str, name: str) -> dict[str, Any]:
    """Return the schema of a call's parameter, in JSON's types; {} where none is declared."""
    tool = tools.get(tool_name)
    declared = tool.parameters.get("properties") if tool else None
    found = declared.get(name) if isinstance(declared, dict) else None
    if tool is None or not isinstance(found, dict):
        return {}
    return with_json_types(_alone(found, tool.parameters))


def arguments_constraint(
    parameters: list[Parameter], written: list[Constraint], between: str
) -> Constraint:
    """Return arguments divided by a text: those required in order, then those that may be left out.

    `written` are the constraints of the parameters' names and values.
    """
    pairs = list(zip(parameters, written, strict=True))
    needed = [constraint for parameter, constraint in pairs if parameter.is_required]
    more = [constraint for parameter, constraint in pairs if not parameter.is_required]
    if needed:
        others = [concat(between, constraint) for constraint in needed[1:]]
        return concat(needed[0], *others, *(optional(concat(between, f)) for f in more))
    firsts: list[Constraint] = []
    for number, constraint in enumerate(more):
        rest = [optional(concat(between, f)) for f in more[number + 1 :]]
        firsts.append(Concat((constraint, *rest)))
    return Choice((*firsts, Literal(""))) if firsts else Literal("")


def _alone(schema: Any, root: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema with its own reference followed, and the root's definitions beside it."""
    made = schema if isinstance(schema, dict) else {}
    for _ in range(MAX_REFERENCES):
        reference = made.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#/"):
            break
        made = _at(root, reference)
    definitions = {key: root[key] for key in ("$defs", "definitions") if key in root}
    return {**definitions, **made} if "$ref" in json.dumps(made) else dict(made)


def _at(root: Mapping[str, Any], reference: str) -> dict[str, Any]:
    found: Any = root
    for part in reference[2:].split("/"):
        key = part.replace("~1", "/").replace("~0", "~")
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def kinds(schema: Mapping[str, Any]) -> frozenset[str] | None:
    """Return the JSON types that a schema allows, or None where it does not say."""
    named = schema.get("type")
    if isinstance(named, str):
        named = [named]
    if isinstance(named, list):
        return frozenset(str(kind) for kind in named) | _if_nullable(schema)
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(values, list) and values:
        return frozenset(kind_of(value) for value in values)
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            part_kinds = [kinds(part) if isinstance(part, dict) else None for part in schema[key]]
            some = [kind for kind in part_kinds if kind is not None]
            return frozenset().union(*some) if len(some) == len(part_kinds) else None
    parts = schema.get("allOf")
    part_kinds = [kinds(part) for part in parts if isinstance(part, dict)] if parts else []
    return next((kind for kind in part_kinds if kind is not None), None)


def _if_nullable(schema: Mapping[str, Any]) -> frozenset[str]:
    return frozenset({"null"}) if schema.get("nullable") is True else frozenset()


def kind_of(value: Any) -> str:
    """Return the JSON type of a value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    names = ((str, "string"), (int, "integer"), (float, "number"), (list, "array"))
    return next((name for kind, name in names if isinstance(value, kind)), "object")


def _is_allowed(kind: str, allowed: frozenset[str] | None) -> bool:
    if allowed is None or kind in allowed:
        return True
    return kind in NUMBERS and bool(allowed & NUMBERS)


def is_text(schema: Mapping[str, Any]) -> bool:
    """Return whether a parameter is declared as a string and nothing else."""
    return kinds(schema) == TEXT


def quoted(text: str) -> str:
    """Return a text as a JSON string. Of a longer text it is longer, but for the closing mark."""
    return json.dumps(text, ensure_ascii=False)


def as_json(text: str, schema: Mapping[str, Any]) -> str:
    """Return the JSON text of a parameter that a model wrote without saying its type.

    A string stays text. Else JSON keeps the model's bytes, where the schema allows its type;
    constants and lists may be Python's, and JSON that is not a string may be written as one, with
    or without its quotes; what is none of these is text.
    """
    allowed = kinds(schema)
    written = text.strip()
    if allowed == TEXT:
        return quoted(text)
    for candidates in (written, CONSTANTS.get(written.lower()), _from_python(written)):
        if candidates is not None and _fits(candidates, allowed):
            return candidates
    if allowed is not None and "string" not in allowed:
        candidates = _unescaped(written)
        if candidates is not None and _fits(candidates, allowed):
            return candidates
    return quoted(text)


def _fits(text: str, allowed: frozenset[str] | None) -> bool:
    try:
        return _is_allowed(kind_of(loads(text)), allowed)
    except MalformedToolCall:
        return False


def _unescaped(text: str) -> str | None:
    """Return the value of a text that is written like a JSON string or its inside."""
    try:
        made = loads(text if text[:1] == '"' else f'"{text}"')
    except MalformedToolCall:
        return None
    return made.strip() if isinstance(made, str) else None


def _from_python(text: str) -> str | None:
    if text[:1] not in ("[", "{", "("):
        return None
    try:
        made, end = PYTHON.value(text, 0)
    except MalformedToolCall:
        return None
    return made if end == len(text) else None
