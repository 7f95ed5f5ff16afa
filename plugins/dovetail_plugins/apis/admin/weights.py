"""POST /update_weights: use another checkpoint of the running model, between two steps.

Every rank of every engine reads it first, and none uses it unless all can. The answers of a server
with this route have a header that says which weights they began with.
`/update_weights_from_disk` is the same with the names of SGLang's fields.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dovetail.errors import RequestError
from dovetail.interfaces.executor import DROP_WEIGHTS, READ_WEIGHTS, UPDATE_WEIGHTS, WorkerCall
from dovetail.observability.metrics import counter
from dovetail.server.endpoint import App, Body, Reply, ServerOf, json_reply
from dovetail_plugins.apis._weights import version_of

WEIGHTS_HEADER = b"x-dovetail-weights-version"
UPDATES = counter("dovetail:weight_updates", "How often the weights of the engines were replaced")

SHARED_MEMORY = Path("/dev/shm")
FolderPath = Annotated[str, Field(min_length=1, max_length=4096)]
MemoryName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9_.-]*$", max_length=128)]
Key = Annotated[str, Field(pattern=r"^[\x21-\x7e]+$", max_length=128)]
Version = Annotated[str, Field(pattern=r"^[\x21-\x7e]+$", max_length=128)]


class UpdateWeightsRequest(Body):
    """The folder of a checkpoint on every engine's machine, or the name of shared memory that has
    weights under a key; the name of their version (without one: the folder's or the memory's), and
    what becomes of running requests."""

    path: FolderPath | None = None
    shared_memory: MemoryName | None = None
    key: Key | None = None
    weights_version: Version | None = None
    running: Literal["keep", "abort"] = "keep"

    @model_validator(mode="after")
    def _has_one_source(self) -> UpdateWeightsRequest:
        if (self.path is None) == (self.shared_memory is None):
            raise ValueError("give either path or shared_memory")
        if (self.key is None) != (self.shared_memory is None):
            raise ValueError("give key with shared_memory, and only with it")
        return self


class UpdateFromDiskRequest(Body):
    """SGLang's fields."""

    model_path: FolderPath
    weight_version: Version | None = None
    load_format: Literal["auto"] | None = None
    abort_all_requests: bool = False
    flush_cache: Literal[True] = True


class UpdatedWeights(Reply):
    """The weights that are in use now."""

    path: str
    weights_version: str


class UpdatedFromDisk(Reply):
    """SGLang's answer."""

    success: bool = True
    message: str
    num_paused_requests: int = 0


async def update_weights(server: ServerOf, body: UpdateWeightsRequest) -> Response:
    """Read a checkpoint on every rank and use it from the next step on. Prefixes that were cached
    are computed again. Running requests keep their cache and go on, or are aborted."""
    ignored = list(server.fields.check(body, is_answered=False))
    path, key = body.path, body.key
    if body.shared_memory is not None:
        path = str(SHARED_MEMORY / body.shared_memory)
    assert path is not None, "the body has one of the two"
    version = body.weights_version or _name_of(path)
    weights = {"path": path, "version": version, "running": body.running}
    await replace_weights(server, weights | ({} if key is None else {"key": key}))
    return json_reply(UpdatedWeights(path=path, weights_version=version), ignored)


async def update_from_disk(server: ServerOf, body: UpdateFromDiskRequest) -> Response:
    """Do what /update_weights does, with SGLang's names."""
    ignored = list(server.fields.check(body, is_answered=False))
    running = "abort" if body.abort_all_requests else "keep"
    version = body.weight_version or _name_of(body.model_path)
    weights = {"path": body.model_path, "version": version, "running": running}
    await replace_weights(server, weights)
    message = f"The weights of version {version} are in use."
    return json_reply(UpdatedFromDisk(message=message), ignored)


def _name_of(path: str) -> str:
    return re.sub(r"[^\x21-\x7e]", "-", Path(path).name)[:128]


async def replace_weights(server: App, weights: dict[str, str]) -> None:
    """Replace the weights of all engines, or of none, by those with a path, a version and possibly
    a key. Raises: RequestError, EngineDead"""
    engine = server.engine
    try:
        await engine.collective_rpc(WorkerCall(method=READ_WEIGHTS, kwargs=weights))
    except RequestError:
        await engine.collective_rpc(WorkerCall(method=DROP_WEIGHTS))
        raise
    await engine.collective_rpc(WorkerCall(method=UPDATE_WEIGHTS, kwargs=weights))
    UPDATES.inc()


class WeightsHeader:
    """Middleware that adds the version of the weights to every answer but errors."""

    def __init__(self, app: ASGIApp, *, engine: Any) -> None:
        self._app, self._engine = app, engine

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""

        async def add(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] < 400:
                own = (WEIGHTS_HEADER, version_of(self._engine).encode())
                message = {**message, "headers": [*message.get("headers", ()), own]}
            await send(message)

        await self._app(scope, receive, add if scope["type"] == "http" else send)
