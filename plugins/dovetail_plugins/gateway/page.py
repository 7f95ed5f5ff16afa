"""A gateway's answers for the page: its files, which need no loaded model, and a refusal of
/settings if anybody could read them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from dovetail.config.sections.frontend import FrontendConfig
from dovetail_plugins.apis.settings import routes as settings
from dovetail_plugins.apis.ui import routes as ui
from dovetail_plugins.apis.ui.files import PageFiles

Endpoint = Callable[..., Any]


def page_routes(frontend: FrontendConfig) -> dict[str, Endpoint]:
    """Return path -> endpoint for the page's files; empty with --no-ui."""
    files = PageFiles()

    async def show_root(request: Request) -> Response:
        """Return the page to browsers, and a line of text to programs."""
        return await ui.show_root(request, files)

    async def show_page(request: Request) -> Response:
        """Return the page for chatting with the models and watching the server."""
        return await ui.show_page(request, files)

    async def show_part(request: Request) -> Response:
        """Return a script or a style sheet of the page."""
        return await ui.show_part(request, request.path_params["name"], files)

    page = {"/": show_root, "/ui": show_page, "/ui/{name}": show_part}
    return page if frontend.ui else {}


def hidden_routes(frontend: FrontendConfig) -> Iterator[tuple[str, Endpoint]]:
    """Yield the settings path with a refusal if this address may not show them. The models' servers
    do not know who can reach it."""

    async def refuse(request: Request) -> Response:
        """Answer that the settings are not shown here."""
        return settings.NOT_SHOWN.response(request.scope)

    if not settings.may_show(frontend):
        yield settings.PATH, refuse
