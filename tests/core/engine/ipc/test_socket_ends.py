"""Transport over connected sockets: whole, in order, never blocking; ends are noticed."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from dovetail.engine.ipc import socket_ends
from dovetail.engine.ipc.socket_ends import (
    DESCRIPTOR,
    SocketClientEnd,
    SocketEngineEnd,
    client_end,
    descriptor_of,
    engine_end,
)
from dovetail.engine.messages import (
    Abort,
    ClientHello,
    FromEngine,
    Goodbye,
    RequestUpdate,
    Shutdown,
    ToEngine,
    Updates,
)
from dovetail.errors import EngineDead
from dovetail.processes.process import framed


@pytest.fixture
def ends() -> Iterator[tuple[SocketEngineEnd, list[socket.socket]]]:
    """An engine's end, and the other sides of its two connections, the owner's first."""
    pairs = [socket.socketpair() for _ in range(2)]
    engine = SocketEngineEnd([ours for ours, _ in pairs])
    yield engine, [theirs for _, theirs in pairs]
    engine.close()
    for _, theirs in pairs:
        theirs.close()


def receive(end: SocketEngineEnd, count: int) -> list[tuple[bytes, ToEngine]]:
    deadline_s = time.monotonic() + 5
    received: list[tuple[bytes, ToEngine]] = []
    while len(received) < count and time.monotonic() < deadline_s:
        received += end.receive(0.05)
    return received


def updates(size: int) -> Updates:
    return Updates((RequestUpdate(request_id="r", token_ids=tuple(range(size))),))


def test_messages_of_any_size_go_both_ways_in_order(
    ends: tuple[SocketEngineEnd, list[socket.socket]],
) -> None:
    engine, (owner, other) = ends
    sizes = [1, 200_000, 3, 500_000]
    texts = tuple("x" * size for size in sizes)

    async def main() -> None:
        got: list[FromEngine] = []
        client = SocketClientEnd(owner.dup())
        client.attach(asyncio.get_running_loop(), got.append, print)
        client.send(ClientHello())
        for text in texts:
            client.send(Abort((text,)))
        heard: list[ToEngine] = []
        while len(heard) < 5:
            heard += [message for name, message in engine.receive(0.0) if name == b"0"]
            await asyncio.sleep(0)
        assert heard == [ClientHello(), *(Abort((text,)) for text in texts)]
        for size in sizes:
            assert engine.send(b"0", updates(size))
        while len(got) < len(sizes):
            assert engine.receive(0.0) == []
            await asyncio.sleep(0)
        assert got == [updates(size) for size in sizes]
        client.close()
        client.close()
        with pytest.raises(EngineDead, match="shut down"):
            client.send(ClientHello())

    asyncio.run(main())
    assert receive(engine, 1) == [(b"0", Goodbye())]
    other.sendall(framed(b"\xc1"))  # no message
    other.sendall(framed(b"\x81\xa4type\xa5hello"))
    assert receive(engine, 1) == [(b"1", ClientHello())]


def test_the_owners_end_ends_the_engine_and_another_ones_does_not(
    ends: tuple[SocketEngineEnd, list[socket.socket]],
) -> None:
    engine, (owner, other) = ends
    other.close()
    assert receive(engine, 1) == [(b"1", Goodbye())]
    assert not engine.send(b"1", updates(1))
    owner.close()
    assert receive(engine, 1) == [(b"0", Shutdown())]
    assert engine.receive(0.0) == []


def test_who_does_not_read_is_given_up_and_holds_nobody_up(
    ends: tuple[SocketEngineEnd, list[socket.socket]], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, (owner, _) = ends
    monkeypatch.setattr(socket_ends, "MAX_PENDING_BYTES", 3 << 20)
    begun_s = time.monotonic()
    while engine.send(b"1", updates(50_000)):
        assert time.monotonic() - begun_s < 5
    assert engine.receive(0.0) == [(b"1", Goodbye())]
    assert engine.send(b"0", updates(1)) and owner.recv(10)
    ours, theirs = socket.socketpair()
    with theirs:
        client = SocketClientEnd(ours)
        with pytest.raises(EngineDead, match="does not read"):
            while True:
                client.send(Abort(("x" * 100_000,)))
        client.close()


def test_a_lost_connection_is_told_once() -> None:
    async def main() -> None:
        ours, theirs = socket.socketpair()
        lost: list[str] = []
        got: list[Any] = []
        client = client_end(f"{DESCRIPTOR}{ours.detach()}")
        client.attach(asyncio.get_running_loop(), got.append, lost.append)
        engine = engine_end([f"{DESCRIPTOR}{theirs.detach()}"])
        engine.send(b"0", updates(2))
        engine.close()
        while not lost:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.01)
        assert got == [updates(2)] and lost == ["the connection to the engine was lost."]
        with pytest.raises(EngineDead, match="is lost"):
            for _ in range(2):
                client.send(ClientHello())
        client.close()

    asyncio.run(main())
    assert descriptor_of("ipc:///x/engine.sock") is None
