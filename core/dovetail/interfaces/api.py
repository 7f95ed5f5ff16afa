"""Api: a family of HTTP endpoints: its routes, what switches them on, what it keeps, its errors.

An API sees requests; how they are authenticated, counted, bounded and logged is the server's.
Imports no web framework: an endpoint is a function as FastAPI takes it, in a separate module.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import msgspec

from dovetail.interfaces.plugin import Plugin

Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
GENERATE = "generate"
"""The task of endpoints whose answers are generated text."""
TRANSCRIBE = "transcription"
"""The task of endpoints that write what is said in a sound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiError:
    """OpenAI's error object: what is wrong, of which type, in which field of the request."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One endpoint. `path` may hold parameters in braces, as FastAPI writes them.

    `body` is the model of the request body, for the documentation. `flag` is the flag of the HTTP
    server, a field of FrontendConfig, or of an engine that may be profiled, `profiler_config`,
    without which (or with whose `--no-` form) the route is not there. `is_open`: it answers without
    a key where the server has keys. `takes_any_length`: its texts may be longer than the
    context, because it counts or converts them, or cuts them itself. `takes_any_type`: its body is
    JSON whatever content type it has, unless a web page sends it. `tasks` are what the model must
    be able to do, one of them (none: what the family says).
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

    `task` is what the model must be able to do ("generate", "embed", ...); None: the endpoints ask
    nothing of it. Where the model cannot, every route of the family answers 404 and says so. In a
    family with a task, an endpoint whose route has a `body` is cancelled when the client leaves
    before the response starts. A route may name other tasks than its family. `max_body_bytes`: how
    large its bodies may be where the operator said nothing of that (None: as all others).
    """

    interface_version: ClassVar[int] = 1
    routes: ClassVar[Sequence[Route]]
    task: ClassVar[str | None] = None
    max_body_bytes: ClassVar[int | None] = None

    def __init__(self, options: Any) -> None:
        self.options = options

    def tasks_of(self, route: Route) -> tuple[str, ...]:
        """Return the tasks of which the model must be able to do one; none: it need do nothing."""
        return route.tasks or ((self.task,) if self.task is not None else ())

    def state(self, frontend: Any) -> AbstractAsyncContextManager[Any]:
        """Return what the endpoints share while one process of the server runs.

        It is entered before requests come and left after the last one; endpoints get what it gives
        by its type, which no other family uses (`dovetail.server.generate.dependencies.state_of`).
        `frontend` holds the flags of the HTTP server.
        Raises: ConfigError, when it is entered, for what cannot work
        """
        return nullcontext()

    def bound(self, app: Any, state: Any) -> None:
        """Learn of the application that has the routes, once it is whole; `state` is what `state`
        gave. Most families have no use for it."""

    def error_body(self, status: int, error: ApiError, request_id: str | None) -> bytes:
        """Return the JSON body of an error on the family's paths and below them: OpenAI's, unless
        the family has its own."""
        return openai_error(error)


def openai_error(error: ApiError) -> bytes:
    """Return OpenAI's error body."""
    return msgspec.json.encode({"error": error})
