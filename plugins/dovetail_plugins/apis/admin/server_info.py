"""GET /server_info: the settings of this server, with secrets masked."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec

from dovetail.config.config import shown
from dovetail.config.report.secrets import masked
from dovetail.config.sections.field import flags_of
from dovetail.config.sections.frontend import FrontendConfig
from dovetail.server.endpoint import ServerOf
from dovetail.version import __version__
from dovetail_plugins.apis._weights import version_of


async def server_info(server: ServerOf) -> dict[str, Any]:
    """Return the resolved engine, the HTTP flags, and the weights that are in use if they were
    replaced, with secrets masked."""
    engine = msgspec.to_builtins(server.engine.spec)
    return {
        "version": __version__,
        "weights": {**server.engine.condition.weights, "version": version_of(server.engine)},
        "engine": masked(engine),
        "frontend": masked(_frontend(server.frontend)),
    }


def _frontend(frontend: FrontendConfig) -> dict[str, Any]:
    values = dataclasses.asdict(frontend)
    return {flag.name: shown(flag, values[flag.name]) for flag in flags_of(FrontendConfig)}
