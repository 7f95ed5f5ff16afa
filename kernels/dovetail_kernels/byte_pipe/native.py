"""Pipes on the native CPU library. An end serves one thread at a time; any thread may close one.

Layout of the memory: a line for the bell of the process in the middle, a line for the bell of each
of the others, then for each of these the ring to it and the ring from it.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys

from dovetail_kernels.cpu import library as native

LINE_BYTES = 128
RING_HEADER_BYTES = 384
CAPACITY_BYTES = 1 << 18
"""Of a ring. A plan goes into it while the step before still runs, unless its prompts are long."""
NAP_NS, LONGEST_NAP_NS = 100_000_000, 1_600_000_000
"""Of one native wait: Python's handlers of signals run between two. Each nap in which no bell was
rung doubles the next one, so that an idle rank wakes up less than once a second."""

_pointer, _int64 = ctypes.c_void_p, ctypes.c_int64


class PipeArgs(ctypes.Structure):
    """See args.h."""

    _fields_ = [
        ("ring", _pointer),
        ("bell", _pointer),
        ("bytes", _pointer),
        ("first", _int64),
        ("count", _int64),
        ("capacity", _int64),
        ("done", _pointer),
    ]


class BellArgs(ctypes.Structure):
    """See args.h."""

    _fields_ = [
        ("bell", _pointer),
        ("awake_ns", _int64),
        ("most_ns", _int64),
        ("seen", _int64),
    ]


def missing_reason() -> str:
    """Return why pipes are not available here, "" if they are."""
    if sys.platform != "linux" or getattr(os, "memfd_create", None) is None:
        return "memory without a name and futexes are Linux's"
    return (native.missing_reason() or "") if native.library() is None else ""


class Pipes:
    """The memory between the process in the middle and `count` others.

    `descriptor` is the memory's, made by `create`; every process maps it by making one of these.
    Raises: OSError if pipes are not available (`missing_reason`)
    """

    def __init__(self, descriptor: int, count: int) -> None:
        self.count = count
        self._native = native.needed_library()
        self._memory = mmap.mmap(descriptor, _num_bytes(count))
        self._start = ctypes.c_char.from_buffer(self._memory)

    @staticmethod
    def create(count: int) -> int:
        """Return a descriptor of memory for `count` others. Raises: OSError without room for it"""
        descriptor = os.memfd_create("dovetail-pipes")
        try:
            os.ftruncate(descriptor, _num_bytes(count))
            os.posix_fallocate(descriptor, 0, _num_bytes(count))  # fails now, not at a write
        except OSError:
            os.close(descriptor)
            raise
        return descriptor

    def end_to(self, number: int) -> PipeEnd:
        """Return the end to one of the others, for the process in the middle."""
        there, back = self._rings(number)
        return PipeEnd(
            self, puts=there, takes=back, own_bell=self._bell(), other=self._bell(number)
        )

    def end_of(self, number: int) -> PipeEnd:
        """Return the end of one of the others, which is this process."""
        there, back = self._rings(number)
        return PipeEnd(
            self, puts=back, takes=there, own_bell=self._bell(number), other=self._bell()
        )

    def kernel(self, name: str, args: type[ctypes.Structure]) -> native.Kernel:
        """Return a kernel that works on this memory."""
        return self._native.kernel(name, args)

    def _bell(self, number: int = -1) -> int:
        """Return the address of the bell of one of the others, or of the middle process (-1)."""
        return ctypes.addressof(self._start) + (1 + number) * LINE_BYTES

    def _rings(self, number: int) -> tuple[int, int]:
        """Return the addresses of the ring to one of the others, and of the one from it."""
        first = ctypes.addressof(self._start) + (1 + self.count) * LINE_BYTES
        size = RING_HEADER_BYTES + CAPACITY_BYTES
        return first + 2 * number * size, first + (2 * number + 1) * size


def _num_bytes(count: int) -> int:
    return (1 + count) * LINE_BYTES + 2 * count * (RING_HEADER_BYTES + CAPACITY_BYTES)


class BellWaiter:
    """Waits until a process's bell has been rung."""

    def __init__(self, pipes: Pipes, bell: int) -> None:
        self._pipes = pipes  # which keeps the memory mapped
        self._count = ctypes.c_uint32.from_address(bell)
        self._args = BellArgs(bell=bell)
        self._reference = ctypes.byref(self._args)
        self._wait = pipes.kernel("bell_wait", BellArgs)
        self._nap_ns = NAP_NS

    def mark(self) -> int:
        """Return the bell's count: to be noted before looking for what there is to do."""
        return self._count.value

    def wait(self, mark: int, *, awake_s: float = 0.0, most_s: float | None = None) -> None:
        """Return when the bell has been rung since `mark`, or after about `most_s`, or earlier when
        a signal wants to be handled. The first `awake_s` seconds do not sleep."""
        nap_ns = self._nap_ns
        most_ns = nap_ns if most_s is None else min(nap_ns, max(0, int(most_s * 1e9)))
        self._args.seen, self._args.most_ns = mark, most_ns
        self._args.awake_ns = int(awake_s * 1e9)
        self._wait(self._reference)
        if self.mark() != mark:
            self._nap_ns = NAP_NS
        elif most_ns == nap_ns:
            self._nap_ns = min(2 * nap_ns, LONGEST_NAP_NS)


class PipeEnd:
    """One end of a pipe: puts into one ring, takes from another. `bell` waits for either."""

    def __init__(self, pipes: Pipes, *, puts: int, takes: int, own_bell: int, other: int) -> None:
        self.bell = BellWaiter(pipes, own_bell)
        self._done = _int64()
        self._chunk = bytearray(CAPACITY_BYTES)
        self._view = memoryview(self._chunk)
        done, capacity = ctypes.addressof(self._done), CAPACITY_BYTES
        self._put_args = PipeArgs(ring=puts, bell=other, capacity=capacity, done=done)
        self._take_args = PipeArgs(ring=takes, bell=other, capacity=capacity, done=done)
        self._take_args.bytes = ctypes.addressof(ctypes.c_char.from_buffer(self._chunk))
        self._take_args.count = capacity
        self._close_args = [PipeArgs(ring=ring, bell=bell) for ring in (puts, takes)
                            for bell in (own_bell, other)]  # fmt: skip
        self._put = pipes.kernel("pipe_put", PipeArgs)
        self._take = pipes.kernel("pipe_take", PipeArgs)
        self._close = pipes.kernel("pipe_close", PipeArgs)

    def put(self, data: bytes, first: int = 0) -> int:
        """Put what there is room for of `data` from `first` on; return how many bytes went.

        Raises: BrokenPipeError once an end is closed
        """
        args = self._put_args
        args.bytes = ctypes.cast(ctypes.c_char_p(data), _pointer)
        args.first, args.count = first, len(data) - first
        self._put(ctypes.byref(args))
        if self._done.value < 0:
            raise BrokenPipeError("the pipe is closed")
        return self._done.value

    def take(self) -> memoryview:
        """Return the available data, maybe none; valid until the next call.

        Raises: EOFError when an end is closed and no data is left
        """
        self._take(ctypes.byref(self._take_args))
        if self._done.value < 0:
            raise EOFError("the pipe is closed")
        return self._view[: self._done.value]

    def close(self) -> None:
        """Let no end put any more, and wake both. May be called twice."""
        for args in self._close_args:
            self._close(ctypes.byref(args))
