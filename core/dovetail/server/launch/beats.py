"""Beats: what an API process tells the one that started it, every second once it listens.

A beat names the engines that the API process has given up, and why. The parent gives them up too,
which ends what is left of them: it answers no requests, so it cannot tell an engine that hangs from
one that has nothing to do. A beat is a line of JSON between two line ends, so that one of which
only a part could be sent spoils no other; the next says the same again.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from dovetail.json_values import InvalidJson, json_struct
from dovetail.process import Child

PERIOD_S = 1.0
"""How often a child sends a beat."""
SILENCE_S = 10.0
"""A child may be silent for so long, or for --engine-step-timeout if that is longer; without that
flag, for ever."""
_MOST_BYTES = 65536

GivenUp = dict[int, str]
"""Why engines were given up, by their numbers."""


def beat(given_up: Mapping[int, str]) -> bytes:
    """Return a beat as it is sent."""
    return b"\n%b\n" % msgspec.json.encode(given_up)


async def send_beats(channel: socket.socket, given_up: Callable[[], Mapping[int, str]]) -> None:
    """Tell the parent that this process listens, and then that it still does."""
    channel.setblocking(False)
    while True:
        with contextlib.suppress(OSError):  # a parent that is stopped has enough to read
            channel.send(beat(given_up()))
        await asyncio.sleep(PERIOD_S)


class Beats:
    """What the children say, and when each was last heard. One that hangs would let its clients
    wait for ever."""

    def __init__(self, children: Sequence[Child], step_timeout_s: float | None) -> None:
        self._channels = [child.channel for child in children]
        self._limit_s = None if step_timeout_s is None else max(SILENCE_S, step_timeout_s)
        self._looked_s = time.monotonic()
        self._heard_s = [self._looked_s] * len(children)
        self._begun = [b""] * len(children)

    def read(self) -> GivenUp:
        """Return the engines that children have given up by now. Mutates: self"""
        now_s = time.monotonic()
        if now_s - self._looked_s > 2 * PERIOD_S:  # this process was stopped itself
            self._heard_s = [now_s] * len(self._heard_s)
        self._looked_s = now_s
        found: GivenUp = {}
        for number, channel in enumerate(self._channels):
            assert channel is not None, "API processes have channels"
            received = _received(channel)
            if received:
                self._heard_s[number] = now_s
                *lines, self._begun[number] = (self._begun[number] + received).split(b"\n")
                for line in lines:
                    found |= _read(line)
        return found

    def silence(self) -> str | None:
        """Return which child had been silent for too long when beats were last read."""
        for number, heard_s in enumerate(self._heard_s):
            silent_s = self._looked_s - heard_s
            if self._limit_s is not None and silent_s > self._limit_s:
                return f"server process {number} has been silent for {silent_s:.0f} s"
        return None


def _received(channel: socket.socket) -> bytes:
    """Return what a child has sent since it was last asked."""
    try:
        return channel.recv(_MOST_BYTES)
    except (BlockingIOError, ConnectionError):
        return b""


def _read(line: bytes) -> GivenUp:
    """Return what a beat says; nothing where a part of it is missing."""
    try:
        return json_struct(line, GivenUp)
    except InvalidJson:
        return {}
