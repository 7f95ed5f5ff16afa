"""Reads the constraint of an answer from a request, and adds reasoning before a constraint.

It reads response_format, structured_outputs and the older guided_* fields; only one may be given.
Source: the OpenAI API reference (response_format), the structured output fields of `vllm serve`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NoReturn

from pydantic import ValidationError

from dovetail.errors import RequestError
from dovetail.interfaces.data.constraint import (
    Choice,
    Constraint,
    FreeText,
    Grammar,
    JsonSchema,
    Literal,
    Regex,
    concat,
)
from dovetail.interfaces.data.spec import StructuredOutputSpec
from dovetail.interfaces.data.text import Markers
from dovetail.interfaces.structured_output import InvalidConstraint
from dovetail.json_values import InvalidJson, TooDeep, json_value
from dovetail.server.generate.body.chat import ResponseFormat
from dovetail.server.generate.body.fields import SamplingFields, StructuredOutputs
from dovetail.server.generate.tools.structural_tags import TaggedText, read_format, read_structures
from dovetail.structured_output.select_backend import check_backend
from dovetail_grammars.regex import outside, ranges, without, written
from dovetail_grammars.regex_reader import whole
from dovetail_grammars.schema import closed

BLANKS = Regex(r"[ \n\r\t]{0,8}")
FIELDS = frozenset(
    {
        "structured_outputs",
        "guided_json",
        "guided_regex",
        "guided_choice",
        "guided_grammar",
        "guided_decoding_backend",
        "guided_whitespace_pattern",
        "structural_tag",
    }
)
"""The body fields about the answer's constraint, besides response_format."""
KEYS_OF_FORMATS: Mapping[str, Sequence[str]] = {
    "text": (),
    "json_object": ("schema", "json_schema"),
    "json_schema": ("schema", "json_schema"),
    "structural_tag": ("structures", "triggers", "format"),
}
"""Type of a response_format -> its fields. Fields of other types are refused."""
MAX_JSON_DEPTH = 256
BACKEND_WORDS = {
    "no-fallback": "disable_fallback",
    "disable-any-whitespace": "disable_any_whitespace",
    "no-additional-properties": "disable_additional_properties",
}
"""Options after a backend's name and a colon -> the equivalent field."""
_NO_BLANKS = outside(ranges(" \n\r\t"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstraintRequest:
    """The constraint of an answer, the field that requests it, and the backend that it names.

    `closes`: near max_tokens the answer is forced to its end. `tags` are texts in free text and the
    constraint that follows each of them; `constraint` is None then.
    """

    where: str
    constraint: Constraint | None = None
    tags: tuple[tuple[str, Constraint], ...] = ()
    backend: str | None = None
    closes: bool = False


def requested_constraint(
    body: SamplingFields, response_format: ResponseFormat | None, spec: StructuredOutputSpec | None
) -> ConstraintRequest | None:
    """Return the one constraint that a request asks for, or None for free text. Raises:
    RequestError"""
    if response_format is None and not FIELDS & body.model_fields_set:
        return None
    style = _JsonStyle(body, spec)
    requests = [
        *_response_format(response_format, style),
        *_outputs(body, style),
        *_older(body, style),
    ]
    if not requests:
        return None
    if len(requests) > 1:
        fields = ", ".join(one.where for one in requests)
        raise RequestError(f"only one of {fields} may be given.", where=requests[1].where)
    return requests[0]


def constraint_of_params(
    given: Mapping[str, Any], spec: StructuredOutputSpec | None
) -> ConstraintRequest:
    """Return the constraint from a program's fields, named as in a body's `structured_outputs`.
    Raises: RequestError"""
    try:
        body = SamplingFields.model_validate({"structured_outputs": given})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise RequestError(f"{first['msg']}.", where=place) from None
    request = requested_constraint(body, None, spec)
    assert request is not None, "one of the fields is set"
    return request


class _JsonStyle:
    """The JSON style and the requested backend, the same for all fields that set a constraint."""

    def __init__(self, body: SamplingFields, spec: StructuredOutputSpec | None) -> None:
        outputs = body.structured_outputs or StructuredOutputs.model_construct()
        self.backend, said = _named_backend(outputs, body, spec)
        outputs = outputs.model_copy(update=said)
        if outputs.disable_fallback and spec is not None:
            self.backend = self.backend or spec.backend
        self.closes_early = outputs.close_on_length
        self.whitespace = spec.whitespace if spec else JsonSchema().whitespace
        if outputs.disable_any_whitespace:
            self.whitespace = ""
        elif outputs.whitespace_pattern is not None:
            where = "structured_outputs.whitespace_pattern"
            self.whitespace = _whitespace(outputs.whitespace_pattern, where)
        elif body.guided_whitespace_pattern is not None:
            self.whitespace = _whitespace(
                body.guided_whitespace_pattern, "guided_whitespace_pattern"
            )
        self.closes = outputs.disable_additional_properties or bool(spec and spec.closes_objects)

    def json(self, schema: Any, where: str) -> JsonSchema:
        """Return the JSON constraint of a schema, given as an object or as text. Raises:
        RequestError"""
        if isinstance(schema, str):
            schema = _read_json(schema, where)
        if schema is True:
            schema = {}
        if not isinstance(schema, dict):
            raise RequestError("must be a JSON schema, an object.", where=where)
        _check_depth(schema, where)
        return JsonSchema(closed(schema) if self.closes else schema, self.whitespace)

    def request(self, where: str, constraint: Constraint | None) -> ConstraintRequest:
        """Return the constraint request of a field."""
        return ConstraintRequest(
            where=where, constraint=constraint, backend=self.backend, closes=self.closes_early
        )


def _named_backend(
    outputs: StructuredOutputs, body: SamplingFields, spec: StructuredOutputSpec | None
) -> tuple[str | None, Mapping[str, bool]]:
    """Return the backend that the request names, and its options after a colon. Raises:
    RequestError for a backend that is not loaded, and for unknown options"""
    given, where = outputs.backend, "structured_outputs.backend"
    if not given:
        given, where = body.guided_decoding_backend, "guided_decoding_backend"
    name, _, rest = (given or "").partition(":")
    words = [word.strip() for word in rest.split(",") if word.strip()]
    for word in words:
        if word not in BACKEND_WORDS:
            fix = f"use {', '.join(BACKEND_WORDS)}."
            raise RequestError(f'"{word[:64]}" is not an option.', where=where, fix=fix)
    if name and spec is not None and spec.backends:
        check_backend(spec, name, where)
    # "auto" with options means the server's choice of backend.
    return (None if name in ("", "auto") and words else name or None), {
        BACKEND_WORDS[word]: True for word in words
    }


def _whitespace(pattern: str, where: str) -> str:
    """Return the JSON white space that matches this pattern, as a pattern. Raises: RequestError"""
    try:
        return written(without(whole(pattern), _NO_BLANKS))
    except InvalidConstraint as error:
        raise RequestError(
            f"{error}.",
            where=where,
            fix="use only spaces, tabs and line ends.",
            code="invalid_grammar",
        ) from error


def _response_format(given: ResponseFormat | None, style: _JsonStyle) -> list[ConstraintRequest]:
    where = "response_format"
    if given is None:
        return []
    if given.type not in KEYS_OF_FORMATS:
        _unknown_format(given.type, where)
    for key in sorted({*chain(*KEYS_OF_FORMATS.values())} - {*KEYS_OF_FORMATS[given.type]}):
        if getattr(given, "schema_" if key == "schema" else key) is not None:
            raise RequestError(
                f'does not belong to a response_format of type "{given.type}".',
                where=f"{where}.{key}",
                fix=f"remove {key}, or ask for the type that it belongs to.",
            )
    if given.type == "text":
        return []
    if given.type == "structural_tag":
        return [
            _tags({key: getattr(given, key) for key in KEYS_OF_FORMATS[given.type]}, style, where)
        ]
    schema, where = _schema_of(given, where)
    return [style.request(where, style.json(schema, where))]


def _unknown_format(name: str, where: str) -> NoReturn:
    if name in ("regex", "grammar", "choice"):
        raise RequestError(
            f'"{name}" is not a supported type.',
            where=f"{where}.type",
            fix=f"use structured_outputs.{name}.",
        )
    raise RequestError(
        f'"{name[:64]}" is not text, json_object, json_schema or structural_tag.',
        where=f"{where}.type",
    )


def _schema_of(given: ResponseFormat, where: str) -> tuple[Any, str]:
    """Return the schema of a response_format, and the name of its field. Raises: RequestError

    A schema may also come with the type json_object, as clients of llama.cpp send it. If it has no
    type, the answer is an object.
    """
    wrapped = (given.json_schema or {}).get("schema")
    schema, field = given.schema_, f"{where}.schema"
    if wrapped is not None:
        if schema not in (None, wrapped):
            raise RequestError(
                "is another schema than json_schema.schema.",
                where=field,
                fix="give the schema once.",
            )
        schema, field = wrapped, f"{where}.json_schema.schema"
    if schema is None and (given.json_schema or given.type == "json_schema"):
        raise RequestError("has no schema.", where=f"{where}.json_schema")
    if schema is None:
        return {"type": "object"}, where
    if given.type == "json_object" and isinstance(schema, dict):
        schema = {"type": "object", **schema}
    return schema, field


def _outputs(body: SamplingFields, style: _JsonStyle) -> list[ConstraintRequest]:
    given = body.structured_outputs
    if given is None:
        return []
    requests = _constraints(
        "structured_outputs.",
        style,
        json=given.json_,
        regex=given.regex,
        choice=given.choice,
        grammar=given.grammar,
    )
    if given.json_object:
        where = "structured_outputs.json_object"
        requests.append(style.request(where, style.json({"type": "object"}, where)))
    if given.structural_tag is not None:
        where = "structured_outputs.structural_tag"
        requests.append(_tags(_object(given.structural_tag, where), style, where))
    return requests


def _older(body: SamplingFields, style: _JsonStyle) -> list[ConstraintRequest]:
    requests = _constraints(
        "guided_",
        style,
        json=body.guided_json,
        regex=body.guided_regex,
        choice=body.guided_choice,
        grammar=body.guided_grammar,
    )
    if body.structural_tag is not None:
        where = "structural_tag"
        requests.append(_tags(_object(body.structural_tag, where), style, where))
    return requests


def _constraints(
    prefix: str,
    style: _JsonStyle,
    *,
    json: Any,
    regex: str | None,
    choice: Sequence[str] | None,
    grammar: str | None,
) -> list[ConstraintRequest]:
    requests: list[tuple[str, Constraint]] = []
    if json is not None:
        requests.append(("json", style.json(json, f"{prefix}json")))
    if regex is not None:
        requests.append(("regex", Regex(regex)))
    if choice is not None:
        texts = tuple(Literal(text) for text in dict.fromkeys(choice))
        requests.append(("choice", Choice(texts)))
    if grammar is not None:
        requests.append(("grammar", Grammar(grammar, language_of(grammar))))
    return [style.request(prefix + name, constraint) for name, constraint in requests]


def language_of(grammar: str) -> str:
    """Return the language of a grammar: EBNF if its rules use "::=", otherwise Lark."""
    return "ebnf" if "::=" in grammar else "lark"


def _tags(content: Mapping[str, Any], style: _JsonStyle, where: str) -> ConstraintRequest:
    """Return the constraint of a structural tag, in either spelling. Raises: RequestError"""
    constraint: Constraint | TaggedText
    if content.get("format") is not None:
        _check_depth(content["format"], f"{where}.format")
        constraint = read_format(content["format"], style.json, f"{where}.format")
    else:
        constraint = read_structures(content, style.json, where)
    if isinstance(constraint, TaggedText) and constraint.is_plain:
        return replace(style.request(where, None), tags=constraint.tags)
    return style.request(
        where, constraint.constraint() if isinstance(constraint, TaggedText) else constraint
    )


def _object(given: str | dict[str, Any], where: str) -> dict[str, Any]:
    value = given if isinstance(given, dict) else _read_json(given, where)
    if not isinstance(value, dict):
        raise RequestError("must be an object.", where=where)
    _check_depth(value, where)
    return value


def _read_json(text: str, where: str) -> Any:
    """Return the value of a JSON text. Raises: RequestError, also if it is nested too deep"""
    try:
        return json_value(text)
    except TooDeep as error:
        raise _too_deep(where) from error
    except InvalidJson as error:
        raise RequestError(str(error), where=where) from error


def _check_depth(value: Any, where: str) -> None:
    """Raise RequestError for a value nested so deep that processing it would fail."""
    level = [value]
    for _ in range(MAX_JSON_DEPTH):
        level = [v for one in level for v in _inner(one) if isinstance(v, dict | list)]
        if not level:
            return
    raise _too_deep(where)


def _inner(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _too_deep(where: str) -> RequestError:
    return RequestError(
        "is nested too deep.",
        where=where,
        fix=f"nest at most {MAX_JSON_DEPTH} objects and lists.",
        code="grammar_too_complex",
    )


def after_reasoning(constraint: Constraint, markers: Markers) -> Constraint:
    """Return the constraint after blanks, optionally preceded by a whole reasoning region."""
    thinking = concat(markers.start, FreeText((markers.end,)), markers.end, BLANKS, constraint)
    return Choice((constraint, thinking))
