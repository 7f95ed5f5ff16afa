"""The model that a request names: in its JSON body, its form, or its query."""

from __future__ import annotations

from urllib.parse import parse_qs

import msgspec
from starlette.datastructures import Headers
from starlette.types import Scope

from dovetail.errors import RequestError
from dovetail.json_values import InvalidJson, json_struct
from dovetail_plugins.apis.batches.multipart import parts_of

FIELD = "model"
FORM = "multipart/form-data"


class _Named(msgspec.Struct):
    """A JSON body, reduced to the field read here."""

    model: str | None = None


def named_model(scope: Scope, body: bytes) -> str | None:
    """Return the model name in a request, None if there is none.

    An invalid body counts as having none: the first model's server then reports the fault.
    """
    values = parse_qs(scope["query_string"].decode("latin-1")).get(FIELD)
    if values:
        return values[-1]
    kind = Headers(scope=scope).get("content-type", "")
    if kind.startswith(FORM):
        return _of_form(kind, body)
    if body.lstrip()[:1] != b"{":
        return None
    try:
        named: _Named = json_struct(body, _Named)
    except InvalidJson:
        return None
    return named.model


def _of_form(kind: str, body: bytes) -> str | None:
    try:
        part = parts_of(kind, body).get(FIELD)
    except RequestError:
        return None
    return None if part is None else part.data.decode("utf-8", "replace")
