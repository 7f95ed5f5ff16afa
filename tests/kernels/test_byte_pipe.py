"""byte_pipe: bytes come out as they were put in, however the two ends take turns."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from dovetail_kernels.byte_pipe import PipeEnd, Pipes, missing_reason
from dovetail_kernels.byte_pipe.native import CAPACITY_BYTES

pytestmark = pytest.mark.skipif(bool(missing_reason()), reason=missing_reason() or "there can be")
ROOTS = [str(Path(__file__).resolve().parents[2] / name) for name in ("kernels",)]
ECHO = """
import sys
from dovetail_kernels.byte_pipe import Pipes
end = Pipes(int(sys.argv[1]), 2).end_of(1)
try:
    while True:
        mark = end.bell.mark()
        data, sent = bytes(end.take()), 0
        while sent < len(data):
            mark = end.bell.mark()
            sent += end.put(data, sent) or end.bell.wait(mark, most_s=1.0) or 0
        if not data:
            end.bell.wait(mark, awake_s=1e-4)
except (EOFError, BrokenPipeError):
    print("over")
"""


def exchange(end: PipeEnd, data: bytes) -> bytes:
    """Return what comes back while `data` is put in pieces of odd sizes."""
    chance, got, sent = random.Random(0), bytearray(), 0
    deadline_s = time.monotonic() + 60
    while len(got) < len(data):
        assert time.monotonic() < deadline_s, f"{len(got)} of {len(data)} bytes came back"
        mark = end.bell.mark()
        piece = data[sent : sent + chance.choice([1, 7, 5000, 3 * CAPACITY_BYTES])]
        count = end.put(piece) if piece else 0
        sent += count
        back = bytes(end.take())
        got += back
        if not count and not back:
            end.bell.wait(mark, awake_s=chance.choice([0.0, 1e-4]), most_s=1.0)
    return bytes(got)


def test_another_process_has_what_was_put() -> None:
    descriptor = Pipes.create(2)
    pipes = Pipes(descriptor, 2)
    command = [sys.executable, "-c", ECHO, str(descriptor)]
    child = subprocess.Popen(
        command,
        pass_fds=[descriptor],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(ROOTS)},
        stdout=subprocess.PIPE,
        text=True,
    )
    os.close(descriptor)
    try:
        end, data = pipes.end_to(1), random.Random(1).randbytes(5 * CAPACITY_BYTES + 123)
        assert exchange(end, data) == data
        end.close()
        assert child.communicate(timeout=20)[0] == "over\n"
    finally:
        child.kill()
        child.wait()


def two_ends() -> tuple[PipeEnd, PipeEnd]:
    descriptor = Pipes.create(1)
    pipes = Pipes(descriptor, 1)
    os.close(descriptor)
    return pipes.end_to(0), pipes.end_of(0)


def test_a_full_ring_takes_no_more_and_tells_when_it_does() -> None:
    ours, theirs = two_ends()
    assert ours.put(bytes(CAPACITY_BYTES + 1)) == CAPACITY_BYTES
    mark = ours.bell.mark()
    assert ours.put(b"x") == 0
    timer = threading.Timer(0.05, theirs.take)
    timer.start()
    ours.bell.wait(mark, most_s=10)
    timer.join()
    assert ours.put(b"x") == 1
    assert bytes(theirs.take()) == b"x"


def test_what_was_put_before_the_end_is_taken() -> None:
    ours, theirs = two_ends()
    ours.put(b"last words")
    ours.close()
    ours.close()
    assert bytes(theirs.take()) == b"last words"
    with pytest.raises(EOFError):
        theirs.take()
    with pytest.raises(BrokenPipeError):
        ours.put(b"more")
    with pytest.raises(BrokenPipeError):
        theirs.put(b"more")


def test_a_wait_ends_at_its_time_and_at_once_when_something_came_before_it() -> None:
    ours, theirs = two_ends()
    mark, started_s = ours.bell.mark(), time.monotonic()
    ours.bell.wait(mark, most_s=0.05)
    assert 0.04 < time.monotonic() - started_s < 5
    theirs.put(b"x")
    started_s = time.monotonic()
    ours.bell.wait(mark, most_s=0.09)
    assert time.monotonic() - started_s < 0.05
