"""Values arrive as the model wrote them, in the type that the tool's schema gives them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dovetail import registry
from dovetail.interfaces.data.text import Tool
from dovetail_testing.text_splits import parse_in_pieces, random_cuts

DSML = "｜DSML｜"
MM = "]<]minimax[>["


def _parser(name: str) -> Any:
    return registry.make(registry.choose("tool_parser", name))


def _written(name: str, value: str, said: str) -> str:
    """Return a call of f with one argument `a`; `said`: the type that the syntax writes."""
    return {
        "qwen3_coder": f"<tool_call>\n<function=f>\n<parameter=a>\n{value}\n</parameter>\n"
        "</function>\n</tool_call>",
        "glm45": "<tool_call>f\n<arg_key>a</arg_key>\n"
        f"<arg_value>{value}</arg_value>\n</tool_call>",
        "minimax_m2": f'<minimax:tool_call>\n<invoke name="f">\n<parameter name="a">{value}'
        "</parameter>\n</invoke>\n</minimax:tool_call>",
        "minimax_m3": f'{MM}<tool_call>{MM}<invoke name="f">{MM}<a>{value}{MM}</a>{MM}</invoke>'
        f"{MM}</tool_call>",
        "deepseek_v32": f'<{DSML}function_calls><{DSML}invoke name="f"><{DSML}parameter name="a" '
        f'string="{said or "false"}">{value}</{DSML}parameter></{DSML}invoke>'
        f"</{DSML}function_calls>",
        "kimi_k3": f'<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|><|open|>argument '
        f'key="a" type="{said or "null"}"<|sep|>{value}<|close|>argument<|sep|>'
        "<|close|>call<|sep|><|close|>tools<|sep|>",
        "gemma4": f"<|tool_call>call:f{{a:{value}}}<tool_call|>",
        "functiongemma": f"<start_function_call>call:f{{a:{value}}}<end_function_call>",
        "pythonic": f"[f(a={value})]",
        "olmo3": f"<function_calls>\nf(a={value})\n</function_calls>",
    }[name]


def _value(name: str, value: str, parameters: dict[str, Any], said: str = "") -> Any:
    tools = (Tool(name="f", parameters=parameters),)
    text = _written(name, value, said)
    whole = parse_in_pieces([text], tool_parser=_parser(name), tools=tools)
    for pieces in random_cuts(text, seed=7, num=12):
        cut = parse_in_pieces(pieces, tool_parser=_parser(name), tools=tools)
        assert [(c.name, c.arguments) for c in cut.calls] == [
            (c.name, c.arguments) for c in whole.calls
        ]
    (call,) = whole.calls
    return json.loads(call.arguments)["a"]


def _of(schema: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": schema}, **more}


XML = ["qwen3_coder", "glm45", "minimax_m2", "minimax_m3"]
BARE = ["gemma4", "functiongemma", "pythonic", "olmo3"]
NONE_OR_NULL = {"type": ["string", "null"], "enum": ["none", "auto", None]}


@pytest.mark.parametrize("name", XML)
@pytest.mark.parametrize(
    ("schema", "written", "value"),
    [
        (NONE_OR_NULL, "none", "none"),
        (NONE_OR_NULL, "null", None),
        ({"enum": ["none", None]}, "none", "none"),
        ({"anyOf": [{"enum": ["None", "True"]}, {"type": "null"}]}, "None", "None"),
        ({"enum": ["12", True]}, "12", "12"),
        ({"enum": ["12", 12]}, "12", 12),
        ({"type": ["string", "null"]}, "none", "none"),
        ({"type": ["string", "null"]}, "None", None),
        ({"type": ["boolean", "null"]}, "none", None),
        ({"anyOf": [{"$ref": "#/$defs/s"}, {"type": "null"}]}, "12345", "12345"),
    ],
)
def test_what_the_schema_lists_stays(
    name: str, schema: dict[str, Any], written: str, value: object
) -> None:
    assert _value(name, written, _of(schema, **{"$defs": {"s": {"type": "string"}}})) == value


@pytest.mark.parametrize("name", [*XML, "deepseek_v32", "kimi_k3"])
@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "array"}, []),
        ({"type": ["array", "null"], "items": {"type": "string"}}, []),
        ({"type": "object"}, {}),
        ({"type": ["integer", "null"]}, None),
        ({"anyOf": [{"type": "list"}, {"type": "null"}]}, []),
        ({"type": ["string", "array"]}, ""),
        ({"type": "string"}, ""),
    ],
)
def test_nothing_at_all_is_what_the_schema_takes(
    name: str, schema: dict[str, Any], value: object
) -> None:
    said = "true" if name == "deepseek_v32" and value == "" else ""
    assert _value(name, "", _of(schema), said=said) == value


@pytest.mark.parametrize("name", [*XML, *BARE])
@pytest.mark.parametrize(
    "parameters",
    [
        {"oneOf": [_of({"type": "string"}), {"type": "object", "properties": {"b": {}}}]},
        {"allOf": [{"$ref": "#/$defs/base"}], "$defs": {"base": _of({"type": "string"})}},
        {"$ref": "#/$defs/base", "$defs": {"base": _of({"type": "string"})}},
        {"anyOf": [{"allOf": [{"$ref": "#/definitions/b"}]}],
         "definitions": {"b": _of({"$ref": "#/definitions/s"}), "s": {"type": "string"}}},
        {"type": "object", "if": {}, "then": _of({"type": "string"})},
        {"type": "object", "additionalProperties": {"type": "string"}},
        _of({"type": "string"}),
    ],
)  # fmt: skip
def test_properties_are_found_wherever_a_schema_has_them(
    name: str, parameters: dict[str, Any]
) -> None:
    assert _value(name, "12345", parameters) == "12345"


@pytest.mark.parametrize("name", BARE)
@pytest.mark.parametrize(
    ("schema", "written", "value"),
    [
        ({"type": "string"}, "01234", "01234"),
        ({"type": ["string", "null"]}, "007", "007"),
        ({"type": "string"}, "1_000", "1_000"),
        ({"type": "string", "enum": ["none"]}, "none", "none"),
        ({"type": "integer"}, "12", 12),
        ({"type": ["string", "integer"]}, "12", 12),
        ({"type": "array", "items": {"type": "string"}}, "[01, 2]", ["01", "2"]),
    ],
)
def test_unquoted_text_of_a_string_stays(
    name: str, schema: dict[str, Any], written: str, value: object
) -> None:
    assert _value(name, written, _of(schema)) == value


@pytest.mark.parametrize("name", ["deepseek_v32", "kimi_k3"])
def test_what_the_model_says_of_a_type(name: str) -> None:
    text_word = "true" if name == "deepseek_v32" else "string"
    assert _value(name, "null", _of({"type": "string"})) is None
    assert _value(name, '"a b"', _of({"type": "string"})) == "a b"
    assert _value(name, "null", _of({"type": "string"}), said=text_word) == "null"
    assert _value(name, "12", _of({"type": ["string", "integer"]}), said=text_word) == "12"
    assert _value(name, "12", _of({"type": ["string", "integer"]})) == 12
    assert _value(name, "12", _of({"type": "integer"}), said=text_word) == 12


def test_nested_tags_keep_empty_lists_and_one_value_a_key() -> None:
    tags = {"type": "array", "items": {"type": "string"}}
    assert _value("minimax_m3", "", _of(tags)) == []
    assert _value("minimax_m3", "\n", _of({"type": "object"})) == {}
    assert _value("minimax_m3", "", _of({"type": "string"})) == ""
    twice = f"{MM}<k>1{MM}</k>{MM}<k>2{MM}</k>"
    text = _written("minimax_m3", twice, "")
    made = parse_in_pieces([text], tool_parser=_parser("minimax_m3"), tools=())
    assert made.calls[0].arguments == '{"a": {"k": 1}}'


def test_a_key_twice_in_python_is_one_key() -> None:
    made = parse_in_pieces(["[f(a={'k': 1, 'k': 2})]"], tool_parser=_parser("pythonic"), tools=())
    assert made.calls[0].arguments == '{"a": {"k": 2}}'
