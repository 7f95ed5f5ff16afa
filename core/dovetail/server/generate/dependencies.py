"""How a route reaches the application's ServerState."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends
from starlette.requests import Request

from dovetail.server.generate.server_state import ServerState


def server_of(request: Request) -> ServerState:
    """Return the ServerState of the application that got this request."""
    server: ServerState = request.app.state.server
    return server


ServerOf = Annotated[ServerState, Depends(server_of)]
