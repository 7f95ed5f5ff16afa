"""POST /collective_rpc: run a method of the workers on all ranks."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from pydantic import Field
from starlette.responses import Response

from dovetail.engine.worker_calls import worker_call
from dovetail.server.endpoint import HEADER, Body, ServerOf, header_value

Seconds = Annotated[float, Field(gt=0, le=1e6)]


class CollectiveRpcRequest(Body):
    """A method name, with its arguments. The pattern excludes functions of modules."""

    method: Annotated[str, Field(pattern="^[A-Za-z][A-Za-z0-9_]*$", max_length=256)]
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    timeout: Seconds | None = None


async def collective_rpc(server: ServerOf, body: CollectiveRpcRequest) -> Response:
    """Run a method of every rank's worker between two steps, and return all results by engine and
    rank. Methods come from --worker-extension-cls or from a worker plugin."""
    ignored = list(server.fields.check(body, is_answered=False))
    call = worker_call(body.method, body.timeout, body.args, body.kwargs)
    results = await server.engine.collective_rpc(call)
    headers = {HEADER: header_value(ignored)} if ignored else {}
    data = msgspec.json.encode({"results": results})
    return Response(data, media_type="application/json", headers=headers)
