"""One HTTP request on one connection; its answer is saved as bytes with their arrival times.

Answers are not parsed while the load runs, which would take time from a server on the same machine.
The time of a request starts when its first byte is written to the socket. Connecting (and TLS)
comes before that and is recorded separately. httptools does the framing.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httptools

from dovetail.errors import ConfigError


@dataclass(slots=True, kw_only=True)
class Trace:
    """The times and pieces of one answer, in seconds of time.perf_counter. `error` has transport
    errors only."""

    start_s: float = 0.0
    end_s: float = 0.0
    connect_s: float = 0.0
    status: int = 0
    pieces: list[tuple[float, bytes]] = field(default_factory=list)
    error: str | None = None

    @property
    def body(self) -> bytes:
        """Return the whole body."""
        return b"".join(piece for _, piece in self.pieces)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The destination of requests, and their headers."""

    host: str
    port: int
    path: str
    headers: Mapping[str, str]
    tls: ssl.SSLContext | None = None
    timeout_s: float = 600.0

    @property
    def url(self) -> str:
        """Return the address as a URL."""
        return f"{'https' if self.tls else 'http'}://{self.host}:{self.port}{self.path}"

    def request(self, method: str, path: str, body: bytes = b"") -> bytes:
        """Return the bytes of a request."""
        lines = [f"{method} {path} HTTP/1.1", *(f"{k}: {v}" for k, v in self.headers.items())]
        if body:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        return "\r\n".join([*lines, "Connection: close", "", ""]).encode() + body


def target_of(base_url: str, path: str, *, api_key: str | None, timeout_s: float) -> Target:
    """Return the target for a base URL and a path below it. Raises: ConfigError"""
    parts = urlsplit(base_url if "//" in base_url else f"http://{base_url}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(
            f"{base_url!r} is not an address.",
            where="--base-url",
            fix="e.g. http://127.0.0.1:8000.",
        )
    base = parts.path.rstrip("/")
    if path.startswith("/v1/"):
        base = base.removesuffix("/v1")  # both forms of the address are common
    headers = {"Host": parts.netloc, "Accept": "*/*", "User-Agent": "dovetail-bench"}
    if api_key:
        headers["Authorization"] = f"Bearer {api_key}"
    is_tls = parts.scheme == "https"
    return Target(
        host=parts.hostname,
        port=parts.port or (443 if is_tls else 80),
        path=base + path,
        headers=headers,
        tls=ssl.create_default_context() if is_tls else None,
        timeout_s=timeout_s,
    )


async def send(target: Target, request: bytes) -> Trace:
    """Return the trace of one request. Every failure is in its `error`."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    exchange = _Exchange(request, done)
    trace = exchange.trace
    began_s = trace.start_s = time.perf_counter()
    try:
        async with asyncio.timeout(target.timeout_s):
            transport, _ = await loop.create_connection(
                lambda: exchange, target.host, target.port, ssl=target.tls
            )
            try:
                await done
            finally:
                transport.abort()
    except TimeoutError:
        trace.error = f"no whole answer within {target.timeout_s:g} s"
    except OSError as error:
        trace.error = f"{type(error).__name__}: {error}"
    trace.end_s = trace.end_s or time.perf_counter()
    trace.connect_s = max(0.0, trace.start_s - began_s)
    return trace


class _Exchange(asyncio.Protocol):
    """Writes the request when connected, records the answer, and sets `done` at the end."""

    def __init__(self, request: bytes, done: asyncio.Future[None]) -> None:
        self.trace = Trace()
        self._request = request
        self._done = done
        self._parser = httptools.HttpResponseParser(self)
        self._now_s = 0.0
        self._has_length = False
        self._is_in_body = False

    def connection_made(self, transport: Any) -> None:
        """Send the request and start its time."""
        self.trace.start_s = time.perf_counter()
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Record the received data with its arrival time."""
        self._now_s = time.perf_counter()
        if self._done.done():
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._end(f"the answer is not HTTP: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        """End the answer: successfully only if its body has no other end mark."""
        self._now_s = time.perf_counter()
        if self._is_in_body and not self._has_length and exc is None:
            self._end(None)
        else:
            self._end("the connection broke before the answer was complete")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Record whether the body has an explicit end."""
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._has_length = True

    def on_headers_complete(self) -> None:
        """Record the status."""
        self.trace.status = self._parser.get_status_code()
        self._is_in_body = self.trace.status >= 200

    def on_body(self, body: bytes) -> None:
        """Record a piece of the body."""
        self.trace.pieces.append((self._now_s, body))

    def on_message_complete(self) -> None:
        """End the answer, unless it is an interim one (1xx), which another follows."""
        if self.trace.status >= 200:
            self._end(None)
        self._has_length = False

    def _end(self, error: str | None) -> None:
        if self._done.done():
            return
        self.trace.end_s = self._now_s
        self.trace.error = error
        self._done.set_result(None)
