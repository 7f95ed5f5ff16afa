"""The results of a batch: a file that grows line by line, from which a run can resume.

Format of a line: OpenAI's batch output, {"id", "custom_id", "response": {"status_code",
"request_id", "body"} or null, "error": {"code", "message"} or null}. Source:
https://platform.openai.com/docs/api-reference/batch/request-output
"""

from __future__ import annotations

import fcntl
import io
import os
from pathlib import Path
from typing import Any, Self

import msgspec

from dovetail.errors import ConfigError, DovetailError
from dovetail.json_values import InvalidJson, json_struct
from dovetail_plugins.apis.batches.answer import ResultLine
from dovetail_plugins.apis.batches.lines import ID_PREFIX, name_of

FLAG = "--output-file"
HEAD = b'{"id":"' + ID_PREFIX.encode()
"""The start of every line written to this file."""


class _KeptAnswer(msgspec.Struct, frozen=True):
    status_code: int


class _Kept(msgspec.Struct, frozen=True):
    id: str
    custom_id: str | None
    response: _KeptAnswer | None = None
    error: Any = None


class ResultFile:
    """The output file, locked while it is open. `answered` and `failed` are ids of results."""

    def __init__(self, path: Path, file: io.FileIO) -> None:
        self.path = path
        self.answered: set[str] = set()
        self.failed: set[str] = set()
        self._file = file
        self._kept_bytes = 0
        self._needs_newline = False

    @classmethod
    def open(cls, path: Path, *, resumes: bool) -> Self:
        """Return the results at `path`, with `resumes` including existing ones. Changes no file.

        Raises: ConfigError for a file that cannot be written, is in use, or has other contents
        """
        if path.exists() and not path.is_file():
            fix = "name a file; a run must be able to go on with it."
            raise ConfigError(f"{path} is not a file.", where=FLAG, fix=fix)
        try:
            file = io.FileIO(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), "r+b")
        except OSError as error:
            raise _unwritable(path, error) from error
        try:
            _lock(file, path)
            results = cls(path, file)
            if resumes:
                results._read()
        except BaseException:
            file.close()
            raise
        return results

    def begin(self) -> None:
        """Truncate the file: remove a torn last line, or everything. Mutates: the file"""
        self._file.truncate(self._kept_bytes)
        self._file.seek(self._kept_bytes)
        if self._needs_newline:
            self._write(b"\n")

    def add(self, result: ResultLine) -> None:
        """Write a line; it has left this process on return. Raises: DovetailError."""
        self._write(msgspec.json.encode(result) + b"\n")

    def close(self) -> None:
        """Close the file and release its lock."""
        self._file.close()

    def sync(self) -> None:
        """Return once the results are on disk."""
        os.fsync(self._file.fileno())

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[self._file.write(rest) or 0 :]
        except OSError as error:
            raise DovetailError(
                f"cannot write {self.path}: {error.strerror}.",
                where=FLAG,
                fix="free some space, then give the same command again: it resumes from here.",
            ) from error

    def _read(self) -> None:
        """Read which lines are already answered. Raises: ConfigError for lines that are not
        results"""
        with self.path.open("rb") as file:
            for number, raw in enumerate(file, 1):
                if not raw.endswith(b"\n") and not self._is_result(raw):
                    _check_torn(raw, self.path, number)
                    return
                self._note(raw, number)
                self._needs_newline = not raw.endswith(b"\n")
                self._kept_bytes += len(raw)

    def _is_result(self, raw: bytes) -> bool:
        try:
            json_struct(raw, _Kept)
        except InvalidJson:
            return False
        return True

    def _note(self, raw: bytes, number: int) -> None:
        if not raw.strip():
            return
        try:
            line = json_struct(raw, _Kept)
        except InvalidJson as error:
            raise _foreign(self.path, number) from error
        name = line.id if line.custom_id is None else name_of(line.custom_id)
        self.answered.add(name)
        if line.response is None or line.response.status_code >= 400:
            self.failed.add(name)


def _lock(file: io.FileIO, path: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ConfigError(
            f"another process is writing {path}.", where=FLAG, fix="wait for it, or stop it."
        ) from error


def _check_torn(raw: bytes, path: Path, number: int) -> None:
    """Raise ConfigError unless the unfinished last line is the start of a result."""
    if raw[: len(HEAD)] != HEAD[: len(raw)]:
        raise _foreign(path, number)


def _foreign(path: Path, number: int) -> ConfigError:
    return ConfigError(
        f"line {number} of {path} is not the result of a batch.",
        where=FLAG,
        fix="give another file, or overwrite this one with --no-resume.",
    )


def _unwritable(path: Path, error: OSError) -> ConfigError:
    is_absent = not path.parent.exists()
    return ConfigError(
        f"cannot write {path}: {error.strerror}.",
        where=FLAG,
        fix=f"make the folder {path.parent}." if is_absent else "name another file.",
    )
