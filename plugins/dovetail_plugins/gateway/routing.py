"""What a gateway reads of a request: the model that it names, and how its answer is to arrive."""

from __future__ import annotations

import math
from typing import Any
from urllib.parse import parse_qs

import msgspec
from starlette.datastructures import Headers
from starlette.types import Scope

from dovetail.errors import RequestError
from dovetail.json_values import InvalidJson, json_struct
from dovetail_plugins.apis.batches.multipart import parts_of
from dovetail_plugins.apis.ollama.keep_alive import seconds_of

FIELD = "model"
FORM = "multipart/form-data"
OLLAMA_LINES = ("/api/chat", "/api/generate")
"""Ollama's paths that stream unless the body says otherwise."""
KEEP_ALIVE_PATHS = (*OLLAMA_LINES, "/api/embed", "/api/embeddings")
"""The paths whose bodies say how long the model stays loaded."""


class RequestFields(msgspec.Struct):
    """A JSON body, reduced to the fields read here. Each may be of any type: the model's server
    reports what is wrong with the others."""

    model: str | None = None
    stream: Any = None
    keep_alive: Any = None
    prompt: Any = None
    messages: Any = None
    suffix: Any = None
    images: Any = None

    @property
    def is_empty(self) -> bool:
        """Return whether a request of Ollama's asks only to load or unload the model."""
        return not (self.prompt or self.messages or self.suffix or self.images)


def request_fields_of(scope: Scope, body: bytes) -> RequestFields:
    """Return what a request says of its model; a query parameter wins over the body.

    An invalid body counts as saying nothing: the first model's server then reports the fault.
    """
    fields = _of_body(scope, body)
    values = parse_qs(scope["query_string"].decode("latin-1")).get(FIELD)
    if values:
        fields.model = values[-1]
    return fields


def stream_of(path: str, fields: RequestFields) -> str | None:
    """Return the framing of a streamed answer: "events", or Ollama's "lines"; None: it is whole."""
    if path in OLLAMA_LINES:
        return None if fields.stream is False else "lines"
    return "events" if fields.stream is True else None


def keep_alive_s(value: Any) -> float | None:
    """Return a body's keep_alive in seconds, `inf` for ever; None: it does not say. Raises:
    RequestError"""
    if value is None or value == "":
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (isinstance(value, str) or (is_number and not math.isnan(value))):
        raise RequestError("must be seconds, or a duration such as 5m.", where="keep_alive")
    return seconds_of(value)


def _of_body(scope: Scope, body: bytes) -> RequestFields:
    kind = Headers(scope=scope).get("content-type", "")
    if kind.startswith(FORM):
        return RequestFields(model=_of_form(kind, body))
    if body.lstrip()[:1] != b"{":
        return RequestFields()
    try:
        fields: RequestFields = json_struct(body, RequestFields)
    except InvalidJson:
        return RequestFields()
    return fields


def _of_form(kind: str, body: bytes) -> str | None:
    try:
        part = parts_of(kind, body).get(FIELD)
    except RequestError:
        return None
    return None if part is None else part.data.decode("utf-8", "replace")
