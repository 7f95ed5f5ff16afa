"""BoundedHttp: uvicorn's HTTP protocol with a bound on the size and the time of a request's head.

uvicorn on httptools collects headers without end. Bodies are bounded by `middleware.BodyLimit`.
Knows no route. Source of the status: RFC 6585, section 5 (431).
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from dovetail.server.errors import Problem, problem

MAX_HEAD_BYTES = 64 * 1024
HEAD_LIMIT_S = 30.0
"""How long a client may take to send the request line and the headers."""


class _HeadTooLarge(Exception):
    """Ends the parsing of a request whose head is too large."""


class BoundedHttp(HttpToolsProtocol):
    """One connection. What is refused here never reaches the application."""

    _is_in_head = True
    _num_head_bytes = 0
    _is_refused = False
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._deadline = self.loop.call_later(HEAD_LIMIT_S, self._end_slow_head)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._drop_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what came, unless the head has grown too large already."""
        if self._is_refused:
            return
        was_in_head = self._is_in_head
        super().data_received(data)
        if was_in_head and self._is_in_head and not self._is_refused:
            self._num_head_bytes += len(data)
            if self._num_head_bytes > MAX_HEAD_BYTES:
                self._refuse(_too_large())

    def on_message_begin(self) -> None:
        """Begin a request's head."""
        super().on_message_begin()
        self._is_in_head, self._num_head_bytes = True, 0
        if self._deadline is None:
            self._deadline = self.loop.call_later(HEAD_LIMIT_S, self._end_slow_head)

    def on_headers_complete(self) -> None:
        """Start the request. Raises: _HeadTooLarge, which the parser turns into a refusal."""
        self._drop_deadline()
        self._is_in_head = False
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > MAX_HEAD_BYTES:
            self._refuse(_too_large())
            raise _HeadTooLarge
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, in the shape of every other error."""
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
        """Answer and close; the first refusal of a connection is its last word."""
        if self._is_refused:
            return
        self._is_refused = True
        body = found.body()
        head = (
            f"HTTP/1.1 {found.status} {HTTPStatus(found.status).phrase}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
            "connection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()


def _too_large() -> Problem:
    return problem(
        431, f"the request's headers are above {MAX_HEAD_BYTES} bytes.", code="headers_too_large"
    )
