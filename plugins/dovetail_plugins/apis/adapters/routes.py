"""POST /v1/load_lora_adapter and /v1/unload_lora_adapter: change adapters at run time.

Source: the HTTP API of `vllm serve`, whose answers are plain text.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from dovetail.interfaces.api import Api, Route
from dovetail.interfaces.plugin import Info
from dovetail.server.endpoint import HEADER, App, ServerOf, header_value, owner_of
from dovetail_plugins.apis.adapters.protocol import LoadAdapterRequest, UnloadAdapterRequest

FLAG = "allow_runtime_lora_updating"


async def load_adapter(body: LoadAdapterRequest, request: Request, server: ServerOf) -> Response:
    """Load an adapter from a folder on the server's machine and serve it."""
    ignored = server.fields.check(body)
    await server.adapters.load(
        body.lora_name,
        body.lora_path,
        base=body.base_model_name or "",
        replaces=body.load_inplace,
        owner=_owner(request, server),
    )
    return _success(f"LoRA adapter '{body.lora_name}' added successfully.", ignored)


async def unload_adapter(
    body: UnloadAdapterRequest, request: Request, server: ServerOf
) -> Response:
    """Refuse further requests for an adapter; running ones continue."""
    ignored = server.fields.check(body)
    await server.adapters.unload(body.lora_name, _owner(request, server))
    return _success(f"LoRA adapter '{body.lora_name}' removed successfully.", ignored)


def _owner(request: Request, server: App) -> str:
    """Return the owner of the adapters that a request may change: the server if all share one
    key."""
    frontend = server.frontend
    has_owners = len(frontend.api_key) > 1 or frontend.api_keys_file or frontend.owner_header
    return owner_of(request) if has_owners else ""


def _success(what: str, ignored: list[str]) -> Response:
    headers = {HEADER: header_value(ignored)} if ignored else {}
    return PlainTextResponse(f"Success: {what}", headers=headers)


class AdaptersApi(Api):
    """Loading and unloading adapters while the server runs."""

    info = Info(
        summary="loads and unloads adapters while the server runs",
        source="the HTTP API of `vllm serve`",
    )
    routes = (
        Route(
            method="POST",
            path="/v1/load_lora_adapter",
            endpoint=load_adapter,
            body=LoadAdapterRequest,
            flag=FLAG,
        ),
        Route(
            method="POST",
            path="/v1/unload_lora_adapter",
            endpoint=unload_adapter,
            body=UnloadAdapterRequest,
            flag=FLAG,
        ),
    )
