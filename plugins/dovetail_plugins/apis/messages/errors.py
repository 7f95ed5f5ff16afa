"""Errors in Anthropic's format. Source: its API reference, errors."""

from __future__ import annotations

import re

from dovetail.interfaces.api import ApiError
from dovetail_plugins.apis.messages.protocol import MessageErrorInfo, MessageErrorReply

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    529: "overloaded_error",
}


_TOO_LONG = re.compile(r"the prompt has (\d+) tokens; .*?(\d+) tokens")
"""The error of `engine.context_length` for a prompt that is too long."""


def _in_own_words(message: str) -> str:
    """Return the message in Anthropic's wording if the prompt is too long. Clients look for it to
    shorten a conversation."""
    found = _TOO_LONG.search(message)
    if found is None:
        return message
    return f"prompt is too long: {found[1]} tokens > {found[2]} maximum ({message})"


def error_body(status: int, error: ApiError, request_id: str | None) -> bytes:
    """Return Anthropic's JSON error body."""
    default = "api_error" if status >= 500 else "invalid_request_error"
    message = _in_own_words(error.message)
    info = MessageErrorInfo(type=_TYPES.get(status, default), message=message)
    return MessageErrorReply(error=info, request_id=request_id).model_dump_json().encode()
