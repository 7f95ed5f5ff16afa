"""What a request's fields ask for: every spelling of a constraint is the same constraint, or a
refusal."""

from __future__ import annotations

import itertools
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dovetail.errors import RequestError
from dovetail.interfaces.constraint import (
    Choice,
    Constraint,
    Grammar,
    JsonSchema,
    Literal,
    Regex,
    concat,
)
from dovetail.interfaces.spec import StructuredOutputSpec
from dovetail.server.generate.chat_body import ChatRequest
from dovetail.server.generate.conversation import answer_constraint
from dovetail.server.generate.server_state import Parsers, ServerState
from dovetail.server.generate.structured_outputs import ConstraintRequest, requested_constraint
from dovetail.server.generate.tool_choice import tool_use

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
WORDS = Choice((Literal("yes"), Literal("no")))
EBNF, LARK = 'root ::= "a"', 'start: "a"'
SPELLINGS: list[tuple[dict[str, Any], Constraint]] = [
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
        JsonSchema(SCHEMA),
    ),
    ({"response_format": {"type": "json_schema", "schema": SCHEMA}}, JsonSchema(SCHEMA)),
    ({"response_format": {"type": "json_object"}}, JsonSchema({"type": "object"})),
    ({"structured_outputs": {"json": SCHEMA}}, JsonSchema(SCHEMA)),
    ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, JsonSchema(SCHEMA)),
    ({"structured_outputs": {"json": True}}, JsonSchema({})),
    ({"structured_outputs": {"json_object": True}}, JsonSchema({"type": "object"})),
    ({"structured_outputs": {"regex": "a+"}}, Regex("a+")),
    ({"structured_outputs": {"choice": ["yes", "no", "yes"]}}, WORDS),
    ({"structured_outputs": {"grammar": EBNF}}, Grammar(EBNF, "ebnf")),
    ({"guided_json": SCHEMA}, JsonSchema(SCHEMA)),
    ({"guided_json": json.dumps(SCHEMA)}, JsonSchema(SCHEMA)),
    ({"guided_regex": "a+"}, Regex("a+")),
    ({"guided_choice": ["yes", "no"]}, WORDS),
    ({"guided_grammar": LARK}, Grammar(LARK, "lark")),
]
TAGS = {
    "structures": [
        {"begin": "<a>", "schema": SCHEMA, "end": "</a>"},
        {"begin": "<ab>", "schema": {}, "end": "</ab>"},
    ],
    "triggers": ["<a"],
}


def asked(
    fields: dict[str, Any], spec: StructuredOutputSpec | None = None
) -> ConstraintRequest | None:
    body = ChatRequest.model_validate({"messages": [{"role": "user", "content": "hi"}]} | fields)
    return requested_constraint(body, body.response_format, spec)


def refused(fields: dict[str, Any]) -> str | None:
    with pytest.raises(RequestError) as caught:
        asked(fields)
    return caught.value.where


@pytest.mark.parametrize(("fields", "constraint"), SPELLINGS, ids=lambda v: str(v)[:48])
def test_every_spelling(fields: dict[str, Any], constraint: Constraint) -> None:
    found = asked(fields)
    assert found is not None
    assert (found.constraint, found.tags, found.backend, found.closes) == (
        constraint,
        (),
        None,
        False,
    )


def test_free_text() -> None:
    for fields in (
        {},
        {"response_format": {"type": "text"}},
        {"structured_outputs": {"backend": "x"}},
    ):
        assert asked(fields) is None


def test_two_constraints_are_refused() -> None:
    pairs = 0
    for (one, _), (other, _) in itertools.combinations(SPELLINGS, 2):
        if one.keys() & other.keys():
            continue
        assert refused(one | other) is not None
        pairs += 1
    assert pairs > 60
    assert refused({"structured_outputs": {"regex": "a", "choice": ["a"]}}) is not None


@pytest.mark.parametrize(
    ("fields", "whitespace"),
    [
        ({"guided_whitespace_pattern": "[ \\n]?"}, "[\\n ]?"),
        ({"guided_whitespace_pattern": ""}, ""),
        ({"guided_whitespace_pattern": ".*"}, "[\\t ]*"),
        ({"guided_whitespace_pattern": "[a-z]?"}, ""),
        ({"structured_outputs": {"whitespace_pattern": "\\s{0,2}"}}, "[\\t-\\n\\r ]{0,2}"),
        ({"structured_outputs": {"disable_any_whitespace": True}}, ""),
        ({}, JsonSchema().whitespace),
    ],
)
def test_white_space_stays_white_space_of_json(fields: dict[str, Any], whitespace: str) -> None:
    found = asked(fields | {"response_format": {"type": "json_object"}})
    assert found is not None
    assert found.constraint == JsonSchema({"type": "object"}, whitespace)


@pytest.mark.parametrize("pattern", ["(", "x+", "(?=a)"])
def test_white_space_that_is_none_is_refused(pattern: str) -> None:
    fields = {"guided_json": SCHEMA, "guided_whitespace_pattern": pattern}
    assert refused(fields) == "guided_whitespace_pattern"
    fields = {"structured_outputs": {"json": SCHEMA, "whitespace_pattern": pattern}}
    assert refused(fields) == "structured_outputs.whitespace_pattern"


def test_how_it_is_held() -> None:
    found = asked({"guided_json": SCHEMA, "guided_decoding_backend": "one"})
    assert found is not None
    assert found.backend == "one"
    outputs = {"json": SCHEMA, "backend": "two", "close_on_length": True}
    outputs["disable_additional_properties"] = True
    found = asked({"structured_outputs": outputs, "guided_decoding_backend": "one"})
    assert found == ConstraintRequest(
        where="structured_outputs.json",
        constraint=JsonSchema(SCHEMA | {"additionalProperties": False}),
        backend="two",
        closes=True,
    )


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"structured_outputs": {"regex": "a", "backend": "x"}}, "structured_outputs.backend"),
        ({"guided_regex": "a", "guided_decoding_backend": "x"}, "guided_decoding_backend"),
    ],
)
def test_a_backend_that_is_not_loaded_is_refused_by_its_field(
    fields: dict[str, Any], where: str
) -> None:
    loaded = (SimpleNamespace(name="one"), SimpleNamespace(name="two"))
    spec = SimpleNamespace(backend="auto", backends=loaded, whitespace="", closes_objects=False)
    with pytest.raises(RequestError, match="use one of: auto, one, two") as caught:
        asked(fields, cast(StructuredOutputSpec, spec))
    assert caught.value.where == where


def test_a_request_may_forbid_other_backends() -> None:
    """A backend that the request names is the only one that is tried; so is the server's then."""
    spec = cast(
        StructuredOutputSpec, SimpleNamespace(backend="one", whitespace="", closes_objects=False)
    )
    for outputs, backend in (({}, None), ({"disable_fallback": True}, "one")):
        found = asked({"structured_outputs": {"regex": "a", **outputs}}, spec)
        assert found is not None
        assert found.backend == backend


@pytest.mark.parametrize("field", ["response_format", "structured_outputs"])
def test_tags(field: str) -> None:
    fields: dict[str, Any] = {"response_format": {"type": "structural_tag"} | TAGS}
    if field == "structured_outputs":
        fields = {"structured_outputs": {"structural_tag": json.dumps(TAGS)}}
    found = asked(fields)
    assert found is not None
    rest = Choice((concat(">", JsonSchema(SCHEMA), "</a>"), concat("b>", JsonSchema({}), "</ab>")))
    assert (found.constraint, found.tags) == (None, (("<a", rest),))


@pytest.mark.parametrize(
    "fields",
    [
        {"type": "json_schema"}, {"type": "json_schema", "json_schema": {"schema": [1]}},
        {"type": "regex"}, {"type": "nothing"}, {"type": "structural_tag"},
        {"type": "structural_tag", "structures": [{"begin": "", "end": ""}]},
        {"type": "structural_tag"} | TAGS | {"triggers": ["<b"]},
    ],
    ids=str,
)  # fmt: skip
def test_what_says_no_constraint_is_refused(fields: dict[str, Any]) -> None:
    assert (refused({"response_format": fields}) or "").startswith("response_format")


BRACKETS = ("[" * 20_000, '{"not":' * 1000 + "{}" + "}" * 1000)


@pytest.mark.parametrize("text", BRACKETS, ids=["brackets", "schema"])
def test_what_is_nested_too_deep_is_refused_with_its_place(text: str) -> None:
    schema: dict[str, Any] = {}
    for _ in range(400):
        schema = {"not": schema}
    tag = {"begin": "<a>", "schema": text, "end": "</a>"}
    for fields, where in (
        ({"guided_json": text}, "guided_json"),
        ({"structured_outputs": {"json": text}}, "structured_outputs.json"),
        ({"structured_outputs": {"json": schema}}, "structured_outputs.json"),
        (
            {"structured_outputs": {"structural_tag": text}},
            "structured_outputs.structural_tag",
        ),
        (
            {"response_format": {"type": "structural_tag", "structures": [tag]}},
            "response_format.structures[0].schema",
        ),
    ):
        assert refused(fields) == where


def test_strict_calls_are_held_beside_tags() -> None:
    parsers = pytest.importorskip("dovetail_plugins.tool_parsers.hermes")
    pythonic = pytest.importorskip("dovetail_plugins.tool_parsers.pythonic")
    server = cast(ServerState, SimpleNamespace(structured_output_spec=None))
    tool = {"function": {"name": "f", "parameters": SCHEMA, "strict": True}}
    body = ChatRequest.model_validate(
        {
            "messages": [{"role": "user", "content": "hi"}],
            "tools": [tool],
            "response_format": {"type": "structural_tag"} | TAGS,
        }
    )
    use = tool_use(body, Parsers(tool=parsers.Hermes(None)))
    found = answer_constraint(server, body, use)
    assert found is not None
    assert [trigger for trigger, _ in found.tags] == ["<a", "<tool_call>"]
    bare = tool_use(body, Parsers(tool=pythonic.Pythonic(None)))
    with pytest.raises(RequestError, match="no opening tag"):
        answer_constraint(server, body, bare)
