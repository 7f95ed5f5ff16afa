"""What two processes and this one pay at least to hand a step over and have the answer back: a byte
to each by a socket, their cores busy as long as a step takes, eight bytes back from the first.

The processes wait as ranks do: awake for a moment, then asleep. No plan, no result, no dovetail:
what handing a step over costs beyond this is dovetail's.
"""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

AWAKE_S = 5e-4
TOOK = struct.Struct("d")


class PingPong:
    """Two processes, each bound to a core. Use it with `with`."""

    def __init__(self, step_us: int, cores: tuple[int, int]) -> None:
        pairs = [socket.socketpair() for _ in cores]
        self._ours = [ours for ours, _ in pairs]
        self._processes = []
        for number, (core, (_, theirs)) in enumerate(zip(cores, pairs, strict=True)):
            words = [str(value) for value in (theirs.fileno(), step_us, core, number)]
            command = [sys.executable, "-S", str(Path(__file__).resolve()), *words]
            self._processes.append(subprocess.Popen(command, pass_fds=[theirs.fileno()]))
            theirs.close()

    def __enter__(self) -> PingPong:
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self._ours:
            connection.close()
        for process in self._processes:
            process.wait()

    def over_s(self) -> float:
        """Return how much longer a turn took than the first process was busy."""
        started_s = time.perf_counter()
        for connection in self._ours:
            connection.send(b"x")
        (took_s,) = TOOK.unpack(self._ours[0].recv(TOOK.size))
        return time.perf_counter() - started_s - float(took_s)


def answer(connection: socket.socket, step_s: float, is_first: bool) -> None:
    """Be busy for `step_s` whenever a byte comes; the first process answers."""
    while heard(connection):
        started_s = time.perf_counter()
        while time.perf_counter() - started_s < step_s:
            pass
        if is_first:
            connection.send(TOOK.pack(time.perf_counter() - started_s))


def heard(connection: socket.socket) -> bytes:
    """Return what comes, nothing at the end."""
    until_s = time.perf_counter() + AWAKE_S
    while time.perf_counter() < until_s:
        try:
            return connection.recv(1, socket.MSG_DONTWAIT)
        except BlockingIOError:
            os.sched_yield()
    return connection.recv(1)


def main() -> None:
    """Answer on the socket that the command line names, until its other end is closed."""
    number, step_us, core, place = map(int, sys.argv[1:])
    os.sched_setaffinity(0, {core})
    with socket.socket(fileno=number) as connection:
        answer(connection, step_us * 1e-6, place == 0)


if __name__ == "__main__":
    main()
