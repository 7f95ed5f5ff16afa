"""StreamedResponse: one HTTP/1.1 response while it arrives.

httptools parses the bytes, and all bytes of one read are one piece of the body. Reading pauses
while much of the body waits to be taken.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httptools

from dovetail.json_values import json_value
from dovetail_plugins.http_client.events import EventReader

MAX_HEAD_BYTES = 2**18
MAX_HELD_BYTES = 2**18
"""Reading pauses once this much of a response waits for a slow reader."""

Header = tuple[bytes, bytes]
FRAMING = (b"content-length", b"transfer-encoding")


class ResponseError(ConnectionError):
    """The response is not HTTP, exceeds a limit, or ended early."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """A response with its complete body."""

    status: int
    body: bytes

    @property
    def text(self) -> str:
        """Return the body as text."""
        return self.body.decode("utf-8", "replace")

    def json(self) -> Any:
        """Return the decoded JSON body. Raises: ValueError"""
        return json_value(self.body)


class StreamedResponse:
    """A response while it arrives. Header names are in lower case. `is_last`: the connection cannot
    be used after it."""

    def __init__(
        self, transport: asyncio.Transport, *, has_body: bool = True, max_bytes: int | None = None
    ) -> None:
        """`has_body` is False for the response to HEAD. `max_bytes` limits all bytes together."""
        self.status = 0
        self.headers: list[Header] = []
        self.is_complete = False
        self.is_last = False
        self._has_begun = False
        self._has_body = has_body
        self._max_bytes = max_bytes
        self._num_bytes = self._num_head = 0
        self._transport = transport
        self._parser = httptools.HttpResponseParser(self)
        self._held: list[bytes] = []
        self._num_held = 0
        self._is_paused = False
        self._error: ResponseError | None = None
        self._changed: asyncio.Future[None] | None = None

    def header(self, name: bytes) -> bytes:
        """Return the value of a header; b"" if it is missing."""
        return dict(self.headers).get(name, b"")

    async def wait_head(self) -> None:
        """Wait until status and headers have arrived. Raises: ResponseError"""
        while not self._has_begun:
            await self._wait()

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives. Raises: ResponseError if it ends early"""
        while True:
            if self._held:
                yield self._taken()
            elif self.is_complete:
                return
            else:
                await self._wait()

    async def read(self) -> bytes:
        """Return the rest of the body, once it is complete. Raises: ResponseError"""
        return b"".join([piece async for piece in self.pieces()])

    async def events(self) -> AsyncIterator[bytes]:
        """Yield the data of each server-sent event of the body. Raises: ResponseError"""
        reader = EventReader()
        async for piece in self.pieces():
            for data in reader.feed(piece):
                yield data

    def _taken(self) -> bytes:
        piece = b"".join(self._held)
        self._held, self._num_held = [], 0
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()
        return piece

    async def _wait(self) -> None:
        """Wait until something has arrived. Raises: ResponseError"""
        if self._error is not None:
            raise self._error
        self._changed = asyncio.get_running_loop().create_future()
        try:
            await self._changed
        finally:
            self._changed = None

    def _notify(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    def feed(self, data: bytes) -> None:
        """Add bytes from the connection. Mutates: self"""
        self._num_bytes += len(data)
        if self._max_bytes is not None and self._num_bytes > self._max_bytes:
            self.fail(f"the response is longer than {self._max_bytes} bytes")
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.fail(f"the response is not HTTP: {error}")
        if max(self._num_head, 0 if self._has_begun else self._num_bytes) > MAX_HEAD_BYTES:
            self.fail(f"the headers are longer than {MAX_HEAD_BYTES} bytes")
        if self._num_held > MAX_HELD_BYTES and not self._is_paused and not self.is_complete:
            self._is_paused = True
            self._transport.pause_reading()
        self._notify()

    def fail(self, reason: str) -> None:
        """Record that nothing more will arrive. Mutates: self"""
        if not self.is_complete and self._error is None:
            self._error = ResponseError(reason)
        self._notify()

    def end(self, error: Exception | None) -> None:
        """Record that the connection ended, which is the end of a body without a length. Mutates:
        self"""
        is_framed = any(name in FRAMING for name, _ in self.headers)
        if self._has_begun and not is_framed and error is None and self._error is None:
            self.complete(is_last=True)
        shown = f": {error!r}" if error else ""
        self.fail(f"the connection ended before the response was complete{shown}")

    def complete(self, *, is_last: bool) -> None:
        """Record the end of the body. Mutates: self"""
        self.is_complete, self.is_last = True, is_last

    # httptools calls the next four methods.

    def on_header(self, name: bytes, value: bytes) -> None:
        """Record a header, but no trailer. Mutates: self"""
        self._num_head += len(name) + len(value)
        if not self._has_begun:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Record the status. Mutates: self"""
        self.status = self._parser.get_status_code()
        self._has_begun = self.status >= 200
        if self._has_begun and not self._has_body:
            self.complete(is_last=True)

    def on_body(self, body: bytes) -> None:
        """Record a piece of the body. Mutates: self"""
        self._held.append(body)
        self._num_held += len(body)

    def on_message_complete(self) -> None:
        """Record the end, unless this is an interim response (1xx). Mutates: self"""
        if self._has_begun:
            self.complete(is_last=not self._parser.should_keep_alive())
        else:
            self.headers = []
