"""POST /reset_prefix_cache."""

from __future__ import annotations

from starlette.responses import Response

from dovetail.server.endpoint import ServerOf


async def reset_prefix_cache(server: ServerOf) -> Response:
    """Drop all cached prefixes, so that the next prompts are computed in full."""
    await server.engine.reset_prefix_cache()
    return Response(status_code=200)
