"""The way of a chat body through the server, traced: every stay in a file, and what is made there.

A stop is a stay in one file of `dovetail/server`, from `create_chat_completion` to the moment at
which the engine gets the request. A function counts where it is entered first, as it is read. What
surrounds every route (middleware) and the inside of the template engine are not part of it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from types import FrameType
from typing import Any

from fastapi import FastAPI

from support.serving import USER, call_asgi

FOLDER = "/dovetail/server/"
NOT_COUNTED = ("http/middleware.py", "generate/rendering/")


class Tracer:
    """Notes functions in the order in which they are entered. Install `note` by sys.setprofile."""

    def __init__(self) -> None:
        self.stops: list[tuple[str, list[str]]] = []
        self.containers: set[str] = set()
        self._seen: set[tuple[str, str]] = set()
        self._is_on = self._is_over = False

    @property
    def names(self) -> set[str]:
        """What a reader meets by name: the functions of the stops, and the containers."""
        functions = {name for _, stop in self.stops for name in stop if "<" not in name}
        return functions | self.containers

    def note(self, frame: FrameType, event: str, _: Any) -> None:
        """Note a call. Mutates: self"""
        name = frame.f_code.co_qualname
        self._is_on |= name == "create_chat_completion"
        if event != "call" or self._is_over or not self._is_on:
            return
        self._is_over = name == "Generation.steps"
        if frame.f_code.co_name == "__init__":
            self._note_container(type(frame.f_locals.get("self")))
        _, is_server, file = frame.f_code.co_filename.partition(FOLDER)
        if is_server and not file.startswith(NOT_COUNTED) and (file, name) not in self._seen:
            self._note_stop(file, name)

    def _note_container(self, made: type) -> None:
        if made.__module__.startswith("dovetail.") and dataclasses.is_dataclass(made):
            self.containers.add(made.__name__)

    def _note_stop(self, file: str, name: str) -> None:
        self._seen.add((file, name))
        if not self.stops or self.stops[-1][0] != file:
            self.stops.append((file, []))
        self.stops[-1][1].append(name)


def trace(app: FastAPI) -> Tracer:
    """Return the way of a body with one short message; a request before it warms what is kept."""
    tracer = Tracer()

    async def both() -> None:
        await call_asgi(app, "/v1/chat/completions", {"messages": USER})
        sys.setprofile(tracer.note)
        try:
            await call_asgi(app, "/v1/chat/completions", {"messages": USER})
        finally:
            sys.setprofile(None)

    asyncio.run(both())
    return tracer
