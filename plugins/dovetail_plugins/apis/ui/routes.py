"""GET / and /ui: the page; GET /ui/{name}: its scripts and styles.

Programs request / to check whether a server is running: unless they accept HTML they get a line of
text, which Ollama's clients look for. The page needs no key, like /health, because it contains no
data: it fetches everything with the key that its user enters. It consists of this package's files
and loads nothing from elsewhere.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import Depends
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from dovetail.errors import NotFound
from dovetail.interfaces.api import Api, Route
from dovetail.interfaces.plugin import Info
from dovetail.server.endpoint import state_of
from dovetail_plugins.apis.ui.files import PageFiles

FLAG = "ui"
RUNNING = "Ollama is running"
FilesOf = Annotated[PageFiles, Depends(state_of(PageFiles))]


async def show_root(request: Request, files: FilesOf) -> Response:
    """Return the page to browsers, and a line of text to programs."""
    is_browser = "text/html" in request.headers.get("accept", "").lower()
    response = files.page().response(request) if is_browser else PlainTextResponse(RUNNING)
    response.headers["Vary"] = "Accept"
    return response


async def show_page(request: Request, files: FilesOf) -> Response:
    """Return the page for chatting with the model and watching the server."""
    return files.page().response(request)


async def show_part(request: Request, name: str, files: FilesOf) -> Response:
    """Return a script or a style sheet of the page."""
    found = files.part(name)
    if found is None:
        raise NotFound("the page has no such file.", code="unknown_path")
    return found.response(request)


class UiApi(Api):
    """The page."""

    info = Info(summary="a page at / to chat with the model and watch the server")
    routes = (
        Route(method="GET", path="/", endpoint=show_root, flag=FLAG, is_open=True),
        Route(method="GET", path="/ui", endpoint=show_page, flag=FLAG, is_open=True),
        Route(method="GET", path="/ui/{name}", endpoint=show_part, flag=FLAG, is_open=True),
    )

    @asynccontextmanager
    async def state(self, frontend: Any) -> AsyncIterator[PageFiles]:
        """Yield the files of the page."""
        yield PageFiles()
