"""Beats: what an API process and its parent tell each other every second.

A beat lists the engines that the API process has given up, and why, and those that it wants to be
started again. The parent then gives them up too, which ends their remaining processes. The parent
answers no requests, so it cannot tell a hanging engine from an idle one. Its answer is the life of
each engine: it starts dead ones again. Both are lines of JSON between two line ends: a line that
was sent only in part cannot corrupt another, and the next one repeats its content.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from dovetail.engine.client.restarts import Life
from dovetail.json_values import InvalidJson, json_struct
from dovetail.processes.process import Child

PERIOD_S = 1.0
"""How often a child sends a beat."""
SILENCE_S = 10.0
"""A child may be silent for this long, or for --engine-step-timeout if that is longer. Without that
flag there is no limit."""
_MOST_BYTES = 65536

GivenUp = dict[int, tuple[int, str]]
"""Which processes of engines were given up, and why, by engine number."""
Lives = list[Life]


class Beat(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The engines that a process has given up, and the numbers of those to start again."""

    given_up: GivenUp = {}
    wanted: tuple[int, ...] = ()


Line = TypeVar("Line", Beat, Lives)


def encoded(content: Beat | Lives) -> bytes:
    """Return an encoded beat, or an answer to one."""
    return b"\n%b\n" % msgspec.json.encode(content)


async def exchange_beats(
    channel: socket.socket, beat: Callable[[], Beat], follow: Callable[[Lives], None]
) -> None:
    """Report to the parent that this process listens, and follow its latest answer; repeat that
    every PERIOD_S."""
    channel.setblocking(False)
    begun = b""
    while True:
        with contextlib.suppress(OSError):  # a full buffer means that the parent is stopped
            channel.send(encoded(beat()))
        *lines, begun = (begun + _received(channel)).split(b"\n")
        for lives in list(filter(None, (_read(line, Lives) for line in lines)))[-1:]:
            follow(lives)
        await asyncio.sleep(PERIOD_S)


class Beats:
    """The beats of the children, and when each was last heard. A hanging child would keep its
    clients waiting forever."""

    def __init__(self, children: Sequence[Child], step_timeout_s: float | None) -> None:
        self._channels = [child.channel for child in children if child.channel is not None]
        self._limit_s = None if step_timeout_s is None else max(SILENCE_S, step_timeout_s)
        self._looked_s = time.monotonic()
        self._heard_s = [self._looked_s] * len(children)
        self._begun = [b""] * len(children)

    def read(self) -> Beat:
        """Return what the children have reported since the last call. Mutates: self"""
        now_s = time.monotonic()
        if now_s - self._looked_s > 2 * PERIOD_S:  # this process itself was stopped
            self._heard_s = [now_s] * len(self._heard_s)
        self._looked_s = now_s
        found: GivenUp = {}
        wanted: set[int] = set()
        for number, channel in enumerate(self._channels):
            received = _received(channel)
            if received:
                self._heard_s[number] = now_s
                *lines, self._begun[number] = (self._begun[number] + received).split(b"\n")
                for one in filter(None, (_read(line, Beat) for line in lines)):
                    found |= one.given_up
                    wanted |= {*one.wanted}
        return Beat(given_up=found, wanted=tuple(sorted(wanted)))

    def answer(self, lives: Lives) -> None:
        """Tell all children the engines' lives."""
        for channel in self._channels:
            with contextlib.suppress(OSError):  # a full buffer means that the child is stopped
                channel.send(encoded(lives))

    def silence(self) -> str | None:
        """Return which child had been silent for too long at the last `read`."""
        for number, heard_s in enumerate(self._heard_s):
            silent_s = self._looked_s - heard_s
            if self._limit_s is not None and silent_s > self._limit_s:
                return f"server process {number} has been silent for {silent_s:.0f} s"
        return None


def _received(channel: socket.socket) -> bytes:
    """Return the bytes that a child has sent since the last call."""
    try:
        return channel.recv(_MOST_BYTES)
    except (BlockingIOError, ConnectionError):
        return b""


def _read(line: bytes, kind: type[Line]) -> Line | None:
    """Return the content of a line; None if part of it is missing."""
    try:
        return json_struct(line, kind)
    except InvalidJson:
        return None
