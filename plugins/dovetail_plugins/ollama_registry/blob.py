"""One blob of Ollama's store while it arrives: taken up where it broke off, checked, put in place.

Only one process at a time writes the unfinished file, which it locks; others wait, and find the
blob complete.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError, URLError

from dovetail.errors import ConfigError
from dovetail_plugins.ollama_registry.requests import opened, registry_errors

PART = ".partial"
READ_BYTES = 1 << 18
MAX_VAIN_TRIES = 5
"""How often in a row a request may bring nothing."""
RETRY_S = 0.5
PERIOD_S = 0.1
"""How often the progress of a blob is reported at most."""
PARTIAL_CONTENT, RANGE_REFUSED, SERVER_FAULT = 206, 416, 500
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Blob:
    """A file by its SHA-256. Raises: ValueError for another digest, or a size below 0"""

    digest: str
    size: int

    def __post_init__(self) -> None:
        if not _DIGEST.fullmatch(self.digest) or self.size < 0:
            raise ValueError(f"has the digest {self.digest[:80]!r} and the size {self.size}.")

    @property
    def file_name(self) -> str:
        """Return its name in a store."""
        return self.digest.replace(":", "-")


Tell = Callable[[Blob, int], None]
"""Takes a blob, and how many of its bytes are here."""


def fetch_blob(
    blob: Blob, folder: Path, url: str, *, tell: Tell, say: Callable[[str], None]
) -> None:
    """Fetch a blob, unless it is in the folder. Raises: ConfigError, OSError if the disk is full"""
    place = folder / blob.file_name
    part = place.with_name(place.name + PART)
    if not _is_here(place, blob):
        with _locked(part) as file:
            if not _is_here(place, blob):
                arrival = _Arrival(blob, file, tell)
                arrival.fetch(url)
                say("verifying sha256 digest")
                if not arrival.is_right:
                    part.unlink()
                    raise ConfigError(
                        f"what was fetched has not the checksum {blob.digest}; it was deleted.",
                        fix="pull the model again.",
                    )
                os.fsync(file.fileno())
                part.replace(place)
    tell(blob, blob.size)


def _is_here(place: Path, blob: Blob) -> bool:
    return place.is_file() and place.stat().st_size == blob.size


@contextmanager
def _locked(part: Path) -> Iterator[IO[bytes]]:
    """Yield the unfinished file, which no other process writes meanwhile."""
    while True:
        with part.open("a+b", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if not part.exists() or not os.path.samestat(part.stat(), os.fstat(file.fileno())):
                continue  # the process before this one has put it in place or deleted it
            yield file
            return


class _Arrival:
    """A blob's bytes so far, in a file and as a digest."""

    def __init__(self, blob: Blob, file: IO[bytes], tell: Tell) -> None:
        self._blob = blob
        self._file = file
        self._tell = tell
        self._told_s = 0.0
        self._digest = hashlib.sha256()
        self._size = 0
        file.seek(0)
        while data := file.read(READ_BYTES):
            self._digest.update(data)
            self._size += len(data)
        if self._size > blob.size:
            self._begin_again()

    @property
    def is_right(self) -> bool:
        """Return whether the blob is complete and has its digest."""
        is_whole = self._size == self._blob.size
        return is_whole and f"sha256:{self._digest.hexdigest()}" == self._blob.digest

    def fetch(self, url: str) -> None:
        """Append what is missing. Raises: ConfigError, OSError if the disk is full"""
        num_vain, why = 0, ""
        self._tell(self._blob, self._size)
        missing = self._blob.size - self._size
        if missing > shutil.disk_usage(self._file.name).free:
            raise OSError(errno.ENOSPC, f"{missing} bytes are missing")
        while self._size < self._blob.size:
            if num_vain == MAX_VAIN_TRIES:
                raise ConfigError(
                    f"{self._blob.digest} broke off at byte {self._size} of {self._blob.size}: "
                    f"{why}.",
                    fix="pull the model again; it is taken up there.",
                )
            time.sleep(RETRY_S * num_vain)
            before = self._size
            why = self._append(url)
            num_vain = 0 if self._size > before else num_vain + 1

    def _append(self, url: str) -> str:
        """Append bytes until the connection breaks; return why. Raises: ConfigError, OSError"""
        try:
            with opened(url, start=self._size) as response:
                if self._size and response.status != PARTIAL_CONTENT:
                    self._begin_again()
                return self._take(response)
        except HTTPError as error:
            if error.code == RANGE_REFUSED:
                self._begin_again()
            elif error.code < SERVER_FAULT:
                with registry_errors(self._blob.digest):
                    raise
            return f"{error.code} {error.reason}"
        except _Broken as error:
            return str(error)
        except (URLError, ConnectionError, TimeoutError, HTTPException) as error:
            return str(error) or type(error).__name__

    def _take(self, response: Any) -> str:
        while (room := self._blob.size - self._size) > 0:
            try:
                data = response.read1(min(READ_BYTES, room))
            except (OSError, HTTPException) as error:
                raise _Broken(str(error) or type(error).__name__) from error
            if not data:
                return "the connection ended"
            self._write(data)
        return ""

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            num = self._file.write(view) or 0
            self._digest.update(view[:num])
            self._size += num
            view = view[num:]
        if time.monotonic() - self._told_s >= PERIOD_S:
            self._told_s = time.monotonic()
            self._tell(self._blob, self._size)

    def _begin_again(self) -> None:
        self._file.truncate(0)
        self._digest = hashlib.sha256()
        self._size = 0


class _Broken(Exception):
    """A connection broke while it was read."""
