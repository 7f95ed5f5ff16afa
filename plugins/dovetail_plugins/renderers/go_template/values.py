"""Values of Go templates: Ollama's types over JSON, and how values are written.

A `Record` is a struct of Ollama's API: its fields have names in Go and in JSON. Source: Ollama's
template reference, and https://pkg.go.dev/fmt and https://pkg.go.dev/encoding/json.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from dovetail.interfaces.renderer import SpelledArguments
from dovetail_plugins.renderers.go_template.lexing import GoTemplateError

NO_VALUE = "<no value>"
_IN_HTML = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}
"""Characters that Go's JSON escapes."""


@dataclass(frozen=True, slots=True)
class Member:
    """A field of a struct: its name in JSON, its value if it is missing, and the struct of its
    value, or of each value in a list or map (`of`)."""

    key: str
    zero: Any = ""
    of: Shape | None = None


Shape = Mapping[str, Member]

PROPERTY: Shape = {
    "AnyOf": Member("anyOf", ()),
    "Type": Member("type"),
    "Items": Member("items", None),
    "Description": Member("description"),
    "Enum": Member("enum", ()),
    "Properties": Member("properties", {}),
    "Required": Member("required", ()),
}
PARAMETERS: Shape = {
    "Type": Member("type"),
    "Defs": Member("$defs", None),
    "Items": Member("items", None),
    "Required": Member("required", ()),
    "Properties": Member("properties", {}, PROPERTY),
}
FUNCTION: Shape = {
    "Name": Member("name"),
    "Description": Member("description"),
    "Parameters": Member("parameters", {}, PARAMETERS),
}
TOOL: Shape = {
    "Type": Member("type"),
    "Items": Member("items", None),
    "Function": Member("function", {}, FUNCTION),
}
CALL_FUNCTION: Shape = {
    "Index": Member("index", 0),
    "Name": Member("name"),
    "Arguments": Member("arguments", {}),
}
CALL: Shape = {"ID": Member("id"), "Function": Member("function", {}, CALL_FUNCTION)}
MESSAGE: Shape = {
    "Role": Member("role"),
    "Content": Member("content"),
    "Thinking": Member("thinking"),
    "Images": Member("images", ()),
    "ToolCalls": Member("tool_calls", (), CALL),
    "ToolName": Member("tool_name"),
    "ToolCallID": Member("tool_call_id"),
}


class AsJson:
    """Marks values that are written as JSON."""


class JsonList(list[Any], AsJson):
    """A list that is written as JSON."""


class JsonMap(dict[str, Any], AsJson):
    """A map that is written as JSON."""


class Record(AsJson):
    """A struct over a JSON object."""

    def __init__(self, shape: Shape, data: Mapping[str, Any]) -> None:
        self.shape = shape
        self.data = data

    def field(self, name: str) -> Any:
        """Return a field, by its name in Go. Raises: GoTemplateError"""
        member = self.shape.get(name)
        if member is None:
            fields = ", ".join(self.shape)
            raise GoTemplateError(f"there is no field .{name} here, only {fields}")
        value = self.data.get(member.key)
        return _of_shape(member.zero if value is None else value, member.of)

    def items(self) -> Iterator[tuple[str, Any]]:
        """Yield the JSON names and values: the struct's in its order, then all others. Empty fields
        are left out."""
        own = [member.key for member in self.shape.values()]
        for key in (*own, *(key for key in self.data if key not in own)):
            if self.data.get(key) or (key not in own and key in self.data):
                yield key, self.data[key]

    def nested(self, key: str) -> Shape | None:
        """Return the struct of the values under a JSON name."""
        return next((m.of for m in self.shape.values() if m.key == key), None)


def _of_shape(value: Any, shape: Shape | None) -> Any:
    if shape is None:
        return JsonMap(value) if type(value) is dict else value
    if isinstance(value, list | tuple):
        return [Record(shape, one) for one in value]
    if shape is PROPERTY:
        return JsonMap({name: Record(shape, one) for name, one in value.items()})
    return Record(shape, value)


def field_of(value: Any, name: str) -> Any:
    """Return a field of a struct, or what a map has under a name (None if nothing). Raises:
    GoTemplateError for other values"""
    if isinstance(value, Record):
        return value.field(name)
    if isinstance(value, Mapping):
        return value.get(name)
    raise GoTemplateError(f"{kind_of(value)} has no field .{name}")


def kind_of(value: Any) -> str:
    """Return what a value is, in words."""
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a text"}
    if value is None:
        return "nil"
    if isinstance(value, Mapping):
        return "a map"
    return names.get(type(value), "a list" if isinstance(value, Sequence) else "a struct")


def is_true(value: Any) -> bool:
    """Return Go's truth: zero and whatever is empty is false, a struct is always true."""
    return True if isinstance(value, Record) else bool(value)


def json_text(value: Any) -> str:
    """Return a value as Go writes JSON: without blanks, with escapes for HTML. Maps keep the
    client's order; arguments that the model wrote are as it wrote them."""
    if isinstance(value, SpelledArguments):
        return value.text
    text = json.dumps(_plain(value), ensure_ascii=False, separators=(",", ":"))
    return text.translate(_IN_HTML)


def _plain(value: Any) -> Any:
    if isinstance(value, Record):
        return {key: _plain(_of_shape(one, value.nested(key))) for key, one in value.items()}
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) < 1e21
    return int(value) if is_whole else value


def written(value: Any) -> str:
    """Return a value as an action writes it."""
    return NO_VALUE if value is None else shown(value)


def shown(value: Any) -> str:
    """Return a value as Go's %v does; structs of Ollama's are JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, AsJson | SpelledArguments):
        return json_text(value)
    if value is None or isinstance(value, bool):
        return "<nil>" if value is None else str(value).lower()
    if isinstance(value, float):
        return _float_text(value)
    if isinstance(value, Mapping):
        return f"map[{' '.join(f'{key}:{shown(value[key])}' for key in sorted(value))}]"
    if isinstance(value, list | tuple):
        return f"[{' '.join(map(shown, value))}]"
    return str(value)


def _float_text(value: float) -> str:
    """Return a number by Go's %v: with an exponent below 1e-4, and from 1e6 on."""
    if not math.isfinite(value):
        return {"inf": "+Inf", "-inf": "-Inf"}.get(str(value), "NaN")
    number = Decimal(repr(value)).normalize()
    exponent = number.adjusted()
    if value and not -4 <= exponent < 6:
        digits = number.scaleb(-exponent)
        return f"{digits:f}e{'-' if exponent < 0 else '+'}{abs(exponent):02}"
    return f"{number:f}"
