"""An API process that hangs is noticed where a step may not take for ever, and the engines that
one has given up are known to its parent."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from dovetail.engine.client.restarts import Life
from dovetail.server.launch import beats
from dovetail.server.launch.beats import Beat, Beats, encoded, exchange_beats


@pytest.fixture
def pairs() -> Iterator[list[tuple[socket.socket, socket.socket]]]:
    """Return two channels, the parent's ends first."""
    with contextlib.ExitStack() as stack:
        made = [socket.socketpair() for _ in range(2)]
        for ours, theirs in made:
            ours.setblocking(False)
            stack.enter_context(ours)
            stack.enter_context(theirs)
        yield made


def children_of(pairs: list[tuple[socket.socket, socket.socket]]) -> list[Any]:
    return [SimpleNamespace(channel=ours) for ours, _ in pairs]


def test_a_silent_process_is_named_and_a_stopped_parent_blames_nobody(
    monkeypatch: pytest.MonkeyPatch, pairs: list[tuple[socket.socket, socket.socket]]
) -> None:
    now_s = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(beats, "SILENCE_S", 5.0)
    limited, patient = Beats(children_of(pairs), 2.0), Beats([], None)
    told = []
    for _ in range(8):
        now_s[0] += 1.0
        pairs[0][1].sendall(encoded(Beat()))
        assert limited.read() == Beat()
        told.append(limited.silence())
    assert told == [None] * 5 + [f"server process 1 has been silent for {n} s" for n in (6, 7, 8)]
    assert patient.read() == Beat() and patient.silence() is None
    now_s[0] += 60.0  # this process was stopped: nobody's fault
    assert limited.read() == Beat() and limited.silence() is None


def test_engines_that_any_child_has_given_up_are_read_also_after_a_part(
    pairs: list[tuple[socket.socket, socket.socket]],
) -> None:
    heard = Beats(children_of(pairs), None)
    pairs[0][1].sendall(encoded(Beat(given_up={3: (7, "it hangs")}))[:9])
    assert heard.read() == Beat()
    pairs[0][1].sendall(encoded(Beat(given_up={3: (7, "it hangs")})))
    pairs[1][1].sendall(encoded(Beat()) + encoded(Beat(given_up={0: (8, "it\nended")}))[:-1])
    assert heard.read() == Beat(given_up={3: (7, "it hangs")})
    pairs[1][1].sendall(b"\n")
    assert heard.read() == Beat(given_up={0: (8, "it\nended")})
    pairs[0][1].sendall(encoded(Beat(wanted=(0,))))
    pairs[1][1].sendall(encoded(Beat(given_up={0: (8, "it\nended")})))
    assert heard.read() == Beat(given_up={0: (8, "it\nended")}, wanted=(0,))


def test_a_child_says_what_it_has_given_up_and_outlives_a_parent_that_reads_nothing(
    monkeypatch: pytest.MonkeyPatch, pairs: list[tuple[socket.socket, socket.socket]]
) -> None:
    monkeypatch.setattr(beats, "PERIOD_S", 0.0)
    heard, long = Beats(children_of(pairs[:1]), None), "x" * 5000
    followed: list[Any] = []
    said = Beat(given_up={1: (7, long)})
    lives = [Life(pid=8, restarts=2, reason="a\nfault"), Life(is_over=True)]

    async def main() -> None:
        sending = asyncio.create_task(exchange_beats(pairs[0][1], lambda: said, followed.append))
        for _ in range(500):  # far more than the channel takes
            await asyncio.sleep(0)
        assert not sending.done()
        while heard.read().given_up:
            pass
        for _ in range(3):
            await asyncio.sleep(0)
        assert heard.read() == said
        heard.answer([Life()])
        heard.answer(lives)
        while not followed:
            await asyncio.sleep(0)
        assert followed == [lives]
        sending.cancel()

    asyncio.run(main())
