"""LimitedHttpProtocol: uvicorn's HTTP protocol with limits on a head: bytes, headers, time.

It also sets the Date header, which uvicorn leaves to its server's timer (`launch.http_server`).
uvicorn on httptools collects headers without limit, and treats trailers, which follow a body, as
headers. `middleware.BodyLimitMiddleware` limits bodies. Source of the status: RFC 6585, section 5
(431).
"""

from __future__ import annotations

import asyncio
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, NoReturn

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from dovetail.server.http.errors import Problem, problem

HEAD_LIMIT_S = 30.0
"""How long a client may take to send the request line and the headers."""


class _HeadTooLarge(Exception):
    """Stops the parser when a request's head exceeds a limit."""


class LimitedHttpProtocol(HttpToolsProtocol):
    """One connection. A request refused here never reaches the application.

    Bytes of a read that also completes a head or a piece of a body are not counted.
    """

    max_head_bytes = 4 * 2**20
    max_headers = 256
    socket_paths: tuple[str, ...] = ()
    _is_in_head = True
    _moves = False
    _num_idle_bytes = 0
    _num_headers = 0
    _is_refused = False
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Start waiting for a request."""
        super().connection_made(transport)
        self._deadline = self.loop.call_later(HEAD_LIMIT_S, self._end_slow_head)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._drop_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse the data, unless too much arrived that is neither a complete head nor a body."""
        if self._is_refused:
            return
        self._moves = False
        super().data_received(data)
        self._num_idle_bytes = 0 if self._moves else self._num_idle_bytes + len(data)
        if self._num_idle_bytes > self.max_head_bytes:
            self._refuse(self._too_large())

    def on_message_begin(self) -> None:
        """Start a request's head."""
        super().on_message_begin()
        self._is_in_head, self._num_headers = True, 0
        if self._deadline is None:
            self._deadline = self.loop.call_later(HEAD_LIMIT_S, self._end_slow_head)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header; one that follows the body is counted but ignored."""
        self._num_headers += 1
        if self._num_headers > self.max_headers:
            self._end_parsing(self._too_many())
        if self._is_in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Start the request."""
        self._drop_deadline()
        self._is_in_head, self._moves = False, True
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self.max_head_bytes:
            self._end_parsing(self._too_large())
        date = (b"date", formatdate(usegmt=True).encode())
        self.server_state.default_headers = [date, *self.config.encoded_headers]
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Handle a piece of the body."""
        self._moves = True
        super().on_body(body)

    def _should_upgrade(self) -> bool:
        """Return whether a request becomes a WebSocket: only where a route takes one."""
        path = self.url.decode("latin-1").partition("?")[0]
        return path.endswith(self.socket_paths) and super()._should_upgrade()

    def _end_parsing(self, found: Problem) -> NoReturn:
        """Refuse. Raises: _HeadTooLarge, which stops the parser"""
        self._refuse(found)
        raise _HeadTooLarge

    def send_400_response(self, msg: str) -> None:
        """Refuse input that is not HTTP, in the same format as every other error."""
        self._refuse(problem(400, "this is not a valid HTTP request.", code="invalid_http"))

    def _end_slow_head(self) -> None:
        self._deadline = None
        if not self.transport.is_closing():
            self.transport.close()

    def _drop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _refuse(self, found: Problem) -> None:
        """Answer and close; later refusals of the connection are ignored."""
        if self._is_refused:
            return
        self._is_refused = True
        if not self._is_answering():
            self.transport.write(_bytes_of(found))
        self.transport.close()

    def _is_answering(self) -> bool:
        cycle = self.cycle
        return cycle is not None and cycle.response_started and not cycle.response_complete

    def _too_large(self) -> Problem:
        return _refusal(f"are above {self.max_head_bytes} bytes")

    def _too_many(self) -> Problem:
        return _refusal(f"are more than {self.max_headers}")


def limited_http_protocol(
    *, max_head_bytes: int, max_headers: int, socket_paths: tuple[str, ...] = ()
) -> type[LimitedHttpProtocol]:
    """Return the protocol with these limits as a class, which uvicorn instantiates. Requests for
    other paths than `socket_paths` stay HTTP whatever they ask for."""
    limits = {"max_head_bytes": max_head_bytes, "max_headers": max_headers}
    return type("LimitedHttp", (LimitedHttpProtocol,), {**limits, "socket_paths": socket_paths})


def _refusal(what: str) -> Problem:
    return problem(431, f"the request's headers {what}.", code="headers_too_large")


def _bytes_of(found: Problem) -> bytes:
    body = found.body()
    head = (
        f"HTTP/1.1 {found.status} {HTTPStatus(found.status).phrase}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
        "connection: close\r\n\r\n"
    )
    return head.encode() + body
