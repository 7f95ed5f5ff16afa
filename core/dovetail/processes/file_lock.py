"""File locks between processes of one machine. The system releases them however a holder ends."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

RETRY_S = 0.05


@contextlib.contextmanager
def try_lock(file: Path) -> Iterator[bool]:
    """Yield whether this process holds an exclusive lock on a file during the block. The file is
    created if needed; the holder removes it at the end. Raises: OSError if it cannot be opened"""
    descriptor = os.open(file, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        is_locked = _is_locked(descriptor, file)
        try:
            yield is_locked
        finally:
            if is_locked:
                file.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


@contextlib.asynccontextmanager
async def locked(file: Path) -> AsyncIterator[None]:
    """Hold an exclusive lock on a file during the block. Raises: OSError if it cannot be opened"""
    while True:
        with try_lock(file) as is_locked:
            if is_locked:
                yield
                return
        await asyncio.sleep(RETRY_S)


def _is_locked(descriptor: int, file: Path) -> bool:
    """Lock the file; return whether that worked and the name still refers to this file."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(descriptor), file.stat())
    except OSError:
        return False
