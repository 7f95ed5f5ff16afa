"""Meeting: how the ranks of a group find one another and get shared memory.

Rank 0 makes anonymous memory and listens on a Unix socket whose address derives from the group's
name; the others identify themselves and receive the memory when all have come. On Linux both vanish
with the processes; elsewhere the socket is a file in the folder for temporary files, which rank 0
deletes when all have come.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import selectors
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VERSION = 1
HELLO = struct.Struct("<5q")
"""Version, rank, size, bytes of the memory, process."""
ANSWER_BYTES = 1 << 16
RETRY_S = 0.005
HAS_ABSTRACT_SOCKETS = sys.platform == "linux"


class RankError(RuntimeError):
    """The ranks cannot continue together; `rank` is the one at fault, if it is known."""

    def __init__(self, text: str, rank: int | None = None) -> None:
        super().__init__(text)
        self.rank = rank


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """One rank's place in a group that is to meet."""

    name: str
    rank: int
    size: int
    num_bytes: int
    timeout_s: float


def meet(place: RankPlace) -> tuple[int, list[int]]:
    """Return a descriptor of the shared memory, zeros, and every rank's process id.

    Blocks until all ranks have come. Raises: RankError
    """
    return _host(place) if place.rank == 0 else _join(place)


def _address(name: str) -> str:
    """Return the socket's address: this user's own for this name. NUL first: not a file."""
    user = os.getuid()
    short = hashlib.sha256(f"{user} {name}".encode()).hexdigest()[:16]
    if HAS_ABSTRACT_SOCKETS:
        return f"\0dovetail-ranks-{short}"
    return str(Path(tempfile.gettempdir()) / f"dovetail-ranks-{short}")


def _host(place: RankPlace) -> tuple[int, list[int]]:
    """Meet as rank 0."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(_listening(place))
        joined = _Joined(place, stack)
        try:
            joined.wait(listener)
            descriptor = _new_memory(place.num_bytes)
        except (OSError, RankError) as error:
            joined.answer({"error": str(error), "rank": getattr(error, "rank", 0)})
            raise
        joined.answer({"pids": joined.pids}, descriptor)
        return descriptor, joined.pids


@contextlib.contextmanager
def _listening(place: RankPlace) -> Iterator[socket.socket]:
    address = _address(place.name)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        try:
            listener.bind(address)
        except OSError as error:
            why = error.strerror or str(error)
            if error.errno == errno.EADDRINUSE:
                why = "it is in use: another group meets under it on this machine"
            raise RankError(f"no ranks can meet under the name {place.name!r}: {why}") from error
        try:
            listener.listen(place.size)
            yield listener
        finally:
            if not HAS_ABSTRACT_SOCKETS:
                Path(address).unlink(missing_ok=True)


def _new_memory(num_bytes: int) -> int:
    """Return a descriptor of memory without a name. Raises: OSError when there is not enough."""
    make = getattr(os, "memfd_create", None)  # on Linux, and not in every build of Python there
    if make is not None:
        descriptor = make("dovetail-ranks")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    try:
        os.ftruncate(descriptor, num_bytes)
        reserve = getattr(os, "posix_fallocate", None)
        if reserve is not None:
            reserve(descriptor, 0, num_bytes)  # fails now instead of killing us later
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


class _Joined:
    """The ranks that have come to rank 0 so far."""

    def __init__(self, place: RankPlace, stack: contextlib.ExitStack) -> None:
        self._place = place
        self._stack = stack
        self._heard: list[socket.socket] = []
        self._found = {0: os.getpid()}

    @property
    def pids(self) -> list[int]:
        """Return the process ids in the order of the ranks."""
        return [self._found[rank] for rank in range(self._place.size)]

    def wait(self, listener: socket.socket) -> None:
        """Return when all are here. Raises: RankError"""
        end_s = time.monotonic() + self._place.timeout_s
        selector = self._stack.enter_context(selectors.DefaultSelector())
        selector.register(listener, selectors.EVENT_READ)
        while len(self._found) < self._place.size:
            ready = selector.select(max(0.0, end_s - time.monotonic()))
            for key, _ in ready:
                if key.fileobj is listener:
                    self._accept(listener, selector)
                else:
                    self._hear(key, selector)
            if not ready and time.monotonic() >= end_s:
                raise self._missing()

    def _missing(self) -> RankError:
        ranks = [rank for rank in range(self._place.size) if rank not in self._found]
        names = ", ".join(map(str, ranks))
        return RankError(
            f"rank {names} of {self._place.size} did not come within {self._place.timeout_s:g} s",
            ranks[0],
        )

    def _accept(self, listener: socket.socket, selector: selectors.BaseSelector) -> None:
        connection = self._stack.enter_context(listener.accept()[0])
        if _is_own(connection):
            selector.register(connection, selectors.EVENT_READ)

    def _hear(self, key: selectors.SelectorKey, selector: selectors.BaseSelector) -> None:
        """Handle a connection's message: its hello, or the end of its process."""
        connection: Any = key.fileobj
        said = connection.recv(HELLO.size)
        if key.data is None and len(said) < HELLO.size:
            selector.unregister(connection)  # not one of ours
            return
        if key.data is not None:
            raise RankError(f"rank {key.data} ended before all ranks had come", key.data)
        self._heard.append(connection)  # before it can be refused: it is to know why
        rank = self._admit(*HELLO.unpack(said))
        selector.modify(connection, selectors.EVENT_READ, rank)

    def _admit(self, version: int, rank: int, size: int, num_bytes: int, pid: int) -> int:
        wanted = (VERSION, self._place.size, self._place.num_bytes)
        if (version, size, num_bytes) != wanted:
            found = f"version {version}, {size} ranks, {num_bytes} bytes"
            ours = f"version {wanted[0]}, {wanted[1]} ranks, {wanted[2]} bytes"
            raise RankError(f"rank {rank} wants another group ({found}) than rank 0 ({ours})", rank)
        if rank in self._found:
            raise RankError(f"two processes say that they are rank {rank}", rank)
        self._found[rank] = pid
        return rank

    def answer(self, answer: dict[str, Any], descriptor: int | None = None) -> None:
        """Send an answer to all that have come. The first wait detects ended ones."""
        fds = [] if descriptor is None else [descriptor]
        for connection in self._heard:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                socket.send_fds(connection, [json.dumps(answer).encode()], fds)


def _is_own(connection: socket.socket) -> bool:
    """Return whether the peer is this user's; a file's folder answers for that elsewhere."""
    if not HAS_ABSTRACT_SOCKETS:
        return True
    format_ = "3i"
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize(format_))
    return bool(struct.unpack(format_, found)[1] == os.getuid())


def _join(place: RankPlace) -> tuple[int, list[int]]:
    """Meet as another rank than 0."""
    end_s = time.monotonic() + place.timeout_s
    with _connected(place, end_s) as connection:
        hello = (VERSION, place.rank, place.size, place.num_bytes, os.getpid())
        connection.sendall(HELLO.pack(*hello))
        connection.settimeout(
            max(RETRY_S, end_s + 1.0 - time.monotonic())
        )  # rank 0 says who is late
        try:
            said, fds, _, _ = socket.recv_fds(connection, ANSWER_BYTES, 1)
        except TimeoutError as error:
            text = f"rank 0 did not answer within {place.timeout_s:g} s"
            raise RankError(text, 0) from error
        except ConnectionResetError:
            said, fds = b"", []
    if not said:
        raise RankError("rank 0 ended before all ranks had come", 0)
    answer = json.loads(said)
    if "error" in answer:
        raise RankError(answer["error"], answer["rank"])
    os.set_inheritable(fds[0], False)
    return fds[0], answer["pids"]


def _connected(place: RankPlace, end_s: float) -> socket.socket:
    """Return a connection to rank 0, which may not have begun yet."""
    while True:
        with contextlib.ExitStack() as stack:
            connection = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            try:
                connection.connect(_address(place.name))
            except (ConnectionRefusedError, FileNotFoundError, BlockingIOError) as error:
                if time.monotonic() >= end_s:
                    text = f"rank 0 was not there within {place.timeout_s:g} s"
                    raise RankError(text, 0) from error
            else:
                stack.pop_all()
                return connection
        time.sleep(RETRY_S)
