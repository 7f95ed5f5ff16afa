"""Structural tags allow the same texts under every backend that has free text."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail import registry
from dovetail.interfaces.data.constraint import Constraint, JsonSchema
from dovetail.interfaces.structured_output import StructuredOutputBackend, Vocabulary
from dovetail.server.generate.tools.structural_tags import TaggedText, read_format
from dovetail_testing.contract import skipping_unavailable
from dovetail_testing.random_walks import follows, small_vocabulary

NAMES = ("guidance", "lm-format-enforcer", "xgrammar")
A = {
    "type": "tag", "begin": "<a>", "end": "</a>",
    "content": {"type": "const_string", "value": "1"},
}  # fmt: skip
B = {
    "type": "tag", "begin": "<b>", "end": ["</b>", "!"],
    "content": {"type": "regex", "pattern": "[0-9]+"},
}  # fmt: skip
BOTH = "x<b>7!y<a>1</a>"
TEXTS = (
    *("", "x", "x<", "<a", "<a>1</a>", "x<a>1</a>", "x<a>1</a>y", "x<a>2</a>", "<a>1</a><b>22!"),
    *("<a>1</a>,<b>2</b>", "<a>1</a>,<b>2</b>,<a>1</a>", BOTH, "z<a>1</a>", "<b>3!", "<<a>1</a>"),
)
TRIGGERED = {"type": "triggered_tags", "triggers": ["<a", "<b"], "tags": [A, B]}
SEPARATED = {"type": "tags_with_separator", "tags": [A, B], "separator": ","}
FIRST = {"stop_after_first": True}
LEAST = {"at_least_one": True}
FREE = ["", "x", "x<"]
LISTS = ["<a>1</a>", "<b>3!", "<a>1</a>,<b>2</b>", "<a>1</a>,<b>2</b>,<a>1</a>"]
ONE_A = ["<a>1</a>", "x<a>1</a>", "z<a>1</a>", "<<a>1</a>"]
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}
TWO_LINES = "<parameter=name>\nBob\n</parameter>\n<parameter=age>\n7\n</parameter>"
DISPATCH = {
    "type": "dispatch",
    "rules": [["<a>", {"type": "const_string", "value": "1</a>"}]],
    "loop": False,
}
CASES: list[tuple[dict[str, Any], list[str]]] = [
    (TRIGGERED, [*FREE, *LISTS, *ONE_A[1:], "x<a>1</a>y", "<a>1</a><b>22!", BOTH]),
    (TRIGGERED | FIRST, [*FREE, *ONE_A, "<b>3!"]),
    (TRIGGERED | LEAST, [*LISTS, "<a>1</a><b>22!"]),
    (TRIGGERED | LEAST | FIRST, ["<a>1</a>", "<b>3!"]),
    (
        TRIGGERED | {"excludes": ["z", "y"]},
        [*FREE, *LISTS, "x<a>1</a>", "<<a>1</a>", "<a>1</a><b>22!"],
    ),
    (SEPARATED, ["", *LISTS]),
    (SEPARATED | LEAST, LISTS),
    (SEPARATED | FIRST, ["", "<a>1</a>", "<b>3!"]),
    ({"type": "sequence", "elements": [{"type": "any_text"}, A]}, [*ONE_A, BOTH]),
    (A | {"content": {"type": "any_text"}}, ["<a>1</a>"]),
    (DISPATCH, [*FREE, "<a", *ONE_A, "<b>3!", BOTH]),
    ({"type": "plus", "content": A}, ["<a>1</a>"]),
    ({"type": "any_text", "excludes": ["<"]}, ["", "x"]),
]


def built(name: str, vocabulary: Vocabulary) -> StructuredOutputBackend:
    with skipping_unavailable():
        plugin: type[StructuredOutputBackend] = registry.load("structured_output_backend", name)
    return plugin(plugin.Options(), vocabulary)


def read(given: dict[str, Any]) -> Constraint:
    found = read_format(given, lambda schema, where: JsonSchema(schema), "f")
    return found.constraint() if isinstance(found, TaggedText) else found


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return small_vocabulary()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("given", "right"), CASES, ids=lambda v: str(v)[:60])
def test_texts_with_tags(
    name: str, given: dict[str, Any], right: list[str], vocabulary: Vocabulary
) -> None:
    backend = built(name, vocabulary)
    loaded = backend.load(backend.compile(read(given)))
    taken = {text for text in TEXTS if follows(loaded.matcher(), vocabulary, text.encode())}
    assert taken == set(right)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("lead", ["", "\n"])
def test_parameters_as_tags(name: str, lead: str, vocabulary: Vocabulary) -> None:
    backend = built(name, vocabulary)
    given = {
        "type": "tag",
        "begin": "<function=f>",
        "end": f"{lead}</function>",
        "content": {"type": "qwen_xml_parameter", "json_schema": PERSON},
    }
    loaded = backend.load(backend.compile(read(given)))
    for text, is_right in (
        (f"<function=f>{TWO_LINES}{lead}</function>", True),
        (f"<function=f>\n{TWO_LINES}{lead}</function>", True),
        (f"<function=f>{TWO_LINES.replace('7', 'x')}{lead}</function>", False),
        (f"<function=f>{TWO_LINES.partition('<parameter=age')[0]}</function>", False),
    ):
        assert follows(loaded.matcher(), vocabulary, text.encode()) is is_right
