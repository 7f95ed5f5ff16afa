"""The routes that manage models. All but the lists pass `Access` first."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import ClassVar

from starlette.requests import Request
from starlette.responses import Response

from dovetail.interfaces.api import Api, ApiError
from dovetail.interfaces.api import Route as ApiRoute
from dovetail.interfaces.plugin import Info
from dovetail_plugins.apis.ollama.response import error_body
from dovetail_plugins.gateway.manage import blobs, creating, deleting, loading, pulling, showing
from dovetail_plugins.gateway.manage.management import management_of

Endpoint = Callable[[Request], Awaitable[Response]]


def _guarded(endpoint: Endpoint) -> Endpoint:
    """Return an endpoint that checks first whether the request may manage models."""

    @wraps(endpoint)
    async def checked(request: Request) -> Response:
        management_of(request).access.check(request.headers)
        return await endpoint(request)

    return checked


_CHANGES: tuple[tuple[str, Endpoint, tuple[str, ...]], ...] = (
    ("/models/load", loading.load_model, ("POST",)),
    ("/models/unload", loading.unload_model, ("POST",)),
    ("/api/blobs/{digest}", blobs.check_blob, ("GET",)),
    ("/api/blobs/{digest}", blobs.upload_blob, ("POST",)),
    ("/api/copy", creating.copy_model, ("POST",)),
    ("/api/create", creating.create_model, ("POST",)),
    ("/api/pull", pulling.pull_model, ("POST",)),
    ("/api/push", pulling.push_model, ("POST",)),
    ("/api/delete", deleting.delete_model, ("DELETE",)),
    ("/v1/models/{name:path}", deleting.delete_named, ("DELETE",)),
)
MANAGEMENT: tuple[tuple[str, Endpoint, tuple[str, ...]], ...] = (
    *((path, _guarded(endpoint), methods) for path, endpoint, methods in _CHANGES),
    ("/models", loading.list_models, ("GET",)),
    ("/api/show", showing.show_model, ("POST",)),
)
"""Path, endpoint and methods."""
GUARDED = {endpoint for _, endpoint, _ in MANAGEMENT[: len(_CHANGES)]}
"""The endpoints that check keys themselves."""


class BlobsApi(Api):
    """Uploads of model files: their size, and Ollama's errors."""

    info = Info(summary="uploads of model files", source="Ollama's API reference")
    routes = (ApiRoute(method="POST", path="/api/blobs/{digest}", endpoint=blobs.upload_blob),)
    max_body_bytes: ClassVar[int | None] = 1 << 40

    def error_body(self, status: int, error: ApiError, request_id: str | None) -> bytes:
        """Return Ollama's JSON error body."""
        return error_body(status, error, request_id)
