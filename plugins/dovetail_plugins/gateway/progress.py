"""LoadProgress: what the client of a stream reads while its model is loaded.

After a few seconds the stream begins with comments, which clients of server-sent events skip, or
with empty pieces in Ollama's format; so no proxy or client gives up. From then on a failure is an
event of the stream, since its status has been sent.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import Any

import msgspec
from starlette.types import Send

from dovetail_plugins.apis.ollama.response import (
    MEDIA_TYPE,
    answer_fields,
    as_message,
    as_response,
    empty_delta,
    encoded,
    line,
)

FIRST_AFTER_S = 3.0
"""A model that is loaded sooner is not reported on, so that failures have their own status."""
PERIOD_S = 5.0
EVENTS, LINES = "events", "lines"
TYPES = {EVENTS: "text/event-stream; charset=utf-8", LINES: MEDIA_TYPE}


def empty_piece(path: str, model: str, **end: str) -> bytes:
    """Return a piece of an answer in Ollama's format, without text; the last one with an `end`."""
    shape = as_message if path == "/api/chat" else as_response
    return encoded(answer_fields(model, shape(empty_delta()), end))


class LoadProgress:
    """The beginning of one request's stream. `has_begun`: its status and headers have been sent."""

    def __init__(self, framing: str | None, path: str, model: str, send: Send) -> None:
        self.has_begun = False
        self.framing = framing
        self._path = path
        self._model = model
        self._send = send

    async def during(self, work: Awaitable[Any]) -> Any:
        """Return the result of the work, and write to the stream until it is there."""
        if self.framing is None:
            return await work
        task, began_s = asyncio.ensure_future(work), time.monotonic()
        try:
            wait_s = FIRST_AFTER_S
            while not (await asyncio.wait((task,), timeout=wait_s))[0]:
                await self._write(time.monotonic() - began_s)
                wait_s = PERIOD_S
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def fail(self, data: bytes) -> None:
        """End the stream with an error."""
        await self._body(data, is_last=True)

    async def _write(self, seconds: float) -> None:
        if not self.has_begun:
            self.has_begun = True
            headers = [(b"content-type", TYPES[self.framing or EVENTS].encode())]
            headers.append((b"cache-control", b"no-cache"))
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._body(self._piece(seconds))

    def _piece(self, seconds: float) -> bytes:
        if self.framing == LINES:
            return line(empty_piece(self._path, self._model))
        name = msgspec.json.encode(self._model).decode()  # on one line whatever the client sent
        return f": {name} is being loaded, {seconds:.0f} s\n\n".encode()

    async def _body(self, data: bytes, *, is_last: bool = False) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": not is_last})
