"""How a route reaches the application's Server."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends
from starlette.requests import Request

from dovetail.server.generate.server_state import Server


def server_of(request: Request) -> Server:
    """Return the Server of the application that got this request."""
    server: Server = request.app.state.server
    return server


ServerOf = Annotated[Server, Depends(server_of)]
