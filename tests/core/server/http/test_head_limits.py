"""The bound on a request's head, on real sockets: size, time, and what must still get through."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from dovetail.server.http import head_limits

GET = b"GET / HTTP/1.1\r\nHost: a\r\n"


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the number of bytes in the body."""
    size, more = 0, True
    while more:
        message = await receive()
        size += len(message.get("body", b""))
        more = message.get("more_body", False)
    body = str(size).encode()
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def served(talk: Callable[[socket.socket], bytes], max_headers: int = 256) -> bytes:
    """Return what `talk` returns, which runs in a thread against a server on a free port."""
    http = head_limits.limited_http_protocol(max_head_bytes=65536, max_headers=max_headers)

    async def main() -> bytes:
        config = uvicorn.Config(app, http=http, ws="none", lifespan="off", log_config=None)
        server = uvicorn.Server(config)
        with socket.create_server(("127.0.0.1", 0)) as sock:
            port = sock.getsockname()[1]
            task = asyncio.ensure_future(server.serve(sockets=[sock]))
            try:
                return await asyncio.to_thread(_talk, port, talk)
            finally:
                server.should_exit = True
                await task

    return asyncio.run(main())


def _talk(port: int, talk: Callable[[socket.socket], bytes]) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as sock:
        return talk(sock)


def until_closed(sock: socket.socket) -> bytes:
    """Return all that comes until the server closes the connection."""
    parts = b""
    try:
        while part := sock.recv(65536):
            parts += part
    except ConnectionResetError:
        return parts
    return parts


def sends(*parts: bytes) -> Callable[[socket.socket], bytes]:
    """Return a talk that sends these parts one after the other and reads to the end."""

    def talk(sock: socket.socket) -> bytes:
        try:
            for part in parts:
                sock.sendall(part)
                time.sleep(0.001)
        except (BrokenPipeError, ConnectionResetError):
            pass
        return until_closed(sock)

    return talk


def error_of(answer: bytes) -> dict[str, str]:
    found: dict[str, str] = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    return found


@pytest.mark.parametrize(
    "parts",
    [
        (GET + b"X-A: " + b"a" * 70_000 + b"\r\n\r\n",),
        (GET, b"X-A: ", *([b"a" * 5_000] * 14), b"\r\n\r\n"),
        (GET, *([b"X-A: b\r\n" * 500] * 20), b"\r\n"),
        (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",),
    ],
    ids=["one header", "one header in pieces", "many headers", "a long path"],
)
def test_a_large_head_is_refused(parts: tuple[bytes, ...]) -> None:
    answer = served(sends(*parts))
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert error_of(answer)["code"] == "headers_too_large"
    assert answer.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize("number", [9, 10])
def test_the_number_of_headers_is_bounded(number: int) -> None:
    end = b"Connection: close\r\n\r\n"
    head = GET + b"".join(b"X-%d: b\r\n" % n for n in range(number - 2)) + end
    answer = served(sends(head), max_headers=9)
    assert answer.startswith(b"HTTP/1.1 200 " if number == 9 else b"HTTP/1.1 431 ")


CHUNKED = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n"
MUCH = [b"a" * 30_000] * 16
"""More than the limit and one read of asyncio (256 KiB), which may hold the end of the body too."""


@pytest.mark.parametrize(
    "tail",
    [(b"1;a=", *MUCH), (b"0\r\nX-A: ", *MUCH),
     (b"0\r\n", *[b"X-A: b\r\n" * 200] * 2)],
    ids=["a chunk line", "one trailer", "many trailers"],
)  # fmt: skip
def test_what_follows_a_body_is_bounded(tail: tuple[bytes, ...]) -> None:
    answer = served(sends(CHUNKED, *tail))
    assert answer.startswith(b"HTTP/1.1 431 ")


def test_a_trailer_is_no_header() -> None:
    seen: list[bytes] = []

    class Notes(head_limits.LimitedHttpProtocol):
        def on_message_complete(self) -> None:
            seen.extend(name for name, _ in self.scope["headers"])
            super().on_message_complete()

    async def main() -> None:
        config = uvicorn.Config(app, http=Notes, ws="none", lifespan="off", log_config=None)
        server = uvicorn.Server(config)
        with socket.create_server(("127.0.0.1", 0)) as sock:
            task = asyncio.ensure_future(server.serve(sockets=[sock]))
            tail = b"0\r\nAuthorization: Bearer k\r\n\r\n" + GET + b"Connection: close\r\n\r\n"
            port = sock.getsockname()[1]
            answer = await asyncio.to_thread(_talk, port, sends(CHUNKED + tail))
            server.should_exit = True
            await task
        assert answer.count(b"HTTP/1.1 200 ") == 2

    asyncio.run(main())
    assert b"transfer-encoding" in seen
    assert b"authorization" not in seen


def test_what_is_no_http_is_told_so_as_json() -> None:
    answer = served(sends(b"\x16\x03\x01\x02\x00\x01\x00"))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert error_of(answer)["code"] == "invalid_http"


def test_a_slow_head_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_limits, "HEAD_LIMIT_S", 0.2)
    assert served(sends(b"GET / HTT")) == b""
    assert served(sends()) == b""


def test_a_slow_second_head_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_limits, "HEAD_LIMIT_S", 0.2)
    answer = served(sends(GET + b"\r\n", GET))
    assert answer.count(b"HTTP/1.1 200 ") == 1


def test_a_body_takes_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_limits, "HEAD_LIMIT_S", 0.2)
    head = b"POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 200000\r\n\r\n"

    def talk(sock: socket.socket) -> bytes:
        sock.sendall(head + b"x" * 100_000)
        time.sleep(0.4)
        sock.sendall(b"x" * 100_000)
        return until_closed(sock)

    assert served(talk).endswith(b"\r\n\r\n200000")


def test_requests_follow_one_another() -> None:
    close = GET + b"Connection: close\r\n\r\n"
    padded = GET + b"X-A: " + b"a" * 30_000 + b"\r\n\r\n"
    answer = served(sends(padded + padded, padded, padded + close))
    assert answer.count(b"HTTP/1.1 200 ") == 5
