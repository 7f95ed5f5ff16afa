"""One HTTP request over one connection, its answer kept as bytes with their times of arrival.

Nothing is read out of the answer while the load runs: that would take time from the server beside
it. A request is timed from when its first byte is handed to the socket; making the connection (and
TLS) comes before and is kept apart. Framing is httptools'.
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
    """The times and pieces of one request's answer. Seconds of time.perf_counter; `error` is of the
    transport only."""

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
    """Where requests go, and with which headers."""

    host: str
    port: int
    path: str
    headers: Mapping[str, str]
    tls: ssl.SSLContext | None = None
    timeout_s: float = 600.0

    @property
    def url(self) -> str:
        """Return the address as a person would write it."""
        return f"{'https' if self.tls else 'http'}://{self.host}:{self.port}{self.path}"

    def request(self, method: str, path: str, body: bytes = b"") -> bytes:
        """Return the bytes of a request."""
        lines = [f"{method} {path} HTTP/1.1", *(f"{k}: {v}" for k, v in self.headers.items())]
        if body:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        return "\r\n".join([*lines, "Connection: close", "", ""]).encode() + body


def target_of(base_url: str, path: str, *, api_key: str | None, timeout_s: float) -> Target:
    """Return the target of an address and a path below it. Raises: ConfigError"""
    parts = urlsplit(base_url if "//" in base_url else f"http://{base_url}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(
            f"{base_url!r} is not an address.",
            where="--base-url",
            fix="e.g. http://127.0.0.1:8000.",
        )
    base = parts.path.rstrip("/")
    if path.startswith("/v1/"):
        base = base.removesuffix("/v1")  # both are common ways to write the address
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
    """Return the trace of one request. Whatever goes wrong is in its `error`."""
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
    """Writes the request when connected, keeps what comes, and sets `done` at the end."""

    def __init__(self, request: bytes, done: asyncio.Future[None]) -> None:
        self.trace = Trace()
        self._request = request
        self._done = done
        self._parser = httptools.HttpResponseParser(self)
        self._now_s = 0.0
        self._has_length = False
        self._is_in_body = False

    def connection_made(self, transport: Any) -> None:
        """Send the request; its time begins."""
        self.trace.start_s = time.perf_counter()
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Keep what came with the time at which it came."""
        self._now_s = time.perf_counter()
        if self._done.done():
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._end(f"the answer is not HTTP: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        """End the answer: rightly where only the end of the connection can end it."""
        self._now_s = time.perf_counter()
        if self._is_in_body and not self._has_length and exc is None:
            self._end(None)
        else:
            self._end("the connection broke before the answer was complete")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Note whether the body says where it ends."""
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._has_length = True

    def on_headers_complete(self) -> None:
        """Keep the status."""
        self.trace.status = self._parser.get_status_code()
        self._is_in_body = self.trace.status >= 200

    def on_body(self, body: bytes) -> None:
        """Keep a piece of the body."""
        self.trace.pieces.append((self._now_s, body))

    def on_message_complete(self) -> None:
        """End the answer; an interim one (1xx) is followed by another."""
        if self.trace.status >= 200:
            self._end(None)
        self._has_length = False

    def _end(self, error: str | None) -> None:
        if self._done.done():
            return
        self.trace.end_s = self._now_s
        self.trace.error = error
        self._done.set_result(None)
