"""GET /settings: every setting and plugin in force, and its source.

Secrets were masked before this process received the settings. They still name files, models and
packages, so a server without a key shows them only on its own machine.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from dovetail import registry
from dovetail.config.config import flags
from dovetail.config.sections.frontend import FrontendConfig
from dovetail.interfaces.api import Api, Route
from dovetail.interfaces.plugin import Info
from dovetail.registry.summaries import summary_of
from dovetail.server.endpoint import ServerOf, is_local_only, problem
from dovetail.version import __version__

PATH = "/settings"
NOT_SHOWN = problem(
    403,
    "a server without a key shows its settings only on its own machine. "
    "Fix: start it with --api-key or with --enable-dev-endpoints.",
    kind="permission_error",
    code="settings_not_shown",
)
"""The answer to clients that may not see the settings."""


async def show_settings(request: Request, server: ServerOf) -> Response:
    """Return every setting and plugin in force, and its source, with secrets masked."""
    if not may_show(server.frontend):
        return NOT_SHOWN.response(request.scope)
    if server.in_force is None:
        return problem(404, "this process does not know its settings.").response(request.scope)
    settings: dict[str, Any] = msgspec.to_builtins(server.in_force)
    for row in settings["settings"]:
        row["flag"], row["help"] = flags()[row["name"]].spelling, flags()[row["name"]].meta.help
    for plugin in settings["plugins"]:
        plugin["summary"] = _summary(plugin["kind"], plugin["name"], plugin["target"])
    return JSONResponse({"version": __version__, **settings})


def may_show(frontend: FrontendConfig) -> bool:
    """Return whether every client that can reach the route may see the settings."""
    has_guard = frontend.has_keys or frontend.uds is not None
    return has_guard or frontend.enable_dev_endpoints or is_local_only(frontend)


@cache
def _summary(kind: str, name: str, target: str) -> str:
    """Return a plugin's own summary, if it can be read without importing the plugin."""
    for entry in registry.entries(kind) if kind in registry.KINDS else ():
        if entry.name == name and entry.target == target:
            return summary_of(entry)
    return ""


class SettingsApi(Api):
    """The settings in force."""

    info = Info(summary="every setting and plugin in force, and where each came from")
    routes = (Route(method="GET", path=PATH, endpoint=show_settings),)
