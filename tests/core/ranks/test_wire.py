"""Wires: messages arrive whole and in order, and neither side waits for the other to read."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from dovetail.ranks.wire import WakefulWire, Wire, Wires

LARGE = bytes(range(256)) * 16384  # more than a socket holds


@pytest.fixture
def ends() -> Iterator[tuple[Wires, list[Wire]]]:
    pairs = [socket.socketpair() for _ in range(2)]
    wires, ranks = Wires([ours for ours, _ in pairs]), [Wire(theirs) for _, theirs in pairs]
    yield wires, ranks
    wires.close()
    for rank in ranks:
        rank.close()


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


def test_both_sides_may_send_more_than_a_socket_holds(ends: tuple[Wires, list[Wire]]) -> None:
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
def wakeful() -> Iterator[tuple[Wire, WakefulWire]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Wire(ours), WakefulWire(theirs, AWAKE_S)


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
    looks: list[None] = []
    monkeypatch.setattr(os, "sched_yield", lambda: looks.append(None))
    sender, reader = wakeful
    for _ in range(12):
        waited(wakeful, 1.5 * AWAKE_S)
    looks.clear()
    waited(wakeful, 1.5 * AWAKE_S)
    assert len(looks) < 10, "it sleeps at once"
    sender.send(b"at once")
    assert reader.receive() == b"at once"
    looks.clear()
    waited(wakeful, 1.5 * AWAKE_S)
    assert len(looks) > 10, "it stays awake"


def test_a_reader_that_is_awake_hears_of_the_end(wakeful: tuple[Wire, WakefulWire]) -> None:
    sender, reader = wakeful
    sender.send(LARGE[:100_000])
    assert reader.receive() == LARGE[:100_000]
    timer = threading.Timer(AWAKE_S / 4, sender.shut_down)
    timer.start()
    with pytest.raises(EOFError):
        reader.receive()
    timer.join()
