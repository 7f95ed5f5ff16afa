"""Wires: messages arrive whole and in order, and neither side waits for the other to read."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from dovetail_kernels.byte_pipe import Pipes, missing_reason
from dovetail_plugins.ranks.connection import Connection, SharedConnection, SocketConnection
from dovetail_plugins.ranks.wire import WakefulWire, Wire, Wires, shared_wires, socket_wires

LARGE = bytes(range(256)) * 16384  # more than a connection holds
Ends = tuple[Wires, list[Connection]]


def by_sockets() -> Ends:
    pairs = [socket.socketpair() for _ in range(2)]
    return socket_wires([ours for ours, _ in pairs]), [SocketConnection(one) for _, one in pairs]


def by_shared_memory() -> Ends:
    if reason := missing_reason():
        pytest.skip(reason)
    descriptor = Pipes.create(2)
    ours, theirs = Pipes(descriptor, 2), Pipes(descriptor, 2)
    os.close(descriptor)
    return shared_wires(ours), [SharedConnection(theirs.end_of(number)) for number in range(2)]


@pytest.fixture(params=[by_sockets, by_shared_memory])
def made(request: pytest.FixtureRequest) -> Iterator[Ends]:
    wires, connections = request.param()
    yield wires, connections
    wires.close()
    for one in connections:
        one.close()


@pytest.fixture
def ends(made: Ends) -> tuple[Wires, list[Wire]]:
    wires, connections = made
    return wires, [Wire(one) for one in connections]


def test_messages_of_any_size_keep_their_order(ends: tuple[Wires, list[Wire]]) -> None:
    wires, ranks = ends
    messages = [b"", b"a", b"b" * 5000, b"c" * 70_000]
    for message in messages:
        wires.send(message)
    for rank in ranks:
        assert [rank.receive() for _ in messages] == messages
        assert not rank.has_message()
    for message in messages:
        ranks[1].send(message)
    assert [wires.receive(1) for _ in messages] == messages


def test_both_sides_may_send_more_than_a_connection_holds(ends: tuple[Wires, list[Wire]]) -> None:
    """A rank that sends a long result does not read its orders until that is done."""
    wires, ranks = ends
    got: list[bytes] = []

    def work() -> None:
        ranks[0].send(LARGE)
        got.append(ranks[0].receive())

    thread = threading.Thread(target=work)
    thread.start()
    wires.send_to([0], LARGE)
    assert wires.receive(0) == LARGE
    thread.join(10)
    assert got == [LARGE]


def test_whoever_answers_first_is_read_first(ends: tuple[Wires, list[Wire]]) -> None:
    wires, ranks = ends
    ranks[1].send(b"second")
    assert wires.receive_any({0, 1}, None) == 1
    assert wires.receive_any({0}, time.monotonic() + 0.02) is None
    ranks[0].send(b"first")
    assert wires.receive_any({0}, None) == 0
    assert (wires.receive(0), wires.receive(1)) == (b"first", b"second")


def test_an_end_that_is_gone_is_told(ends: tuple[Wires, list[Wire]]) -> None:
    wires, ranks = ends
    ranks[1].close()
    with pytest.raises(EOFError):
        wires.receive_any({0}, None)
    with pytest.raises(EOFError):
        wires.receive(1)
    wires.shut_down()
    wires.shut_down()
    with pytest.raises(EOFError):
        ranks[0].receive()
    with pytest.raises(OSError, match="pipe"):
        wires.send(b"x")


AWAKE_S = 0.02


@pytest.fixture
def wakeful(made: Ends) -> tuple[Wire, WakefulWire]:
    wires, connections = made
    return wires._wires[0], WakefulWire(connections[0], AWAKE_S)


def waited(ends: tuple[Wire, WakefulWire], wait_s: float) -> float:
    """Return how long a reader was at its processor while it waited for a message."""
    sender, reader = ends
    timer = threading.Timer(wait_s, sender.send, [b"late"])
    timer.start()
    started_s = time.thread_time()
    assert reader.receive() == b"late"
    timer.join()
    return time.thread_time() - started_s


def test_a_reader_that_waits_in_vain_sleeps_sooner_every_time(
    wakeful: tuple[Wire, WakefulWire],
) -> None:
    waits = 8
    busy_s = sum(waited(wakeful, 2 * AWAKE_S) for _ in range(waits))
    assert busy_s < 2.5 * AWAKE_S  # 1 + 1/2 + 1/4 ... of it, of 16 that were waited


def test_a_reader_is_awake_again_once_messages_come_soon(
    wakeful: tuple[Wire, WakefulWire], monkeypatch: pytest.MonkeyPatch
) -> None:
    sender, reader = wakeful
    waits: list[float] = []
    wait = reader.connection.wait

    def noted(*, awake_s: float, most_s: float | None, to_send: bool) -> None:
        waits.append(awake_s)
        wait(awake_s=awake_s, most_s=most_s, to_send=to_send)

    monkeypatch.setattr(reader.connection, "wait", noted)
    for _ in range(12):
        waited(wakeful, 1.5 * AWAKE_S)
    assert max(waits[-2:]) < AWAKE_S / 100, "it sleeps at once"
    sender.send(b"at once")
    assert reader.receive() == b"at once"
    waits.clear()
    waited(wakeful, 1.5 * AWAKE_S)
    assert waits[0] > AWAKE_S / 2, "it stays awake"


def test_a_reader_that_is_awake_hears_of_the_end(wakeful: tuple[Wire, WakefulWire]) -> None:
    sender, reader = wakeful
    payload = LARGE[:100_000]
    sender.send(payload)
    assert reader.receive() == payload
    timer = threading.Timer(AWAKE_S / 4, sender.shut_down)
    timer.start()
    with pytest.raises(EOFError):
        reader.receive()
    timer.join()


def test_a_sleeping_reader_leaves_its_core_alone(made: Ends) -> None:
    wires, connections = made
    timer = threading.Timer(0.2, wires.send, [b"late"])
    timer.start()
    started_s = time.thread_time()
    assert Wire(connections[0]).receive() == b"late"
    assert time.thread_time() - started_s < 0.05
    timer.join()
