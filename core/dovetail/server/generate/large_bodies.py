"""LargeBodyRoute: a route whose large bodies are parsed outside this process.

What the body becomes is the same; texts that cannot fit into the context are refused there, so that
they are never in this process's way. Small bodies, and all where there is no such process, are
FastAPI's.
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


class LargeBodyRoute(APIRoute):
    """A route as `build_app` makes it."""

    def get_route_handler(self) -> Handler:
        """Return what answers a request."""
        answer = super().get_route_handler()
        if self.body_field is None:
            return answer

        async def read_and_answer(request: Request) -> Response:
            process: TextProcess | None = request.app.state.server.engine.text_process
            if process is not None and _is_json(request):
                body = await request.body()
                if len(body) > LARGE_BODY_BYTES:
                    bounded = self.endpoint in request.app.state.bounded_endpoints
                    work = process.parse(body, is_bounded=bounded)
                    request._json = await cancel_on_disconnect(request, work)
            return await answer(request)

        return read_and_answer


def _is_json(request: Request) -> bool:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind.startswith("application/") and (kind.endswith(("/json", "+json")))
