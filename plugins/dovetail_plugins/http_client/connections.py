"""Connections to a server, by Unix socket, TCP or TLS; one request at a time on each."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import cast

from dovetail_plugins.http_client.response import Header, Response, StreamedResponse

CONNECT_LIMIT_S = 5.0
IDLE_S = 60.0
"""How long an unused connection stays open. The server keeps its end open longer, so that it never
closes one while a request is on its way."""

Address = str | tuple[str, int]
"""The path of a Unix socket, or a host and a port."""


class Connection(asyncio.Protocol):
    """One connection, with its current response."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self._response: StreamedResponse | None = None
        self._is_lost = False

    @property
    def is_free(self) -> bool:
        """Return whether a request may be sent: the last response is complete and the connection
        open."""
        response = self._response
        may_go_on = response is None or (response.is_complete and not response.is_last)
        return may_go_on and not self._is_lost and not self.transport.is_closing()

    def send(self, request: bytes, response: StreamedResponse) -> None:
        """Send a request whose response is to fill `response`. Mutates: self"""
        self._response = response
        self.transport.write(request)

    def close(self) -> None:
        """Close the connection; the server then aborts an unfinished request."""
        self.transport.abort()

    # asyncio calls the next three methods.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport. Mutates: self"""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass

    def data_received(self, data: bytes) -> None:
        """Pass bytes to the current response. Mutates: self"""
        if self._response is None or self._response.is_complete:
            self.close()  # unrequested data
        else:
            self._response.feed(data)

    def connection_lost(self, error: Exception | None) -> None:
        """Record the end. Mutates: self"""
        self._is_lost = True
        if self._response is not None:
            self._response.end(error)


async def connect(address: Address, tls: ssl.SSLContext | None = None) -> Connection:
    """Return a new connection. Raises: OSError"""
    loop = asyncio.get_running_loop()
    if isinstance(address, str):
        return (await loop.create_unix_connection(Connection, address))[1]
    return (await loop.create_connection(Connection, *address, ssl=tls))[1]


def request_bytes(
    method: str, target: bytes, headers: Sequence[Header] = (), body: bytes = b""
) -> bytes:
    """Return the bytes of a request. Its length is added."""
    lines = [b"%b %b HTTP/1.1" % (method.encode(), target)]
    lines += [b"%b: %b" % header for header in headers]
    if body or method not in ("GET", "HEAD"):
        lines.append(b"content-length: %d" % len(body))
    return b"\r\n".join([*lines, b"", body])


class ConnectionPool:
    """A pool with one connection per concurrent request."""

    def __init__(
        self,
        address: Address,
        tls: ssl.SSLContext | None = None,
        *,
        host: bytes = b"model",
        is_reused: bool = True,
        max_bytes: int | None = None,
    ) -> None:
        """`host` is the Host header of requests without one. With `is_reused` False each request
        has a connection of its own. A response may have `max_bytes`, headers included."""
        self._address = address
        self._tls = tls
        self._host = host
        self._is_reused = is_reused
        self._max_bytes = max_bytes
        self._idle: deque[tuple[float, Connection]] = deque()

    @contextlib.asynccontextmanager
    async def stream(
        self, method: str, target: bytes, headers: Sequence[Header] = (), body: bytes = b""
    ) -> AsyncIterator[StreamedResponse]:
        """Yield the response once its headers have arrived; leaving early aborts the request.

        Raises: ConnectionError
        """
        connection = await self._open()
        try:
            if not any(name == b"host" for name, _ in headers):
                headers = [*headers, (b"host", self._host)]
            response = StreamedResponse(
                connection.transport, has_body=method != "HEAD", max_bytes=self._max_bytes
            )
            connection.send(request_bytes(method, target, headers, body), response)
            await response.wait_head()
            yield response
        finally:
            self._leave(connection)

    async def request(self, method: str, path: str) -> Response:
        """Return the complete response to a request without a body. Raises: ConnectionError"""
        async with self.stream(method, path.encode()) as response:
            return Response(status=response.status, body=await response.read())

    def close(self) -> None:
        """Close the unused connections."""
        while self._idle:
            self._idle.pop()[1].close()

    async def _open(self) -> Connection:
        while self._idle:
            _, connection = self._idle.pop()
            if connection.is_free:
                return connection
        try:
            async with asyncio.timeout(CONNECT_LIMIT_S):
                return await connect(self._address, self._tls)
        except OSError as error:
            what = error if str(error) else type(error).__name__
            raise ConnectionError(f"no connection to {self._address}: {what}") from error

    def _leave(self, connection: Connection) -> None:
        """Return a reusable connection to the pool, and close expired ones."""
        now_s = time.monotonic()
        if connection.is_free and self._is_reused:
            self._idle.append((now_s, connection))
        else:
            connection.close()
        while self._idle and now_s - self._idle[0][0] > IDLE_S:
            self._idle.popleft()[1].close()
