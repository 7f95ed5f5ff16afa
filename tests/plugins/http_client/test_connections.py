"""Connections of a pool: what is kept open, what breaks, and the limits of a response."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from dovetail_plugins.http_client import connections
from dovetail_plugins.http_client.connections import ConnectionPool
from dovetail_plugins.http_client.response import ResponseError

Peer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\n"


def against(
    peer: Peer, folder: Path, work: Callable[[ConnectionPool], Awaitable[None]]
) -> list[asyncio.StreamWriter]:
    """Do some work with connections to a peer; return those that it has had."""
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        try:
            await peer(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the other side has left, which every peer here may see
        finally:
            writer.close()

    async def main() -> None:
        path = str(folder / "s")
        async with await asyncio.start_unix_server(serve, path):
            used = ConnectionPool(path)
            try:
                async with asyncio.timeout(5):
                    await work(used)
            finally:
                used.close()
                await asyncio.sleep(0.01)  # for the peer to see it

    asyncio.run(main())
    return writers


async def short(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer every request with its own first line."""
    while True:
        head = await reader.readuntil(b"\r\n\r\n")
        line = head.split(b"\r\n", 1)[0]
        writer.write(OK + b"Content-Length: %d\r\n\r\n" % len(line) + line)


def test_a_connection_is_used_again_and_dropped_when_it_was_idle_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(used: ConnectionPool) -> None:
        for _ in range(3):
            assert (await used.request("GET", "/x?y=%20")).text == "GET /x?y=%20 HTTP/1.1"
        await asyncio.gather(used.request("GET", "/"), used.request("GET", "/"))
        monkeypatch.setattr(connections, "IDLE_S", 0.01)
        await asyncio.sleep(0.02)
        await used.request("GET", "/")  # on one of them, while the other is too old
        await asyncio.gather(used.request("GET", "/"), used.request("GET", "/"))

    assert len(against(short, tmp_path, work)) == 3


def test_an_answer_that_is_left_takes_its_connection_with_it(tmp_path: Path) -> None:
    left = asyncio.Event()

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
        try:
            await reader.readexactly(1)
        finally:
            left.set()

    async def work(used: ConnectionPool) -> None:
        async with used.stream("GET", b"/") as answer:
            assert await anext(answer.pieces()) == b"a"
        await left.wait()

    assert len(against(endless, tmp_path, work)) == 1


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (b"", "connection ended"),
        (OK + b"Content-Len", "connection ended"),
        (OK + b"Content-Length: 4\r\n\r\nab", "connection ended"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n", "connection ended"),
        (b"SSH-2.0-x\r\n\r\n", "is not HTTP"),
    ],
)
def test_a_broken_answer_is_a_connection_error(tmp_path: Path, sent: bytes, told: str) -> None:
    async def broken(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(sent)

    async def work(used: ConnectionPool) -> None:
        with pytest.raises(ConnectionError, match=told):
            await used.request("GET", "/")
        with pytest.raises(ConnectionError, match="no connection to"):
            await ConnectionPool(str(tmp_path / "nobody")).request("GET", "/")

    against(broken, tmp_path, work)


def test_a_slow_client_holds_the_reading_back(tmp_path: Path) -> None:
    size, sent = 2**24, 0

    async def large(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK + b"Content-Length: %d\r\n\r\n" % size)
        while sent < size:
            writer.write(b"x" * 2**16)
            sent += 2**16
            await writer.drain()

    async def work(used: ConnectionPool) -> None:
        async with used.stream("POST", b"/", body=b"{}") as answer:
            await asyncio.sleep(0.1)
            assert sent < size // 4
            assert sum([len(piece) async for piece in answer.pieces()]) == size

    against(large, tmp_path, work)


@pytest.mark.parametrize(
    ("method", "sent", "body"),
    [
        ("GET", OK + b"\r\nuntil the end", b"until the end"),
        ("HEAD", OK + b"Content-Length: 4\r\n\r\n", b""),
        ("GET", b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n" + OK + b"\r\nx", b"x"),
        ("GET", OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nLate: 1\r\n\r\n", b"x"),
    ],
)
def test_where_a_body_ends(tmp_path: Path, method: str, sent: bytes, body: bytes) -> None:
    is_read = asyncio.Event()

    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(sent)
        if method == "HEAD":
            await is_read.wait()

    async def work(used: ConnectionPool) -> None:
        async with used.stream(method, b"/") as response:
            assert (response.status, await response.read()) == (200, body)
            assert not response.header(b"link") and not response.header(b"late")
        is_read.set()

    against(peer, tmp_path, work)


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (OK + b"a: " + b"b" * 2**19, "headers are longer than 262144 bytes"),
        (OK + b"a: b\r\n" * 2**18, "headers are longer than 262144 bytes"),
        (OK + b"Content-Length: 99\r\n\r\n" + b"c" * 99, "longer than 80 bytes"),
    ],
)
def test_a_response_is_limited(tmp_path: Path, sent: bytes, told: str) -> None:
    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(sent)
        await writer.drain()

    async def work(_: ConnectionPool) -> None:
        limit = 80 if b"Content-Length" in sent else None
        used = ConnectionPool(str(tmp_path / "s"), max_bytes=limit)
        with pytest.raises(ResponseError, match=told):
            await used.request("GET", "/")

    against(peer, tmp_path, work)


def test_without_reuse_each_request_has_its_own_connection(tmp_path: Path) -> None:
    async def work(_: ConnectionPool) -> None:
        used = ConnectionPool(str(tmp_path / "s"), host=b"h:1", is_reused=False)
        for _number in range(2):
            assert (await used.request("GET", "/")).status == 200

    assert len(against(short, tmp_path, work)) == 2
