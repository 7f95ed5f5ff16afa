"""FastAPI dependencies of endpoints: the application's ServerState, and the family's state."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

from fastapi import Depends
from starlette.requests import Request

from dovetail.server.generate.server_state import ServerState

State = TypeVar("State")


def server_of(request: Request) -> ServerState:
    """Return the ServerState of the application that received this request."""
    server: ServerState = request.app.state.server
    return server


def state_of(kind: type[State]) -> Callable[[Request], Awaitable[State]]:
    """Return a dependency that yields the family state of this type, made by `Api.state`."""

    async def found(request: Request) -> State:
        state: State = request.app.state.api_states[kind]
        return state

    return found


ServerOf = Annotated[ServerState, Depends(server_of)]
