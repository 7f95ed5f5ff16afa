"""Sleep and waking up; there only with --enable-dev-endpoints, as closed as every other route.

The answers come when it is done. Knows neither levels nor what there is to wake: the engine does.
"""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Query
from starlette.responses import Response

from dovetail.server.routes.access import ServerOf


async def sleep(
    server: ServerOf, level: int = 1, mode: Literal["abort", "wait"] = "abort"
) -> Response:
    """Give the memory of weights and KV cache back; requests under way end now, or by themselves
    when the mode is wait. The next ones are refused with 503 until the engine is woken up."""
    await server.engine.sleep(level, waits=mode == "wait")
    return Response(status_code=200)


async def wake_up(server: ServerOf, tags: Annotated[list[str] | None, Query()] = None) -> Response:
    """Take the memory of "weights", "kv_cache" or, if no tag is named, both again."""
    await server.engine.wake_up(tags or ())
    return Response(status_code=200)


async def is_sleeping(server: ServerOf) -> dict[str, bool]:
    """Say whether weights or KV cache are asleep."""
    return {"is_sleeping": await server.engine.is_sleeping()}
