"""Beats: the message an API process sends to its parent every second once it listens.

A beat lists the engines that the API process has given up, and why. The parent then gives them up
too, which ends their remaining processes. The parent answers no requests, so it cannot tell a
hanging engine from an idle one. A beat is a line of JSON between two line ends: a beat that was
sent only in part cannot corrupt another, and the next one repeats its content.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from dovetail.json_values import InvalidJson, json_struct
from dovetail.processes.process import Child

PERIOD_S = 1.0
"""How often a child sends a beat."""
SILENCE_S = 10.0
"""A child may be silent for this long, or for --engine-step-timeout if that is longer. Without that
flag there is no limit."""
_MOST_BYTES = 65536

GivenUp = dict[int, str]
"""Why engines were given up, by engine number."""


def beat(given_up: Mapping[int, str]) -> bytes:
    """Return an encoded beat."""
    return b"\n%b\n" % msgspec.json.encode(given_up)


async def send_beats(channel: socket.socket, given_up: Callable[[], Mapping[int, str]]) -> None:
    """Report to the parent that this process listens, then repeat it every PERIOD_S."""
    channel.setblocking(False)
    while True:
        with contextlib.suppress(OSError):  # a full buffer means that the parent is stopped
            channel.send(beat(given_up()))
        await asyncio.sleep(PERIOD_S)


class Beats:
    """The beats of the children, and when each was last heard. A hanging child would keep its
    clients waiting forever."""

    def __init__(self, children: Sequence[Child], step_timeout_s: float | None) -> None:
        self._channels = [child.channel for child in children]
        self._limit_s = None if step_timeout_s is None else max(SILENCE_S, step_timeout_s)
        self._looked_s = time.monotonic()
        self._heard_s = [self._looked_s] * len(children)
        self._begun = [b""] * len(children)

    def read(self) -> GivenUp:
        """Return the engines that children have given up so far. Mutates: self"""
        now_s = time.monotonic()
        if now_s - self._looked_s > 2 * PERIOD_S:  # this process itself was stopped
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


def _read(line: bytes) -> GivenUp:
    """Return the content of a beat; empty if part of it is missing."""
    try:
        return json_struct(line, GivenUp)
    except InvalidJson:
        return {}
