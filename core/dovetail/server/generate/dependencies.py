"""FastAPI dependencies of endpoints: the application's `App`, and the family's state."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

from fastapi import Depends
from starlette.requests import HTTPConnection

from dovetail.server.generate.application import App

State = TypeVar("State")


async def server_of(request: HTTPConnection) -> App:
    """Return the `App` of the application that received this request. A coroutine: FastAPI would
    call a plain function in a thread, which waits for the interpreter while others stream."""
    server: App = request.app.state.server
    return server


def state_of(kind: type[State]) -> Callable[[HTTPConnection], Awaitable[State]]:
    """Return a dependency that yields the family state of this type, made by `Api.state`."""

    async def found(request: HTTPConnection) -> State:
        state: State = request.app.state.api_states[kind]
        return state

    return found


ServerOf = Annotated[App, Depends(server_of)]
