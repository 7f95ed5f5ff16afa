"""Connections: persistent HTTP/1.1 connections to one server, by Unix socket or TCP.

A connection carries one request at a time. httptools parses the bytes, and all bytes of one read
are one piece of the answer. Every failure is a ConnectionError.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import httptools

from dovetail.json_values import json_value

CONNECT_LIMIT_S = 5.0
IDLE_S = 60.0
"""How long an unused connection stays open. The server keeps its end open longer, so that it never
closes one while a request is on its way."""

MAX_HELD_BYTES = 2**18
"""Reading pauses once this much of an answer waits for a slow client."""

Header = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """An answer with its complete body."""

    status: int
    body: bytes

    @property
    def text(self) -> str:
        """Return the body as text."""
        return self.body.decode("utf-8", "replace")

    def json(self) -> Any:
        """Return the decoded JSON body. Raises: ValueError"""
        return json_value(self.body)


class Connections:
    """A pool with one connection per concurrent request, to a Unix socket or to a host and port."""

    def __init__(self, address: str | tuple[str, int], tls: ssl.SSLContext | None = None) -> None:
        self._address = address
        self._tls = tls
        self._idle: deque[tuple[float, _Connection]] = deque()

    @contextlib.asynccontextmanager
    async def answer(
        self,
        method: str,
        target: bytes,
        headers: Sequence[Header] = (),
        body: bytes = b"",
    ) -> AsyncIterator[Answer]:
        """Yield the answer once its headers have arrived; leaving early aborts the request.

        Raises: ConnectionError
        """
        connection = await self._open()
        try:
            answer = connection.send(method, target, headers, body)
            await answer.begun()
            yield answer
        finally:
            self._leave(connection)

    async def ask(self, method: str, path: str) -> Whole:
        """Return the complete answer to a request without a body. Raises: ConnectionError"""
        async with self.answer(method, path.encode()) as answer:
            body = b"".join([piece async for piece in answer.pieces()])
        return Whole(status=answer.status, body=body)

    def close(self) -> None:
        """Close the unused connections."""
        while self._idle:
            self._idle.pop()[1].close()

    async def _open(self) -> _Connection:
        while self._idle:
            _, connection = self._idle.pop()
            if connection.is_free:
                return connection
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_LIMIT_S):
                if isinstance(self._address, str):
                    _, connection = await loop.create_unix_connection(_Connection, self._address)
                else:
                    host, port = self._address
                    _, connection = await loop.create_connection(
                        _Connection, host, port, ssl=self._tls
                    )
        except OSError as error:
            raise ConnectionError(f"no connection to {self._address}: {error!r}") from error
        return connection

    def _leave(self, connection: _Connection) -> None:
        """Return a reusable connection to the pool, and close expired ones."""
        now_s = time.monotonic()
        if connection.is_free:
            self._idle.append((now_s, connection))
        else:
            connection.close()
        while self._idle and now_s - self._idle[0][0] > IDLE_S:
            self._idle.popleft()[1].close()


class Answer:
    """One answer while it arrives. Header names are in lower case. `is_last`: the server closes the
    connection after it."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self.status = 0
        self.headers: list[Header] = []
        self.is_complete = False
        self.is_last = False
        self._has_begun = False
        self._transport = transport
        self._parser = httptools.HttpResponseParser(self)
        self._held: list[bytes] = []
        self._num_held = 0
        self._is_paused = False
        self._fault: ConnectionError | None = None
        self._news: asyncio.Future[None] | None = None

    async def begun(self) -> None:
        """Wait until status and headers have arrived. Raises: ConnectionError"""
        while not self._has_begun:
            await self._more()

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives. Raises: ConnectionError if it ends early"""
        while True:
            if self._held:
                yield self._taken()
            elif self.is_complete:
                return
            else:
                await self._more()

    def _taken(self) -> bytes:
        held = self._held
        piece = held[0] if len(held) == 1 else b"".join(held)
        self._held, self._num_held = [], 0
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()
        return piece

    async def _more(self) -> None:
        """Wait until something has arrived. Raises: ConnectionError"""
        if self._fault is not None:
            raise self._fault
        self._news = asyncio.get_running_loop().create_future()
        try:
            await self._news
        finally:
            self._news = None

    def _tell(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def feed(self, data: bytes) -> None:
        """Add bytes from the connection. Mutates: self"""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.fail(f"the answer is not HTTP: {error}")
        if self._num_held > MAX_HELD_BYTES and not self._is_paused and not self.is_complete:
            self._is_paused = True
            self._transport.pause_reading()
        self._tell()

    def fail(self, reason: str) -> None:
        """Record that nothing more will arrive. Mutates: self"""
        if not self.is_complete:
            self._fault = ConnectionError(reason)
        self._tell()

    # httptools calls the next four methods.

    def on_header(self, name: bytes, value: bytes) -> None:
        """Record a header. Mutates: self"""
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Record the status. Mutates: self"""
        self.status, self._has_begun = self._parser.get_status_code(), True

    def on_body(self, body: bytes) -> None:
        """Record a piece of the body. Mutates: self"""
        self._held.append(body)
        self._num_held += len(body)

    def on_message_complete(self) -> None:
        """Record the end. Mutates: self"""
        self.is_complete, self.is_last = True, not self._parser.should_keep_alive()


class _Connection(asyncio.Protocol):
    """One connection, with its current answer."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport
        self._answer: Answer | None = None
        self._is_lost = False

    @property
    def is_free(self) -> bool:
        """Return whether a request may be sent: the last answer is complete and the connection
        open."""
        answer = self._answer
        may_go_on = answer is None or (answer.is_complete and not answer.is_last)
        return may_go_on and not self._is_lost and not self._transport.is_closing()

    def send(self, method: str, target: bytes, headers: Sequence[Header], body: bytes) -> Answer:
        """Send a request; return its future answer. Mutates: self"""
        self._answer = Answer(self._transport)
        lines = [b"%b %b HTTP/1.1" % (method.encode(), target)]
        lines += [b"%b: %b" % header for header in headers]
        if not any(name == b"host" for name, _ in headers):
            lines.append(b"host: model")
        if body or method not in ("GET", "HEAD"):
            lines.append(b"content-length: %d" % len(body))
        self._transport.write(b"\r\n".join([*lines, b"", body]))
        return self._answer

    def close(self) -> None:
        """Close the connection; the server then aborts an unfinished request."""
        self._transport.abort()

    # asyncio calls the next three methods.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport. Mutates: self"""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass

    def data_received(self, data: bytes) -> None:
        """Pass bytes to the current answer. Mutates: self"""
        if self._answer is None or self._answer.is_complete:
            self.close()  # unrequested data
        else:
            self._answer.feed(data)

    def connection_lost(self, error: Exception | None) -> None:
        """Record the end. Mutates: self"""
        self._is_lost = True
        if self._answer is not None:
            self._answer.fail(
                f"the connection ended: {error!r}" if error else "the connection ended"
            )
