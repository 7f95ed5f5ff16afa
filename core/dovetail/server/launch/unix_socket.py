"""The Unix socket of --uds: a lock ensures that one server uses a path.

A server that is still loading its model does not listen yet, so connecting proves nothing. The lock
on PATH.lock is released by the system however its holder ends.
"""

from __future__ import annotations

import contextlib
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from dovetail.errors import ConfigError
from dovetail.processes.file_lock import try_lock

FLAG = "--uds"
PROBE_S = 1.0


@contextlib.contextmanager
def unix_socket(path: str) -> Iterator[socket.socket]:
    """Yield a bound socket; its file and its lock are removed at the end. Raises: ConfigError"""
    file = Path(path).absolute()
    with _lock(file):
        _remove_stale(file)
        sock = _bound(file)
        try:
            yield sock
        finally:
            sock.close()
            file.unlink(missing_ok=True)


@contextlib.contextmanager
def _lock(file: Path) -> Iterator[None]:
    """Hold PATH.lock. Raises: ConfigError when another server holds it"""
    with contextlib.ExitStack() as stack:
        try:
            is_locked = stack.enter_context(try_lock(file.with_name(file.name + ".lock")))
        except OSError as error:
            raise _cannot_bind(file, error) from error
        if not is_locked:
            raise _taken(file)
        yield


def _remove_stale(file: Path) -> None:
    """Remove the socket of a dead server. Raises: ConfigError for anything else at that path"""
    try:
        mode = file.lstat().st_mode
    except OSError:
        return  # there is none, or binding will report why not
    if not stat.S_ISSOCK(mode):
        raise ConfigError(
            f"{file} exists and is not a socket.",
            where=FLAG,
            fix="name another path, or remove it.",
        )
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(PROBE_S)
        try:
            probe.connect(str(file))
        except ConnectionRefusedError:
            file.unlink(missing_ok=True)
            return
        except OSError as error:
            raise _cannot_bind(file, error) from error
    raise _taken(file)


def _bound(file: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(str(file))
    except OSError as error:
        sock.close()
        raise _cannot_bind(file, error) from error
    sock.set_inheritable(True)
    return sock


def _taken(file: Path) -> ConfigError:
    return ConfigError(
        f"{file} is in use.", where=FLAG, fix="stop the other program, or name another path."
    )


def _cannot_bind(file: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"cannot listen at {file}: {error.strerror or error}.",
        where=FLAG,
        fix="name a path of at most 107 bytes in a folder that this user may write to.",
    )
