"""Child processes: starting one, sending it its task, and ending it with its parent.

A child is `python -P -m dovetail.processes.process MODULE`. It reads one boot message from
standard input (8 bytes of length, then msgpack) and then watches that pipe, the parent pipe.
Then it imports MODULE and calls its `main()`, which gets the message from `read_boot`. The end of
the pipe means that the parent has died or wants the child to end: the child exits, whatever it is
doing.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import logging
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, BinaryIO, TypeVar

import msgspec

from dovetail.errors import ConfigError

logger = logging.getLogger(__name__)

STDIN = 0
STDERR = 2
LENGTH = struct.Struct(">Q")
PR_SET_PDEATHSIG = 1
EXIT_PARENT_GONE = 3
READ_BYTES = 1 << 20
PLAIN: dict[str, Any] = {"stdout": STDERR, "stderr": None, "pass_fds": (), "process_group": None}
AHEAD: dict[str, tuple[object, subprocess.Popen[bytes]]] = {}
"""Module -> environment and options of a child that imports until `spawn` is to start the same."""

Boot = TypeVar("Boot")


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """The message to a child: its encoded boot message, and settings that every child needs.

    `leftovers` are folders that the child removes if its parent dies, since nothing else would.
    """

    parent_pid: int
    uses_death_signal: bool
    leftovers: tuple[str, ...]
    channel: int | None
    boot: bytes


class Child:
    """A child process, as its parent sees it. `channel` is a socket to it, if it has one."""

    def __init__(self, process: subprocess.Popen[bytes], channel: socket.socket | None) -> None:
        self._process = process
        self.channel = channel
        self.pid = process.pid

    @property
    def status(self) -> int | None:
        """Return the exit status (minus the signal number if killed); None while it runs."""
        return self._process.poll()

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Return the exit status, or None when the child still runs after `timeout_s`."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def on_exit(self, call: Callable[[int], None]) -> threading.Thread:
        """Call `call` with the exit status when the child has ended, from the returned thread,
        which only waits for that."""

        def watch() -> None:
            call(self._process.wait())

        thread = threading.Thread(target=watch, name=f"watch-{self.pid}", daemon=True)
        thread.start()
        return thread

    def send_signal(self, number: int) -> None:
        """Send a signal; ignored if the child has ended."""
        self._process.send_signal(number)

    def close_parent_pipe(self) -> None:
        """Make the child exit immediately. May be called twice."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def end(self, grace_s: float) -> int:
        """Close the parent pipe and kill the child after `grace_s`; return its status. Blocks."""
        self.close_parent_pipe()
        try:
            self.wait(grace_s)
        finally:  # also on Ctrl-C meanwhile, the child must not survive
            if self.channel is not None:
                self.channel.close()
            self._process.kill()
            status = self._process.wait()
        return status


def spawn(
    module: str,
    boot: Any,
    *,
    stdout: int | IO[bytes] | None = STDERR,
    stderr: int | IO[bytes] | None = None,
    pass_fds: Sequence[int] = (),
    variables: Mapping[str, str] | None = None,
    leftovers: Sequence[str] = (),
    has_channel: bool = False,
    has_own_group: bool = False,
) -> Child:
    """Start `module` as a child process and send it `boot`, which msgspec can encode.

    The child's output goes to this process's standard error, so that it cannot mix with this
    process's standard output. The child inherits `pass_fds` under the same numbers, and `variables`
    are added to its environment. With `has_own_group` Ctrl-C does not reach it. All processes stay
    in one session, because Linux weighs priorities only within a session (autogroup). A child that
    ends before it has read the message is detected by its status only. Raises: ConfigError for a
    number that cannot be sent
    """
    ours, theirs = socket.socketpair() if has_channel else (None, None)
    channel = [theirs.fileno()] if theirs else []
    try:
        message = _message(boot, leftovers, *channel)
        environment = child_environment() | dict(variables or {})
        group, descriptors = 0 if has_own_group else None, (*pass_fds, *channel)
        outputs: dict[str, Any] = {"stdout": stdout, "stderr": stderr}
        options = outputs | {"pass_fds": descriptors, "process_group": group}
        process = taken(module, environment, options)
        process = process or start([module], environment, **options)
    except BaseException:
        if ours:
            ours.close()
        raise
    finally:
        if theirs:
            theirs.close()
    _tell(process, message)
    return Child(process, ours)


def start(words: Sequence[str], environment: Any, **options: Any) -> subprocess.Popen[bytes]:
    """Start a child that has not got its message. `words`: its module, and what it imports first"""
    command = [sys.executable, "-P", "-m", __name__, *words]  # -P: no code of the working folder
    return subprocess.Popen(command, stdin=subprocess.PIPE, env=environment, bufsize=0, **options)


def taken(module: str, *wanted: object) -> subprocess.Popen[bytes] | None:
    """Return the child that was started ahead, if it fits; end another one. Mutates: AHEAD"""
    own, process = AHEAD.pop(module, (None, None))
    if process is None or (own == wanted and process.poll() is None):
        return process
    if process.poll() is not None:
        status = process.returncode
        logger.warning("a child that was to be %s ended early, with status %d", module, status)
    assert process.stdin is not None
    process.stdin.close()
    process.kill()
    process.wait()
    return None


def _message(boot: Any, leftovers: Sequence[str], channel: int | None = None) -> bytes:
    """Return the bytes for a child's standard input. Raises: ConfigError"""
    envelope = Envelope(
        parent_pid=os.getpid(),
        # The signal is sent when the *thread* that spawned ends, so only the main one may use it.
        uses_death_signal=threading.current_thread() is threading.main_thread(),
        leftovers=tuple(leftovers),
        channel=channel,
        boot=_encoded(boot),
    )
    return framed(msgspec.msgpack.encode(envelope))


def framed(payload: bytes) -> bytes:
    """Return a message as it is sent between processes: 8 bytes of length, then the message."""
    return LENGTH.pack(len(payload)) + payload


def _encoded(boot: Any) -> bytes:
    try:
        return msgspec.msgpack.encode(boot)
    except OverflowError as error:
        what = "a number among the settings does not fit into 64 bits."
        raise ConfigError(what, fix="give a smaller number.") from error


def _tell(process: subprocess.Popen[bytes], message: bytes) -> None:
    """Write the message. The child reads all of it before it imports anything heavy."""
    assert process.stdin is not None
    rest = memoryview(message)
    try:
        while rest:
            rest = rest[process.stdin.write(rest) :]
    except BrokenPipeError:
        logger.debug("child process %d ended before it had read its boot message", process.pid)


def child_environment() -> dict[str, str]:
    """Return this process's environment, with its import paths as PYTHONPATH."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(import_paths())}


def import_paths() -> list[str]:
    """Return the folders and archives that this process imports from, absolute, without duplicates.

    Excludes the standard library, which an interpreter finds by itself, and the empty entry, which
    means the working folder at the time of an import.
    """
    library = {os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")}
    library |= {os.path.join(path, "lib-dynload") for path in library}  # noqa: PTH118
    paths = dict.fromkeys(os.path.abspath(entry) for entry in sys.path if entry)  # noqa: PTH100
    return [p for p in paths if os.path.exists(p) and os.path.realpath(p) not in library]  # noqa: PTH110


_received: Envelope | None = None


def read_boot(boot_type: type[Boot]) -> Boot:
    """Return the boot message of this child process. Raises: msgspec.ValidationError"""
    return msgspec.msgpack.decode(_own_envelope().boot, type=boot_type)


def open_channel() -> socket.socket:
    """Return this child's socket to its parent. Call it only once."""
    number = _own_envelope().channel
    if number is None:
        raise RuntimeError("this process was spawned without a channel")
    channel = socket.socket(fileno=number)
    channel.set_inheritable(False)
    return channel


def read_message(stream: BinaryIO) -> bytes | None:
    """Return the msgpack of the next message in a stream of this child, or None at its end."""
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (size,) = LENGTH.unpack(head)
    return stream.read(size)


def _own_envelope() -> Envelope:
    if _received is None:
        raise RuntimeError("this process was not started by dovetail.processes.process.spawn")
    return _received


def main(module: str, *ahead: str) -> int:
    """Run a module as a child process: read the boot message, watch the parent, and call `main`.
    Before the message come the imports `ahead`: the child may not be needed, and ends silently."""
    global _received
    if ahead:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends with the parent
    try:
        for name in ahead:
            with contextlib.suppress(Exception):  # its owner imports it again, and reports that
                importlib.import_module(name)
        _received = msgspec.msgpack.decode(_read_framed(STDIN), type=Envelope)
    except EOFError as error:
        if not ahead:
            sys.stderr.write(f"dovetail.processes.process: {error}\n")
        return EXIT_PARENT_GONE
    end_with_parent(_received)
    status: int = importlib.import_module(module).main()
    return status


def _read_framed(descriptor: int) -> bytes:
    """Return one length-prefixed message. Raises: EOFError when the pipe ends before it does."""
    (length,) = LENGTH.unpack(_read_exactly(descriptor, LENGTH.size))
    return _read_exactly(descriptor, length)


def _read_exactly(descriptor: int, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = os.read(descriptor, min(size - len(parts), READ_BYTES))
        if not part:
            raise EOFError("standard input ended before the boot message did")
        parts += part
    return bytes(parts)


def end_with_parent(envelope: Envelope) -> None:
    """End this process when the parent ends: by the pipe and, on Linux, also by a signal."""
    threading.Thread(
        target=_watch_parent, args=(envelope,), name="parent-pipe", daemon=True
    ).start()
    if envelope.uses_death_signal and sys.platform == "linux":
        if envelope.leftovers:
            kill_later_with_parent()
        else:
            kill_with_parent()
    if os.getppid() != envelope.parent_pid:
        _leave(envelope)


def _watch_parent(envelope: Envelope) -> None:
    """Wait for the end of standard input, then exit immediately."""
    with contextlib.suppress(OSError):  # an unreadable pipe counts as ended
        while os.read(STDIN, 4096):
            continue
    _leave(envelope)


def _leave(envelope: Envelope) -> None:
    """End this process after the parent has died; remove the leftovers first."""
    for folder in envelope.leftovers:
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(EXIT_PARENT_GONE)


def kill_with_parent() -> None:
    """Make Linux kill this process when the thread that started or forked it ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def kill_later_with_parent() -> None:
    """Make Linux kill this process 5 s after the thread that started it has ended.

    This covers a watcher thread that cannot run because something holds the interpreter lock;
    otherwise it has cleaned up by then. The signal's handler is libc's alarm(signal number):
    SIGALRM kills 5 s later and, unlike a handler in Python, needs no interpreter lock.
    """
    libc = ctypes.CDLL(None)
    libc.signal(signal.SIGTRAP, ctypes.cast(libc.alarm, ctypes.c_void_p))
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTRAP)


if __name__ == "__main__":
    from dovetail.processes import process

    sys.exit(process.main(*sys.argv[1:]))
