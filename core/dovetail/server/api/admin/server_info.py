"""Routes for those who develop and measure; there only with --enable-dev-endpoints.

They tell settings and change the engine's state, so they are as closed as every other route.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
from starlette.responses import Response

from dovetail.config.engine import shown
from dovetail.config.field import flags_of
from dovetail.config.frontend import FrontendConfig
from dovetail.config.secrets import masked
from dovetail.server.generate.dependencies import ServerOf
from dovetail.version import __version__


async def reset_prefix_cache(server: ServerOf) -> Response:
    """Forget every cached prefix, so that the next prompts are computed from their beginning."""
    await server.engine.reset_prefix_cache()
    return Response(status_code=200)


async def server_info(server: ServerOf) -> dict[str, Any]:
    """Return the resolved engine and the HTTP flags; secrets are masked."""
    engine = msgspec.to_builtins(server.engine.spec)
    return {
        "version": __version__,
        "engine": masked(engine),
        "frontend": masked(_frontend(server.frontend)),
    }


def _frontend(frontend: FrontendConfig) -> dict[str, Any]:
    values = dataclasses.asdict(frontend)
    return {flag.name: shown(flag, values[flag.name]) for flag in flags_of(FrontendConfig)}
