"""BodyRoute: how a request's body is parsed, and when its work is cancelled.

Large bodies are parsed in another process, with the same result. Texts too long for the context are
refused there, so that they never block this process. FastAPI handles small bodies, and all bodies
if there is no such process.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, get_type_hints

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import compile_path

from dovetail.engine.client.text.text_process import LARGE_BODY_BYTES, TextProcess
from dovetail.server.generate.body.fields import Body
from dovetail.server.generate.streaming import cancel_on_disconnect

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class BodyRoute(APIRoute):
    """A route as `build_app` makes it. `app.state` has three sets of endpoints: those with texts
    bounded by the context, those that are cancelled if the client leaves before the response
    starts, and those that take a body as JSON whatever its content type.

    A signature is read at the first request, or for the schema: all of them would take 80 ms."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **settings: Any) -> None:
        self.path, self.endpoint, self._settings = path, endpoint, settings
        self.methods = set(settings["methods"] or ("GET",))
        self.path_regex, self.path_format, self.param_convertors = compile_path(path)

    def __getattr__(self, name: str) -> Any:
        settings = self.__dict__.pop("_settings", None)
        if settings is None:
            raise AttributeError(name)
        for hint in get_type_hints(self.endpoint).values():
            if isinstance(hint, type) and issubclass(hint, Body):
                hint.model_config["defer_build"] = False  # FastAPI wants it built
        super().__init__(self.path, self.endpoint, **settings)
        return getattr(self, name)

    def get_route_handler(self) -> Handler:
        """Return the handler of a request."""
        answer = super().get_route_handler()
        if self.body_field is None:
            return answer

        async def read_and_answer(request: Request) -> Response:
            state = request.app.state
            if self.endpoint in state.untyped_endpoints:
                request = _as_json(request)
            process: TextProcess | None = state.server.engine.text_process
            if process is not None and _is_json(request):
                body = await request.body()
                if len(body) > LARGE_BODY_BYTES:
                    bounded = self.endpoint in state.bounded_endpoints
                    work = process.parse(body, is_bounded=bounded)
                    request._json = await cancel_on_disconnect(request, work)
            if self.endpoint not in state.watched_endpoints:
                return await answer(request)
            await request.body()  # read first: watching the connection would consume the body
            return await cancel_on_disconnect(request, answer(request))

        return read_and_answer


def _as_json(request: Request) -> Request:
    """Return the request with JSON's content type. A browser may send a cross-origin request
    without a preflight unless it is JSON, so requests with an Origin header are returned
    unchanged."""
    if _is_json(request) or "origin" in request.headers:
        return request
    others = [(k, v) for k, v in request.scope["headers"] if k != b"content-type"]
    headers = [*others, (b"content-type", b"application/json")]
    return Request({**request.scope, "headers": headers}, request.receive)


def _is_json(request: Request) -> bool:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind.startswith("application/") and (kind.endswith(("/json", "+json")))
