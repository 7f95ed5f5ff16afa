"""The engine process: `python -m dovetail.engine.process`, started by `client.EngineProcess`.

Reads its Boot message from standard input (8 bytes of length, then msgpack) and then only watches
that pipe: its end means that the parent is gone, and so this process ends, whatever it is doing.
Knows nothing of steps.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import sys
import threading

import msgspec

from dovetail.engine.messages import Boot
from dovetail.engine.transport import ZmqEngineEnd, remove_socket_folder
from dovetail.interfaces.spec import EngineSpec

STDIN = 0
LENGTH = struct.Struct(">Q")
PR_SET_PDEATHSIG = 1
EXIT_PARENT_GONE = 3
SWITCH_S = 5e-4
"""How long a thread beside the steps, one that loads forms, keeps the interpreter at most."""


def main() -> int:
    """Run an engine as described on standard input; return the exit status."""
    boot = msgspec.msgpack.decode(_read_framed(STDIN), type=Boot)
    _die_with_parent(boot)
    _leave_signals_to_parent()
    _start_logging(boot.spec)
    sys.setswitchinterval(SWITCH_S)
    # The socket first: the parent's first message need not wait for the heavy imports below.
    end = ZmqEngineEnd(boot.address)
    from dovetail.engine import loop

    try:
        return loop.run(boot.spec, end)
    finally:
        end.close()


def _read_framed(descriptor: int) -> bytes:
    """Return one length-prefixed message. Raises: EOFError when the pipe ends before it does."""
    (length,) = LENGTH.unpack(_read_exactly(descriptor, LENGTH.size))
    return _read_exactly(descriptor, length)


def _read_exactly(descriptor: int, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = os.read(descriptor, size - len(parts))
        if not part:
            raise EOFError("standard input ended before the engine's settings did")
        parts += part
    return bytes(parts)


def _die_with_parent(boot: Boot) -> None:
    """End this process when the parent ends, by the pipe and, on Linux, by a signal too."""
    threading.Thread(target=_watch_parent, args=(boot.address,), daemon=True).start()
    if boot.uses_death_signal and sys.platform == "linux":
        _arm_death_signal(ctypes.CDLL(None))
    if os.getppid() != boot.parent_pid:
        _leave(boot.address)


def _arm_death_signal(libc: ctypes.CDLL) -> None:
    """Have the kernel end this process should the watching thread be stuck when the parent dies.

    The signal's handler is libc's alarm(signal number): SIGALRM kills 5 s later, by when the
    thread has tidied up and left. It needs no interpreter lock, unlike a handler in Python.
    """
    libc.signal(signal.SIGTRAP, ctypes.cast(libc.alarm, ctypes.c_void_p))
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTRAP)


def _watch_parent(address: str) -> None:
    """Wait for the end of standard input, then leave at once."""
    while os.read(STDIN, 4096):
        continue
    _leave(address)


def _leave(address: str) -> None:
    """End this process. The parent is gone: nobody else will tidy up."""
    remove_socket_folder(address)
    os._exit(EXIT_PARENT_GONE)


def _leave_signals_to_parent() -> None:
    """Ignore Ctrl-C and SIGTERM: a terminal or a service manager sends them to the whole group,
    and the parent still wants running requests finished."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _start_logging(spec: EngineSpec) -> None:
    from dovetail.observability.logging import configure

    configure(
        spec.log_level,
        config=spec.log_config,
        prefix=spec.log_prefix,
        is_wanted=spec.sets_up_log,
    )


if __name__ == "__main__":
    sys.exit(main())
