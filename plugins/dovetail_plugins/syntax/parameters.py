"""A tool's parameters one by one, from its schema, and values that were not written as JSON.

For syntaxes that write parameters apart from each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dovetail.interfaces.data.constraint import (
    Choice,
    Concat,
    Constraint,
    Literal,
    Regex,
    concat,
    optional,
)
from dovetail.interfaces.data.text import Tool
from dovetail.interfaces.tool_parser import MalformedToolCall
from dovetail.json_text import loads, quoted
from dovetail_plugins.syntax.literals import PYTHON
from dovetail_plugins.syntax.schemas import (
    TEXT,
    alone,
    inner_schema,
    is_allowed,
    kind_of,
    kinds,
    listed,
)
from dovetail_plugins.syntax.type_words import with_json_types

MAX_OPEN = 8
OPEN_NAME = Regex("[a-z][a-z0-9_]{0,30}")
"""What is written for a tool without a schema: this many parameters at most, with such names."""
CONSTANTS = {"true": "true", "false": "false", "null": "null", "none": "null"}
OF_PYTHON = {"True": "true", "False": "false", "None": "null"}
EMPTY = (("array", "[]"), ("object", "{}"), ("null", "null"))
"""JSON types for which an empty text is valid when a string is not allowed."""
SEPARABLE = frozenset(
    ("type", "properties", "required", "additionalProperties", "title", "description", "$defs",
     "definitions", "$schema", "$id", "$comment", "default", "examples", "strict")
)  # fmt: skip
"""Keywords of an object that hold if every parameter by itself is right."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter; its schema is self-contained and includes the definitions it refers to."""

    name: str
    schema: dict[str, Any]
    is_required: bool


def parameters_of(tool: Tool) -> list[Parameter] | None:
    """Return the parameters that can be written, required ones first, each in the schema's order.

    None if parameters that are each valid may still be invalid together.
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
        Parameter(name, alone(declared.get(name, {}), schema), name in required)
        for name in (*needed, *more)
    ]


def is_open(tool: Tool) -> bool:
    """Return whether a tool does not describe its parameters: then any may be written."""
    schema = tool.parameters
    return "properties" not in schema and schema.get("additionalProperties") is not False


def schema_of_parameter(tools: Mapping[str, Tool], tool_name: str, name: str) -> dict[str, Any]:
    """Return the schema of a call's parameter, in JSON's types; {} if none is declared."""
    tool = tools.get(tool_name)
    return with_json_types(inner_schema(tool.parameters, name)) if tool else {}


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


def as_json(text: str, schema: Mapping[str, Any]) -> str:
    """Return the JSON text of a parameter that a model wrote without saying its type.

    A string stays text, and so does a value that the schema lists as one. Otherwise text whose JSON
    type the schema allows is copied byte for byte. Constants and lists may be Python's, and
    non-string JSON may be written as a string, with or without quotes. Nothing at all is an empty
    list or object; anything else is text.
    """
    allowed = kinds(schema)
    written = text.strip()
    if allowed == TEXT or (written in listed(schema) and not _is_listed(written, schema)):
        return quoted(text if allowed == TEXT else written)
    may_be_text = allowed is None or "string" in allowed
    if not written and not may_be_text:
        return next((value for kind, value in EMPTY if kind in (allowed or ())), quoted(text))
    constant = OF_PYTHON.get(written) if may_be_text else CONSTANTS.get(written.lower())
    for candidates in (written, constant, _from_python(written)):
        if candidates is not None and _fits(candidates, allowed):
            return candidates
    if not may_be_text:
        candidates = _unescaped(written)
        if candidates is not None and _fits(candidates, allowed):
            return candidates
    return quoted(text)


def _is_listed(text: str, schema: Mapping[str, Any]) -> bool:
    """Return whether a schema lists the value that a JSON text says."""
    try:
        value = loads(text)
    except MalformedToolCall:
        return False
    return any(type(value) is type(other) and value == other for other in listed(schema))


def _fits(text: str, allowed: frozenset[str] | None) -> bool:
    try:
        return is_allowed(kind_of(loads(text)), allowed)
    except MalformedToolCall:
        return False


def _unescaped(text: str) -> str | None:
    """Return the value of a text that is written like a JSON string or its inside."""
    try:
        value = loads(text if text[:1] == '"' else f'"{text}"')
    except MalformedToolCall:
        return None
    return value.strip() if isinstance(value, str) else None


def _from_python(text: str) -> str | None:
    if text[:1] not in ("[", "{", "("):
        return None
    try:
        value, end = PYTHON.value(text, 0)
    except MalformedToolCall:
        return None
    return value if end == len(text) else None
