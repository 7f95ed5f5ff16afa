"""Constraints that are meant to take long or much: each is compiled or refused, within the
limit."""

from __future__ import annotations

from typing import Any

from dovetail.interfaces.data.constraint import (
    Choice,
    Constraint,
    Grammar,
    JsonSchema,
    Literal,
    Regex,
)


def nested(keyword: str, depth: int, width: int = 2) -> Any:
    """Return alternatives of alternatives."""
    schema: Any = {"type": "integer"}
    for level in range(depth):
        others = [{"type": "string", "maxLength": level + n} for n in range(width - 1)]
        schema = {keyword: [schema, *others]}
    return schema


def laughs(levels: int, width: int) -> Any:
    """Return definitions that each use the one before several times."""
    defs: dict[str, Any] = {"d0": {"type": "string", "maxLength": 9}}
    for level in range(1, levels):
        members = {f"m{n}": {"$ref": f"#/$defs/d{level - 1}"} for n in range(width)}
        defs[f"d{level}"] = {"type": "object", "properties": members, "required": list(members)}
    return {"$ref": f"#/$defs/d{levels - 1}", "$defs": defs}


def members(count: int, *, are_required: bool) -> Any:
    """Return an object of many members."""
    named = {f"member{n}": {"type": "integer"} for n in range(count)}
    required = list(named) if are_required else []
    return {"type": "object", "properties": named, "required": required}


def apart(depth: int) -> Any:
    """Return branches of oneOf that hold two branches each, and so on."""
    if not depth:
        return {"type": "object", "properties": {"k": {"const": "x"}}, "required": ["k"]}
    inner = [
        {
            "type": "object",
            "properties": {"k": {"const": n}, "v": apart(depth - 1)},
            "required": ["k"],
        }
        for n in range(2)
    ]
    return {"oneOf": inner}


AROUND = {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}
LONG_ITEM = {"type": "string", "pattern": "^(a|b){900}$"}
HOSTILE: dict[str, Constraint] = {
    "oneOf in oneOf": JsonSchema(nested("oneOf", 40)),
    "oneOf apart": JsonSchema(apart(12)),
    "anyOf in anyOf": JsonSchema(nested("anyOf", 60, 8)),
    "enum": JsonSchema({"enum": [f"value {n} of many" for n in range(20_000)]}),
    "members": JsonSchema(members(8_000, are_required=False)),
    "required members": JsonSchema(members(8_000, are_required=True)),
    "itself": JsonSchema({"$ref": "#"}),
    "itself by two": JsonSchema({"$ref": "#/$defs/a", "$defs": AROUND}),
    "itself in anyOf": JsonSchema({"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}),
    "list of itself": JsonSchema({"type": "array", "items": {"$ref": "#"}, "minItems": 1}),
    "laughs": JsonSchema(laughs(14, 10)),
    "long string": JsonSchema({"type": "string", "minLength": 90_000, "maxLength": 100_000}),
    "long list": JsonSchema({"type": "array", "items": LONG_ITEM, "minItems": 5000}),
    "count": Regex("a{0,100000}b"),
    "counts": Regex("((a{0,300}){0,300}){0,300}"),
    "same ways": Regex("(a|a)*b"),
    "ways in ways": Regex("((a*)*)*b"),
    "twentieth from the end": Regex("(a|b)*a(a|b){22}"),
    "classes": Regex("[\u0100-\uffff]{1,2000}x"),
    "brackets": Regex("(" * 5000 + "a" + ")" * 5000),
    "choice": Choice(tuple(Literal(f"choice {n}") for n in range(10_000))),
    "left recursion": Grammar('root ::= root "a" | root root | ""'),
    "empty loop": Grammar('root ::= (""*)* "a"'),
    "deep grammar": Grammar("root ::= " + "(" * 4000 + '"a"' + ")" * 4000),
}  # fmt: skip
