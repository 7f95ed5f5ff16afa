"""What an answer must look like. Every spelling becomes `structured_outputs`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dovetail.interfaces.data.request_field import Reading, RequestFields, Sent
from dovetail.interfaces.plugin import Value
from dovetail_plugins.request_fields._rows import (
    ANTHROPIC,
    LLAMA,
    OLLAMA,
    OPENAI,
    SGLANG,
    TGI,
    VLLM,
    honoured,
    read_by,
    refused,
    renamed,
)

OUTPUTS = "structured_outputs"
Found = Iterator[tuple[str, str, Any]]
_OF_NVEXT = ("json", "regex", "choice", "grammar")


def _grammar(value: Any, sent: Sent) -> Found:
    """Read a grammar: llama.cpp's text, or TGI's object."""
    if isinstance(value, str):
        yield f"{OUTPUTS}.grammar", "", value
        return
    kind = value.get("type") if isinstance(value, Mapping) else None
    if kind not in ("json", "json_schema", "regex") or "value" not in value:
        raise ValueError("should be a grammar, or an object with type (json or regex) and value")
    inner = value["value"]
    if kind == "json_schema" and isinstance(inner, Mapping):
        inner = inner.get("schema", inner)
    yield f"{OUTPUTS}.{'regex' if kind == 'regex' else 'json'}", "grammar.value", inner


def _format(field: str, *path: str) -> Reading:
    """Return the reading of a format of OpenAI or Anthropic, at a path within a field."""

    def read(value: Any, sent: Sent) -> Found:
        given, where = value, field
        for name in path:
            given, where = _inner(given, name), f"{where}.{name}"
        if given is None:
            return
        kind = _inner(given, "type")
        if kind == "json_object":
            yield f"{OUTPUTS}.json_object", where, True
        elif kind == "json_schema":
            schema = _inner(given, "json_schema") or given
            yield f"{OUTPUTS}.json", where, _inner(schema, "schema") or {}
        elif kind != "text":
            raise ValueError("should have the type text, json_object or json_schema")
        for name in value if path else ():
            if name != path[0]:
                yield f"{field}.{name}", f"{field}.{name}", value[name]

    return read


def _inner(value: Any, name: str) -> Any:
    if not isinstance(value, Mapping):
        raise ValueError("should be an object")
    return value.get(name)


def _ollama_format(value: Any, sent: Sent) -> Found:
    """Read "json", or a schema."""
    if value == "json":
        yield f"{OUTPUTS}.json_object", "", True
    elif isinstance(value, Mapping):
        yield f"{OUTPUTS}.json", "", value
    else:
        raise ValueError('should be "json" or a JSON schema')


def _nvext(value: Any, sent: Sent) -> Found:
    """Read NIM's object of guided fields; others in it are reported."""
    if not isinstance(value, Mapping):
        raise ValueError("should be an object")
    for name, inner in value.items():
        kind = name.removeprefix("guided_")
        known = name.startswith("guided_") and kind in _OF_NVEXT
        yield f"{OUTPUTS}.{kind}" if known else f"nvext.{name}", f"nvext.{name}", inner


def _json_mode(value: Any, sent: Sent) -> Found:
    if value is not True:
        raise ValueError("should be true or false")
    yield f"{OUTPUTS}.json_object", "", True


ROWS: RequestFields = {
    **honoured(VLLM, "the same", OUTPUTS, "structural_tag", "guided_json", "guided_regex"),
    **honoured(VLLM, "the same", "guided_choice", "guided_grammar", "guided_decoding_backend"),
    "grammar": read_by(_grammar, LLAMA, "a grammar in GBNF or Lark, or TGI's object of type and "
                       "value: `structured_outputs`"),
    "ebnf": renamed(SGLANG, f"{OUTPUTS}.grammar"),
    "regex": renamed(SGLANG, f"{OUTPUTS}.regex"),
    "json_schema": renamed(LLAMA, f"{OUTPUTS}.json", is_switch=True),
    "guided_json_object": renamed(VLLM, f"{OUTPUTS}.json_object"),
    "guided_structural_tag": renamed(VLLM, f"{OUTPUTS}.structural_tag"),
    "nvext": read_by(_nvext, "NIM", "its guided_json, guided_regex, guided_choice and "
                     "guided_grammar: `structured_outputs`"),
    "json_mode": read_by(_json_mode, TGI, "`structured_outputs.json_object`"),
    "response_format": read_by(
        _format("response_format"), OPENAI, "where an API has another field: `structured_outputs`"
    ),
    "text": read_by(_format("text", "format"), OPENAI, "`text.format`: `structured_outputs`"),
    "output_config": read_by(
        _format("output_config", "format"), ANTHROPIC, "`output_config.format`"
    ),
    "output_format": read_by(
        _format("output_format"), ANTHROPIC, "`structured_outputs`"
    ),
    "format": read_by(_ollama_format, OLLAMA, '"json" or a schema: `structured_outputs`'),
    **refused(LLAMA, "use structural_tag, whose triggers start a grammar", "grammar_lazy",
              "grammar_triggers"),
    **refused(SGLANG, "use stop, which takes texts", "stop_regex"),
}  # fmt: skip

CONSTRAINTS = Value(summary="what an answer must look like", value=ROWS)
