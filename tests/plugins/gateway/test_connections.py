"""Connections to a model's server: what is kept open, and what breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from dovetail_plugins.gateway import connections
from dovetail_plugins.gateway.connections import Connections

Peer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\n"


def against(
    peer: Peer, folder: Path, work: Callable[[Connections], Awaitable[None]]
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
            used = Connections(path)
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
    async def work(used: Connections) -> None:
        for _ in range(3):
            assert (await used.ask("GET", "/x?y=%20")).text == "GET /x?y=%20 HTTP/1.1"
        await asyncio.gather(used.ask("GET", "/"), used.ask("GET", "/"))
        monkeypatch.setattr(connections, "IDLE_S", 0.01)
        await asyncio.sleep(0.02)
        await used.ask("GET", "/")  # on one of them, while the other is too old
        await asyncio.gather(used.ask("GET", "/"), used.ask("GET", "/"))

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

    async def work(used: Connections) -> None:
        async with used.answer("GET", b"/") as answer:
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

    async def work(used: Connections) -> None:
        with pytest.raises(ConnectionError, match=told):
            await used.ask("GET", "/")
        with pytest.raises(ConnectionError, match="no connection to"):
            await Connections(str(tmp_path / "nobody")).ask("GET", "/")

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

    async def work(used: Connections) -> None:
        async with used.answer("POST", b"/", body=b"{}") as answer:
            await asyncio.sleep(0.1)
            assert sent < size // 4
            assert sum([len(piece) async for piece in answer.pieces()]) == size

    against(large, tmp_path, work)
