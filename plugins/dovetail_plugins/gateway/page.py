"""What a gateway answers of the page: its files, for which no model has to be loaded, and that
settings are not told where anybody could ask for them."""

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
    """Return the endpoints of the page's files by path; none with --no-ui."""
    files = PageFiles()

    async def show_root(request: Request) -> Response:
        """Return the page to browsers, and a line of text to programs."""
        return await ui.show_root(request, files)

    async def show_page(request: Request) -> Response:
        """Return the page on which one chats with the models and watches the server."""
        return await ui.show_page(request, files)

    async def show_part(request: Request) -> Response:
        """Return a script or a style sheet of the page."""
        return await ui.show_part(request, request.path_params["name"], files)

    page = {"/": show_root, "/ui": show_page, "/ui/{name}": show_part}
    return page if frontend.ui else {}


def hidden_routes(frontend: FrontendConfig) -> Iterator[tuple[str, Endpoint]]:
    """Give the path of the settings where this address may not tell them: the models' servers do
    not know who can reach it."""

    async def refuse(request: Request) -> Response:
        """Say that settings are not told here."""
        return settings.NOT_SHOWN.response(request.scope)

    if not settings.may_show(frontend):
        yield settings.PATH, refuse
