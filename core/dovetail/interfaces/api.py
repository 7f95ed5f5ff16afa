"""Api: a family of HTTP endpoints: its routes, what enables them, its state and its errors.

An API only handles requests; the server authenticates, counts, limits and logs them. Imports no web
framework: an endpoint is a function as FastAPI takes it, in a separate module.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import msgspec

from dovetail.interfaces.plugin import Plugin

Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE", "WEBSOCKET"]
GENERATE = "generate"
"""The task of endpoints that generate text."""
TRANSCRIBE = "transcription"
"""The task of endpoints that transcribe audio."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiError:
    """OpenAI's error object: the message, its type, and the request field at fault."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One endpoint. `path` may hold parameters in braces, as FastAPI writes them.

    `body` is the model of the request body, for the documentation. `flag` names a FrontendConfig
    field (or `profiler_config`, if engines can be profiled); without the flag, or with its `--no-`
    form, the route does not exist. `is_open`: it needs no key even if the server has keys.
    `takes_any_length`: texts may be longer than the context, because the endpoint counts, converts
    or cuts them itself. `takes_any_type`: the body is JSON whatever its content type, unless a web
    page sends it. The model must support one of `tasks` (none: as the family says).
    """

    method: Method
    path: str
    endpoint: Callable[..., Any]
    body: type[Any] | None = None
    flag: str | None = None
    is_open: bool = False
    takes_any_length: bool = False
    takes_any_type: bool = False
    tasks: tuple[str, ...] = ()


class Api(Plugin):
    """A family of endpoints, declared once.

    `task` is what the model must support ("generate", "embed", ...); None: nothing. If the model
    does not support it, every route of the family answers 404 with an explanation. In a family with
    a task, an endpoint whose route has a `body` is cancelled when the client disconnects before the
    response starts. A route may override the family's task. `max_body_bytes` limits its bodies
    unless the operator sets a limit (None: the general limit).
    """

    interface_version: ClassVar[int] = 2
    routes: ClassVar[Sequence[Route]]
    task: ClassVar[str | None] = None
    max_body_bytes: ClassVar[int | None] = None

    def __init__(self, options: Any) -> None:
        self.options = options

    def tasks_of(self, route: Route) -> tuple[str, ...]:
        """Return the tasks of which the model must support at least one; empty: nothing is
        required."""
        return route.tasks or ((self.task,) if self.task is not None else ())

    def state(self, frontend: Any) -> AbstractAsyncContextManager[Any]:
        """Return a context manager for what the endpoints share while one server process runs.

        It is entered before the first request and left after the last one. Endpoints get its value
        by type, which no other family uses (`dovetail.server.generate.dependencies.state_of`).
        `frontend` holds the flags of the HTTP server.
        Raises: ConfigError, when it is entered, for settings that cannot work
        """
        return nullcontext()

    def bound(self, app: Any, state: Any) -> None:
        """Receive the application once all its routes are added; `state` is the value of `state`.
        Most families do not need this."""

    def error_body(self, status: int, error: ApiError, request_id: str | None) -> bytes:
        """Return the JSON body of an error on the family's paths and below them; OpenAI's, unless
        overridden."""
        return openai_error(error)


def openai_error(error: ApiError) -> bytes:
    """Return OpenAI's error body."""
    return msgspec.json.encode({"error": error})
