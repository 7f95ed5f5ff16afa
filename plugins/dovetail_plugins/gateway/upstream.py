"""Upstream: another server that requests are forwarded to, and how busy it is."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from dovetail.errors import ConfigError
from dovetail_plugins.http_client.connections import ConnectionPool
from dovetail_plugins.http_client.response import Header, StreamedResponse

LEFT_ALONE_S = 2.0
"""How long an unreachable server is skipped."""
ASK_LIMIT_S = 2.0
PORTS = {"http": 80, "https": 443}


@dataclass(slots=True, kw_only=True)
class Upstream:
    """One server. `num_open` is its number of open requests; it is skipped until `back_s`."""

    url: str
    host: str
    path: str
    connections: ConnectionPool
    num_open: int = 0
    num_failures: int = 0
    back_s: float = field(default=0.0)

    @property
    def hostname(self) -> str:
        """Return the machine's host name or address."""
        return urlsplit(self.url).hostname or ""

    @property
    def is_back(self) -> bool:
        """Return whether it may be tried again."""
        return time.monotonic() >= self.back_s

    def failed(self) -> None:
        """Skip it for a while. Mutates: self"""
        self.num_failures += 1
        self.back_s = time.monotonic() + LEFT_ALONE_S

    @contextlib.asynccontextmanager
    async def stream(
        self, method: str, target: bytes, headers: Sequence[Header], body: bytes
    ) -> AsyncIterator[StreamedResponse]:
        """Yield its response once the headers have arrived; leaving early aborts the request.

        Raises: ConnectionError
        """
        headers = [*headers, (b"host", self.host.encode())]
        self.num_open += 1
        try:
            path = self.path.encode() + target
            async with self.connections.stream(method, path, headers, body) as response:
                yield response
        finally:
            self.num_open -= 1

    async def is_healthy(self) -> bool:
        """Return whether its /health reports 200."""
        try:
            async with asyncio.timeout(ASK_LIMIT_S):
                async with self.stream("GET", b"/health", (), b"") as response:
                    await response.read()
                    return response.status == 200
        except (ConnectionError, TimeoutError):
            return False


def upstream_of(url: str, flag: str) -> Upstream:
    """Return the server at a URL. Raises: ConfigError"""
    parts = urlsplit(url)
    try:
        port = parts.port or PORTS.get(parts.scheme, 0)
    except ValueError:
        port = 0
    if parts.scheme not in PORTS or not parts.hostname or not port or parts.query:
        raise ConfigError(
            f'"{url}" is not the URL of a server.', where=flag, fix="write http://HOST:PORT."
        )
    if "@" in parts.netloc:
        raise ConfigError(
            f"the URL of {parts.hostname} holds a user or a password, which nothing here sends, "
            "and which health reports and headers would show.",
            where=flag,
            fix="leave it out; a client's own key is passed on.",
        )
    tls = ssl.create_default_context() if parts.scheme == "https" else None
    return Upstream(
        url=url.rstrip("/"),
        host=parts.netloc,
        path=parts.path.rstrip("/"),
        connections=ConnectionPool((parts.hostname, port), tls),
    )


def least_busy(servers: Sequence[Upstream], tried: Sequence[Upstream] = ()) -> Upstream | None:
    """Return the untried server with the fewest requests, with unreachable servers last; None if
    all have been tried."""
    left = [one for one in servers if one not in tried]
    return min(left, key=lambda one: (not one.is_back, one.num_open), default=None)
