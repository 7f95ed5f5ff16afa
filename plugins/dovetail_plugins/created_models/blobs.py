"""Blobs: uploaded files by digest. A file appears under its digest only when it is complete and
right."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Container, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from dovetail.errors import RequestError

PREFIX = "sha256-"
PIECE_BYTES = 1 << 20
_PARTIAL = ".partial-"
UNUSED_S = 86400.0
"""How long a file that no model uses stays, so that a model can be made of it."""


class Blobs:
    """A folder of files by digest. `digits` are always the checked digits of a digest."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, digits: str) -> Path:
        """Return a blob's place, which need not exist."""
        return self.folder / f"{PREFIX}{digits}"

    def has(self, digits: str) -> bool:
        """Return whether there is such a blob."""
        return self.path(digits).is_file()

    def touch(self, digits: str) -> bool:
        """Return whether there is such a blob, and let it stay for another day."""
        with contextlib.suppress(FileNotFoundError):
            os.utime(self.path(digits))
            return True
        return False

    def check(self, digits: str, where: str) -> Path:
        """Return a blob's path. Raises: RequestError if it was not uploaded"""
        if not self.has(digits):
            raise RequestError(
                f"the blob sha256:{digits} is not here.",
                where=where,
                fix=f"upload it first: POST /api/blobs/sha256:{digits}",
                status=404,
            )
        return self.path(digits)

    def upload(self, digits: str, num_bytes: int | None = None) -> Upload:
        """Return a writer; `num_bytes` is the size if the client says it. Raises: RequestError if
        the disk has no room for it, OSError"""
        self.folder.mkdir(parents=True, exist_ok=True)
        if num_bytes is not None and num_bytes > shutil.disk_usage(self.folder).free:
            raise _disk_full(num_bytes)
        return Upload(self, digits)

    def add(self, file: Path) -> str:
        """Copy a file in; return the digits of its digest. Raises: RequestError if the disk is
        full, OSError"""
        with file.open("rb") as source:
            digits = hashlib.file_digest(source, "sha256").hexdigest()
            if not self.touch(digits):
                source.seek(0)
                with self.upload(digits, file.stat().st_size) as upload:
                    while piece := source.read(PIECE_BYTES):
                        upload.write(piece)
                    upload.finish()
        return digits

    def prune(self, used: Container[str], now_s: float | None = None) -> None:
        """Delete parts of uploads that broke off, and files not in `used`, after a day."""
        before_s = (time.time() if now_s is None else now_s) - UNUSED_S
        for file in self._all():
            with contextlib.suppress(FileNotFoundError):  # another server deleted it
                is_used = file.name.removeprefix(PREFIX) in used
                if not is_used and file.stat().st_mtime < before_s:
                    file.unlink()

    def _all(self) -> Iterator[Path]:
        for file in self.folder.glob("*") if self.folder.is_dir() else ():
            if file.name.startswith((PREFIX, _PARTIAL)):
                yield file


class Upload:
    """One file while it arrives; a context manager that deletes what was not finished."""

    def __init__(self, blobs: Blobs, digits: str) -> None:
        self._blobs = blobs
        self._digits = digits
        self._hash = hashlib.sha256()
        number, name = tempfile.mkstemp(prefix=_PARTIAL, dir=blobs.folder)
        self._path = Path(name)
        self._file: IO[bytes] = os.fdopen(number, "wb", buffering=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()
        self._path.unlink(missing_ok=True)

    def write(self, data: bytes) -> None:
        """Add bytes. Raises: RequestError if the disk is full, OSError"""
        self._hash.update(data)
        view = memoryview(data)
        try:
            while view:
                view = view[self._file.write(view) :]
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise _disk_full(self._path.stat().st_size) from error
            raise

    def finish(self) -> None:
        """Put the file in its place. Raises: RequestError if it has another digest, OSError"""
        found = self._hash.hexdigest()
        if found != self._digits:
            raise RequestError(
                f"the digest of what was sent is sha256:{found}.",
                where="digest",
                fix="send the file again.",
                code="digest_mismatch",
            )
        os.fsync(self._file.fileno())
        self._path.replace(self._blobs.path(self._digits))


def _disk_full(num_bytes: int) -> RequestError:
    return RequestError(
        f"the disk of the created models is full: there is no room for {num_bytes} bytes.",
        fix="delete models, or set XDG_DATA_HOME to a folder on a larger disk.",
        code="disk_full",
        status=507,
    )
