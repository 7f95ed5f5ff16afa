"""Errors as HTTP: status, error object, headers. The only module with this mapping.

The body has OpenAI's format, except on the paths of families with their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Scope

from dovetail.errors import DovetailError, EngineDead, Overloaded, RequestError, RequestFault
from dovetail.interfaces.api import ApiError, openai_error
from dovetail.json_values import not_json
from dovetail.server.http.validation import fault_of

_KINDS = {
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "invalid_request_error",
}


class ClientDisconnected(Exception):
    """The client closed the connection before its answer was complete."""


ErrorBody = Callable[[int, ApiError, str | None], bytes]
"""Makes a family's error body from the status, the error and the request's id."""


class ErrorBodies:
    """Paths with their own error body; each also covers all paths below it."""

    def __init__(self, by_path: Mapping[str, ErrorBody]) -> None:
        self._by_path = dict(by_path)

    def body_of(self, path: str) -> ErrorBody | None:
        """Return the function that writes a path's error bodies; None for OpenAI's format."""
        for root, body in self._by_path.items():
            if path == root or path.startswith(f"{root}/"):
                return body
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One error, ready to be sent as a response or inside a stream."""

    status: int
    info: ApiError
    headers: dict[str, str] = field(default_factory=dict)

    def body(self) -> bytes:
        """Return OpenAI's JSON body."""
        return openai_error(self.info)

    def response(self, scope: Scope | None = None) -> Response:
        """Return the HTTP response, in the error format of the request's path."""
        return Response(
            self.body() if scope is None else self._body_for(scope),
            status_code=self.status,
            headers=self.headers,
            media_type="application/json",
        )

    def _body_for(self, scope: Scope) -> bytes:
        state = scope.get("state", {})
        bodies: ErrorBodies | None = state.get("error_bodies")
        path = str(scope.get("path", "")).removeprefix(str(scope.get("root_path", "")))
        own = bodies.body_of(path) if bodies is not None else None
        if own is None:
            return self.body()
        return own(self.status, self.info, state.get("request_id"))


def problem(
    status: int,
    message: str,
    *,
    kind: str | None = None,
    param: str | None = None,
    code: str | None = None,
    headers: dict[str, str] | None = None,
) -> Problem:
    """Return a Problem; `kind` defaults to the usual one for the status."""
    default = "internal_error" if status >= 500 else "invalid_request_error"
    info = ApiError(
        message=_encodable(message),
        type=kind or _KINDS.get(status, default),
        param=None if param is None else _encodable(param),
        code=code,
    )
    return Problem(status=status, info=info, headers=headers or {})


def _encodable(text: str) -> str:
    """Return the text without lone surrogates, which a quoted name may contain."""
    return text.encode("utf-8", "replace").decode()


def problem_of(error: BaseException) -> Problem:
    """Return the problem to report for an exception; an unexpected one is reported by its class
    only."""
    match error:
        case Overloaded():
            wait = {"Retry-After": str(math.ceil(error.retry_after_s))}
            return problem(error.status, error.what, kind=error.kind, code=error.code, headers=wait)
        case RequestError():
            return problem(
                error.status, str(error), kind=error.kind, param=error.where, code=error.code
            )
        case RequestFault() | EngineDead():
            return problem(error.status, str(error), kind=error.kind)
        case RequestValidationError():
            return _of_validation(error)
        case HTTPException():
            return problem(error.status_code, str(error.detail), headers=dict(error.headers or {}))
        case DovetailError():
            return problem(500, str(error))
        case _:
            return problem(500, f"internal error ({type(error).__name__}); see the server's log.")


def _of_validation(error: RequestValidationError) -> Problem:
    """Return the first fault in a body."""
    fault = fault_of(error)
    if fault is None:
        return problem(400, "the request body is not valid.")
    if fault.code == "json_invalid":
        return problem(400, _of_json(error), code="invalid_json")
    message = fault.message
    if not fault.param and fault.code in ("missing", "model_attributes_type"):
        message = "send a JSON object with the header Content-Type: application/json."
    return problem(400, message, param=fault.param or None, code=fault.code)


def _of_json(error: RequestValidationError) -> str:
    """Return why a body is not valid JSON, and at which position."""
    found = error.errors()[0]
    place, why = found["loc"][-1], str(found.get("ctx", {}).get("error", ""))
    if not isinstance(place, int) or not why:
        return "the request body is not valid JSON."
    return not_json(why, place)
