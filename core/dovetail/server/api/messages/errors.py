"""Errors in Anthropic's words and shape. Source: its API reference, errors."""

from __future__ import annotations

from dovetail.interfaces.api import ApiError
from dovetail.server.api.messages.protocol import MessageErrorInfo, MessageErrorReply

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    529: "overloaded_error",
}


def error_body(status: int, error: ApiError, request_id: str | None) -> bytes:
    """Return an error as Anthropic's JSON body."""
    default = "api_error" if status >= 500 else "invalid_request_error"
    info = MessageErrorInfo(type=_TYPES.get(status, default), message=error.message)
    return MessageErrorReply(error=info, request_id=request_id).model_dump_json().encode()
