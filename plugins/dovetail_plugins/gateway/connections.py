"""Connections: HTTP/1.1 to one server, on its Unix socket or by TCP, kept open between requests.

One request at a time on a connection. Bytes are read by httptools, and all that came in one read is
one piece of the answer. Whatever goes wrong is a ConnectionError.
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
"""How long a connection is kept without requests; the server itself keeps it longer, so that none
is closed while a request is on its way."""

MAX_HELD_BYTES = 2**18
"""Once so much of an answer waits for a slow client, no more is read."""

Header = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """An answer with its body read."""

    status: int
    body: bytes

    @property
    def text(self) -> str:
        """Return the body as text."""
        return self.body.decode("utf-8", "replace")

    def json(self) -> Any:
        """Return what the body says. Raises: ValueError"""
        return json_value(self.body)


class Connections:
    """As many connections as there are requests, to the socket at a path or to a host's port."""

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
        """Give the start of the answer; leaving the block before its end ends its work.

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
        """Return the whole answer to a request without a body. Raises: ConnectionError"""
        async with self.answer(method, path.encode()) as answer:
            body = b"".join([piece async for piece in answer.pieces()])
        return Whole(status=answer.status, body=body)

    def close(self) -> None:
        """Close the connections that nobody uses."""
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
        """Keep a connection whose answer is complete, and close all others that nobody needs."""
        now_s = time.monotonic()
        if connection.is_free:
            self._idle.append((now_s, connection))
        else:
            connection.close()
        while self._idle and now_s - self._idle[0][0] > IDLE_S:
            self._idle.popleft()[1].close()


class Answer:
    """One answer as it comes in. Header names are in lower case; `is_last`: the server closes the
    connection behind it."""

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
        """Return once status and headers are there. Raises: ConnectionError"""
        while not self._has_begun:
            await self._more()

    async def pieces(self) -> AsyncIterator[bytes]:
        """Give the body as it comes. Raises: ConnectionError where it ends too early"""
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
        """Return when something has come. Raises: ConnectionError"""
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
        """Take bytes of the connection. Mutates: self"""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.fail(f"the answer is not HTTP: {error}")
        if self._num_held > MAX_HELD_BYTES and not self._is_paused and not self.is_complete:
            self._is_paused = True
            self._transport.pause_reading()
        self._tell()

    def fail(self, reason: str) -> None:
        """Note that no more will come. Mutates: self"""
        if not self.is_complete:
            self._fault = ConnectionError(reason)
        self._tell()

    # httptools calls these four.

    def on_header(self, name: bytes, value: bytes) -> None:
        """Note a header. Mutates: self"""
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Note the status. Mutates: self"""
        self.status, self._has_begun = self._parser.get_status_code(), True

    def on_body(self, body: bytes) -> None:
        """Note a piece of the body. Mutates: self"""
        self._held.append(body)
        self._num_held += len(body)

    def on_message_complete(self) -> None:
        """Note the end. Mutates: self"""
        self.is_complete, self.is_last = True, not self._parser.should_keep_alive()


class _Connection(asyncio.Protocol):
    """One connection, with the answer that it is busy with."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport
        self._answer: Answer | None = None
        self._is_lost = False

    @property
    def is_free(self) -> bool:
        """Return whether a request may be sent: the last answer is complete, and it lives."""
        answer = self._answer
        may_go_on = answer is None or (answer.is_complete and not answer.is_last)
        return may_go_on and not self._is_lost and not self._transport.is_closing()

    def send(self, method: str, target: bytes, headers: Sequence[Header], body: bytes) -> Answer:
        """Send a request; return its answer, which is still to come. Mutates: self"""
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
        """Close the connection; an unfinished request ends in the server."""
        self._transport.abort()

    # asyncio calls these three.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport. Mutates: self"""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are not derived from it

    def data_received(self, data: bytes) -> None:
        """Hand bytes to the answer that they are of. Mutates: self"""
        if self._answer is None or self._answer.is_complete:
            self.close()  # nothing was asked for
        else:
            self._answer.feed(data)

    def connection_lost(self, error: Exception | None) -> None:
        """Note the end. Mutates: self"""
        self._is_lost = True
        if self._answer is not None:
            self._answer.fail(
                f"the connection ended: {error!r}" if error else "the connection ended"
            )
