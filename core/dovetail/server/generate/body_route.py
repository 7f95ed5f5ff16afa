"""BodyRoute: how a request's body is read, and how long its answer is worked on.

Large bodies are parsed outside this process. What the body becomes is the same; texts that cannot
fit into the context are refused there, so that they are never in this process's way. Small bodies,
and all where there is no such process, are FastAPI's.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from dovetail.engine.client.text_process import LARGE_BODY_BYTES, TextProcess
from dovetail.server.generate.streaming import cancel_on_disconnect

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class BodyRoute(APIRoute):
    """A route as `build_app` makes it. `app.state` names the endpoints whose texts are bounded by
    the context, those whose work ends when the client leaves before the response starts, and those
    whose bodies are JSON whatever their type says."""

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
            await request.body()  # before the connection is watched, which would take it
            return await cancel_on_disconnect(request, answer(request))

        return read_and_answer


def _as_json(request: Request) -> Request:
    """Return the request with the type of JSON. One that a web page sends to another origin, which
    needs nobody's leave unless its type is JSON's, stays as it is."""
    if _is_json(request) or "origin" in request.headers:
        return request
    others = [(k, v) for k, v in request.scope["headers"] if k != b"content-type"]
    headers = [*others, (b"content-type", b"application/json")]
    return Request({**request.scope, "headers": headers}, request.receive)


def _is_json(request: Request) -> bool:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind.startswith("application/") and (kind.endswith(("/json", "+json")))
