"""One HTTP request on one connection; its answer is saved as bytes with their arrival times.

Answers are not parsed while the load runs, which would take time from a server on the same machine.
The time of a request starts when its first byte is written to the socket. Connecting (and TLS)
comes before that and is recorded separately.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from dovetail.errors import ConfigError
from dovetail_plugins.http_client.connections import connect, request_bytes
from dovetail_plugins.http_client.response import ResponseError, StreamedResponse


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
class RequestTarget:
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
        headers = [*self.headers.items(), ("Connection", "close")]
        if body:
            headers.append(("Content-Type", "application/json"))
        encoded = [(name.encode(), value.encode()) for name, value in headers]
        return request_bytes(method, path.encode(), encoded, body)


def target_of(base_url: str, path: str, *, api_key: str | None, timeout_s: float) -> RequestTarget:
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
    return RequestTarget(
        host=parts.hostname,
        port=parts.port or (443 if is_tls else 80),
        path=base + path,
        headers=headers,
        tls=ssl.create_default_context() if is_tls else None,
        timeout_s=timeout_s,
    )


async def send(target: RequestTarget, request: bytes) -> Trace:
    """Return the trace of one request. Every failure is in its `error`."""
    trace = Trace()
    began_s = trace.start_s = time.perf_counter()
    try:
        async with asyncio.timeout(target.timeout_s):
            connection = await connect((target.host, target.port), target.tls)
            try:
                response = _TimedResponse(connection.transport, trace)
                trace.start_s = time.perf_counter()
                connection.send(request, response)
                await response.read()  # nothing: the trace has it
            finally:
                connection.close()
    except TimeoutError:
        trace.error = f"no whole answer within {target.timeout_s:g} s"
    except ResponseError as error:
        trace.error = str(error)
    except OSError as error:
        trace.error = f"{type(error).__name__}: {error}"
    trace.end_s = trace.end_s or time.perf_counter()
    trace.connect_s = max(0.0, trace.start_s - began_s)
    return trace


class _TimedResponse(StreamedResponse):
    """Records each piece with its arrival time."""

    def __init__(self, transport: asyncio.Transport, trace: Trace) -> None:
        super().__init__(transport)
        self._trace = trace
        self._now_s = 0.0

    def feed(self, data: bytes) -> None:
        """Add bytes from the connection. Mutates: self"""
        self._now_s = time.perf_counter()
        super().feed(data)

    def end(self, error: Exception | None) -> None:
        """Record that the connection ended. Mutates: self"""
        self._now_s = time.perf_counter()
        super().end(error)

    def on_headers_complete(self) -> None:
        """Record the status. Mutates: self, its trace"""
        super().on_headers_complete()
        self._trace.status = self.status

    def on_body(self, body: bytes) -> None:
        """Record a piece of the body; reading never pauses. Mutates: its trace"""
        self._trace.pieces.append((self._now_s, body))

    def complete(self, *, is_last: bool) -> None:
        """Record the end of the body. Mutates: self, its trace"""
        super().complete(is_last=is_last)
        self._trace.end_s = self._now_s
