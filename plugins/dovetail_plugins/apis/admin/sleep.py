"""POST /sleep and /wake_up, GET /is_sleeping.

They answer once the change is complete. The engine defines the levels and tags.
"""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Query
from starlette.responses import Response

from dovetail.server.endpoint import ServerOf


async def sleep(
    server: ServerOf, level: int = 1, mode: Literal["abort", "wait"] = "abort"
) -> Response:
    """Release the memory of weights and KV cache until /wake_up; requests get 503 meanwhile.
    Running requests are aborted, or finish first with mode=wait."""
    await server.engine.sleep(level, waits=mode == "wait")
    return Response(status_code=200)


async def wake_up(server: ServerOf, tags: Annotated[list[str] | None, Query()] = None) -> Response:
    """Restore the memory with the tags "weights" or "kv_cache", or both if no tag is given."""
    await server.engine.wake_up(tags or ())
    return Response(status_code=200)


async def is_sleeping(server: ServerOf) -> dict[str, bool]:
    """Return whether weights or KV cache are asleep."""
    return {"is_sleeping": await server.engine.is_sleeping()}
