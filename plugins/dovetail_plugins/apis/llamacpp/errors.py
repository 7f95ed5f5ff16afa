"""Errors in llama.cpp's format. Source: the API page of llama.cpp's server."""

from __future__ import annotations

import msgspec

from dovetail.errors import RequestError
from dovetail.interfaces.api import ApiError

TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "unavailable_error",
    501: "not_supported_error",
    503: "unavailable_error",
}
"""Status -> type; others are faults of the request, or of the server from 500 on."""
TYPES_BY_CODE = {
    "context_length_exceeded": "exceed_context_size_error",
    "task_not_supported": "not_supported_error",
}


def error_body(status: int, error: ApiError, request_id: str | None = None) -> bytes:
    """Return the JSON body of an error."""
    usual = "server_error" if status >= 500 else "invalid_request_error"
    kind = TYPES_BY_CODE.get(error.code or "") or TYPES.get(status, usual)
    return msgspec.json.encode({"error": {"code": status, "message": error.message, "type": kind}})


def not_supported(what: str, *, where: str | None = None, fix: str | None = None) -> RequestError:
    """Return the error for what this server does not do."""
    return RequestError(what, where=where, fix=fix, code="not_supported", status=501)
