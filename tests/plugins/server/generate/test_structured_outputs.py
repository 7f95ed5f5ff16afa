"""What a request's fields ask for: every spelling of a constraint is the same constraint, or a
refusal."""

from __future__ import annotations

import itertools
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dovetail.config.sections.frontend import FrontendConfig
from dovetail.errors import RequestError
from dovetail.interfaces.data.constraint import (
    Choice,
    Constraint,
    FreeText,
    Grammar,
    JsonSchema,
    Literal,
    Regex,
    Repeat,
    concat,
)
from dovetail.interfaces.data.spec import StructuredOutputSpec
from dovetail.server.generate.body.chat import ChatRequest
from dovetail.server.generate.events import SessionPlan
from dovetail.server.generate.tools.parsers import Parsers
from dovetail.server.generate.tools.structured_outputs import (
    ConstraintRequest,
    requested_constraint,
)
from dovetail.server.generate.tools.tool_choice import (
    answer_constraint,
    session_plan,
    with_offered_tools,
)

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
    ({"response_format": {"type": "json_object", "schema": SCHEMA}}, JsonSchema(SCHEMA)),
    (
        {"response_format": {"type": "json_object", "json_schema": {"schema": SCHEMA}}},
        JsonSchema(SCHEMA),
    ),
    (
        {"response_format": {"type": "json_object", "schema": {"required": ["a"]}}},
        JsonSchema({"type": "object", "required": ["a"]}),
    ),
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


@pytest.mark.parametrize(
    ("form", "field"),
    [
        ({"type": "text", "schema": SCHEMA}, "schema"),
        ({"type": "text", "json_schema": {"schema": SCHEMA}}, "json_schema"),
        ({"type": "text", "structures": []}, "structures"),
        ({"type": "json_object", "json_schema": SCHEMA}, "json_schema"),
        ({"type": "json_object", "format": {"type": "any_text"}}, "format"),
        ({"type": "json_schema", "json_schema": {"schema": {}}, "schema": SCHEMA}, "schema"),
        ({"type": "structural_tag", "format": {"type": "any_text"}, "schema": SCHEMA}, "schema"),
    ],
)
def test_no_part_of_a_response_format_is_dropped(form: dict[str, Any], field: str) -> None:
    assert refused({"response_format": form}) == f"response_format.{field}"


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


TAG = {"type": "tag", "begin": "<a>", "end": "</a>"}
ONE = TAG | {"content": {"type": "const_string", "value": "1"}}
TWO = TAG | {"begin": "<b>", "content": {"type": "regex", "pattern": "[0-9]"}, "end": ["!", "?"]}
FORMATS: list[tuple[dict[str, Any], Constraint]] = [
    ({"type": "const_string", "value": "x"}, Literal("x")),
    ({"type": "json_schema", "json_schema": SCHEMA}, JsonSchema(SCHEMA)),
    ({"type": "regex", "pattern": "a+"}, Regex("a+")),
    ({"type": "grammar", "grammar": EBNF}, Grammar(EBNF, "ebnf")),
    ({"type": "any_text", "excludes": ["x"]}, FreeText(("x",))),
    (ONE, concat("<a>", "1", "</a>")),
    (TAG | {"content": {"type": "any_text"}}, concat("<a>", FreeText(("</a>",)), "</a>")),
    ({"type": "or", "elements": [ONE, {"type": "const_string", "value": ""}]},
     Choice((concat("<a>", "1", "</a>"), Literal("")))),
    ({"type": "sequence", "elements": [{"type": "any_text"}, ONE]},
     concat(FreeText(("<a>",)), "<a>", "1", "</a>")),
    ({"type": "repeat", "min": 2, "max": -1, "content": {"type": "regex", "pattern": "a"}},
     Repeat(Regex("a"), 2, None)),
    ({"type": "optional", "content": {"type": "regex", "pattern": "a"}},
     Repeat(Regex("a"), 0, 1)),
    ({"type": "tags_with_separator", "tags": [ONE], "separator": ",", "stop_after_first": True},
     Repeat(concat("<a>", concat("1", "</a>")), 0, 1)),
    ({"type": "triggered_tags", "triggers": ["<a"], "tags": [ONE], "at_least_one": True,
      "stop_after_first": True}, concat("<a", concat(">", "1", "</a>"))),
]  # fmt: skip


@pytest.mark.parametrize(("given", "constraint"), FORMATS, ids=lambda v: str(v)[:48])
def test_every_format_of_a_tag(given: dict[str, Any], constraint: Constraint) -> None:
    tag = {"type": "structural_tag", "format": given}
    for fields in (
        {"response_format": tag},
        {"structured_outputs": {"structural_tag": json.dumps(tag)}},
        {"structural_tag": tag},
    ):
        found = asked(fields)
        assert found is not None
        assert (found.constraint, found.tags) == (constraint, ())


def test_tags_within_free_text_leave_it_free() -> None:
    given = {"type": "triggered_tags", "triggers": ["<"], "tags": [ONE, TWO]}
    found = asked({"response_format": {"type": "structural_tag", "format": given}})
    assert found is not None
    first = concat("a>", "1", "</a>")
    second = concat("b>", Choice((concat(Regex("[0-9]"), "!"), concat(Regex("[0-9]"), "?"))))
    assert (found.constraint, found.tags) == (None, (("<", Choice((first, second))),))


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ({}, "format.type"), ({"type": "token", "token": 3}, "format.type"),
        ({"type": "sequence", "elements": [ONE, {"type": "x"}]}, "format.elements[1].type"),
        ({"type": "sequence", "elements": []}, "format.elements"),
        (TAG, "format.content"), (ONE | {"end": []}, "format.end"),
        (ONE | {"begin": ""}, "format.begin"),
        ({"type": "triggered_tags", "triggers": ["<x"], "tags": [ONE]}, "format.tags[0].begin"),
        ({"type": "any_text", "max_tokens": 3}, "format.max_tokens"),
        ({"type": "json_schema", "json_schema": [1]}, "format.json_schema"),
        ({"type": "json_schema", "json_schema": {}, "style": "glm_xml"}, "format.style"),
        ({"type": "qwen_xml_parameter", "json_schema": {"type": "string"}}, "format.json_schema"),
        ({"type": "repeat", "min": 3, "max": 2, "content": ONE}, "format.max"),
        ({"type": "dispatch", "rules": [["a"]]}, "format.rules[0]"),
    ],
    ids=str,
)  # fmt: skip
def test_a_format_that_is_none_is_refused_by_its_place(given: dict[str, Any], where: str) -> None:
    tag = {"type": "structural_tag", "format": given}
    assert refused({"response_format": tag}) == f"response_format.{where}"


@pytest.mark.parametrize(
    ("name", "backend", "whitespace", "is_closed"),
    [
        ("one", "one", None, False),
        ("one:no-fallback", "one", None, False),
        ("one:disable-any-whitespace,no-additional-properties", "one", "", True),
        ("auto:disable-any-whitespace", None, "", False),
        (":no-additional-properties", None, None, True),
    ],
)
@pytest.mark.parametrize("field", ["guided_decoding_backend", "structured_outputs"])
def test_a_backend_with_options(
    field: str, name: str, backend: str | None, whitespace: str | None, is_closed: bool
) -> None:
    fields: dict[str, Any] = {"structured_outputs": {"json": SCHEMA, "backend": name}}
    if field == "guided_decoding_backend":
        fields = {"guided_json": SCHEMA, field: name}
    found = asked(fields)
    schema = SCHEMA | ({"additionalProperties": False} if is_closed else {})
    assert found is not None
    assert found.backend == backend
    blanks = JsonSchema().whitespace if whitespace is None else whitespace
    assert found.constraint == JsonSchema(schema, blanks)
    with pytest.raises(RequestError, match="not an option"):
        asked({"guided_json": SCHEMA, "guided_decoding_backend": "one:fast"})


def test_allowed_tools_are_the_only_ones() -> None:
    parsers = Parsers(tool=pytest.importorskip("dovetail_plugins.tool_parsers.hermes").Hermes(None))
    offered = [{"function": {"name": name, "parameters": SCHEMA}} for name in "fgh"]
    named = [{"type": "function", "function": {"name": "h"}}, {"type": "function", "name": "f"}]

    def used(choice: Any) -> tuple[SessionPlan, ConstraintRequest | None]:
        fields = {"messages": [{"role": "user", "content": "hi"}], "tools": offered}
        body = ChatRequest.model_validate(fields | {"tool_choice": choice})
        body = with_offered_tools(body, FrontendConfig())
        plan = session_plan(body, parsers, FrontendConfig(), tail="")
        return plan, answer_constraint(body, plan, None)

    for choice in (
        {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": named}},
        {"type": "allowed_tools", "mode": "required", "tools": named},
    ):
        plan, constraint = used(choice)
        assert [tool.name for tool in plan.tools] == ["f", "h"]
        assert constraint is not None
        assert '"g"' not in str(constraint.constraint)
    plan, free = used({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": named}})
    assert [tool.name for tool in plan.tools] == ["f", "h"]
    assert free is None
    wrong: list[Any] = [
        {"mode": "none", "tools": named}, {"tools": []}, {"tools": [{"function": {"name": "x"}}]},
        {"tools": ["f"]}, {"tools": [{"type": "custom", "name": "f"}]}, 7,
    ]  # fmt: skip
    for inner in wrong:
        with pytest.raises(RequestError):
            used({"type": "allowed_tools", "allowed_tools": inner})


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
    tool = {"function": {"name": "f", "parameters": SCHEMA, "strict": True}}
    body = ChatRequest.model_validate(
        {
            "messages": [{"role": "user", "content": "hi"}],
            "tools": [tool],
            "response_format": {"type": "structural_tag"} | TAGS,
        }
    )
    plan = session_plan(body, Parsers(tool=parsers.Hermes(None)), FrontendConfig(), tail="")
    found = answer_constraint(body, plan, None)
    assert found is not None
    assert [trigger for trigger, _ in found.tags] == ["<a", "<tool_call>"]
    bare = session_plan(body, Parsers(tool=pythonic.Pythonic(None)), FrontendConfig(), tail="")
    with pytest.raises(RequestError, match="no opening tag"):
        answer_constraint(body, bare, None)
