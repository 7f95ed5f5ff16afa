"""Type words of Python in tools' schemas mean JSON's types, in every syntax."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dovetail import registry
from dovetail.interfaces.data.text import Tool
from dovetail_plugins.syntax.type_words import json_types, with_json_types
from dovetail_testing.constraint_examples import example
from dovetail_testing.text_splits import parse_in_pieces

pytest.importorskip("dovetail_plugins")


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("float", {"number"}),
        ("dict", {"object"}),
        ("Dict[str, Any]", {"object"}),
        ("list", {"array"}),
        ("List[int]", {"array"}),
        ("tuple[int, ...]", {"array"}),
        ("int", {"integer"}),
        ("bool", {"boolean"}),
        ("str", {"string"}),
        ("NoneType", {"null"}),
        ("Optional[int]", {"integer", "null"}),
        ("typing.Union[int, List[str]]", {"integer", "array"}),
        ("int | None", {"integer", "null"}),
        ("list[int | str] | None", {"array", "null"}),
        ("Any", None),
        ("Optional[Any]", None),
        ("Integer", {"integer"}),
        ("string", {"string"}),
        ("date", {"date"}),
    ],
)
def test_words(word: str, found: set[str] | None) -> None:
    assert json_types(word) == found


def test_schemas_are_translated_in_all_their_parts() -> None:
    schema = {
        "type": "dict",
        "properties": {
            "type": {"type": "float"},
            "b": {"anyOf": [{"type": "int"}, {"type": "str"}]},
        },
        "items": {"type": ["int", "None"]},
        "enum": ["float"],
        "additionalProperties": False,
    }
    assert with_json_types(schema) == {
        "type": "object",
        "properties": {
            "type": {"type": "number"},
            "b": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
        },
        "items": {"type": ["integer", "null"]},
        "enum": ["float"],
        "additionalProperties": False,
    }
    assert schema["type"] == "dict"


VALUES = {
    "share": ("float", "1.50", 1.5),
    "deep": ("dict", '{"a": [1]}', {"a": [1]}),
    "items": ("list", "[1, 2]", [1, 2]),
    "pair": ("tuple", "(1, 'b')", [1, "b"]),
    "days": ("int", "7", 7),
    "is_on": ("bool", "True", True),
    "name": ("str", "12", "12"),
    "more": ("Optional[int]", "None", None),
}
TOOL = Tool(
    name="f",
    parameters={
        "type": "object",
        "properties": {name: {"type": word} for name, (word, _, _) in VALUES.items()},
        "required": ["days"],
        "additionalProperties": False,
    },
)
SYNTAXES = {
    "qwen3_coder": (
        "<tool_call>\n<function=f>\n", "<parameter={}>\n{}\n</parameter>\n",
        "</function>\n</tool_call>",
    ),
    "seed_oss": (
        "<seed:tool_call><function=f>", "<parameter={}>{}</parameter>",
        "</function></seed:tool_call>",
    ),
    "minimax_m2": (
        '<minimax:tool_call><invoke name="f">', '<parameter name="{}">{}</parameter>',
        "</invoke></minimax:tool_call>",
    ),
    "glm45": (
        "<tool_call>f", "<arg_key>{}</arg_key><arg_value>{}</arg_value>", "</tool_call>",
    ),
    "step3": (
        '<｜tool_calls_begin｜><steptml:invoke name="f">',
        '<steptml:parameter name="{}">{}</steptml:parameter>',
        "</steptml:invoke><｜tool_calls_end｜>",
    ),
}  # fmt: skip


def made(name: str) -> Any:
    plugin = registry.load("tool_parser", name)
    return plugin(plugin.Options())


@pytest.mark.parametrize("name", SYNTAXES)
def test_every_xml_syntax_delivers_the_types_they_mean(name: str) -> None:
    start, part, end = SYNTAXES[name]
    text = start + "".join(part.format(key, value[1]) for key, value in VALUES.items()) + end
    for pieces in ([text], list(text)):
        got = parse_in_pieces(pieces, tool_parser=made(name), tools=(TOOL,))
        (call,) = got.calls
        assert json.loads(call.arguments) == {key: value[2] for key, value in VALUES.items()}


@pytest.mark.parametrize("name", [*SYNTAXES, "hermes", "pythonic"])
def test_constraints_say_jsons_types(name: str) -> None:
    constraint = made(name).constraint(TOOL)
    text = repr(constraint)
    assert "'float'" not in text
    assert "'number'" in text


def test_constraints_of_such_tools_are_calls() -> None:
    parser = made("qwen3_coder")
    arguments = {"share": 1.5, "days": 2, "name": "a"}
    schema = {
        "type": "object",
        "properties": {key: {"type": VALUES[key][0]} for key in arguments},
        "required": list(arguments),
        "additionalProperties": False,
    }
    tool = Tool(name="f", parameters=schema)
    text = example(parser.calls_constraint(parser.constraint(tool), 1), arguments)
    (call,) = parse_in_pieces([text], tool_parser=parser, tools=(tool,)).calls
    assert json.loads(call.arguments) == arguments
