"""FileStorage: files and batches in a folder, each with its facts beside it, whole after any crash.

What is kept belongs to the key that made it. Several processes may use one folder; each reads what
is there when it is asked.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from dovetail.errors import ConfigError, NotFound

FLAG = "--file-storage"
_ID = re.compile(r"(file|batch)_[0-9a-f]{32}")
DAY_S = 86400


class FileFacts(msgspec.Struct, kw_only=True):
    """The facts of a file; its bytes lie beside this."""

    id: str
    owner: str
    filename: str
    purpose: str
    created_at: int
    bytes: int = 0

    def told(self) -> dict[str, Any]:
        """Return OpenAI's file object."""
        return {
            "id": self.id,
            "object": "file",
            "bytes": self.bytes,
            "created_at": self.created_at,
            "expires_at": None,
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed",
            "status_details": None,
        }


class LineFault(msgspec.Struct, frozen=True, kw_only=True):
    """Why a batch is not begun: what is wrong in a line of its input."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class BatchFacts(msgspec.Struct, kw_only=True):
    """One batch as it is."""

    id: str
    owner: str
    endpoint: str
    input_file_id: str
    completion_window: str
    created_at: int
    expires_at: int
    status: str = "validating"
    faults: list[LineFault] = []
    output_file_id: str | None = None
    error_file_id: str | None = None
    total: int = 0
    completed: int = 0
    failed: int = 0
    times: dict[str, int] = {}
    metadata: dict[str, str] | None = None

    @property
    def is_open(self) -> bool:
        """Return whether there is still work to do."""
        return self.status in ("validating", "in_progress", "finalizing", "cancelling")

    def goes(self, status: str) -> None:
        """Be in another state from now on. Mutates: self"""
        self.status = status
        self.times[f"{status}_at"] = int(time.time())

    def told(self) -> dict[str, Any]:
        """Return OpenAI's batch object."""
        errors = [msgspec.to_builtins(fault) for fault in self.faults]
        states = (
            "in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled"
        )  # fmt: skip
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "errors": {"object": "list", "data": errors} if errors else None,
            "input_file_id": self.input_file_id,
            "completion_window": self.completion_window,
            "status": self.status,
            "output_file_id": self.output_file_id,
            "error_file_id": self.error_file_id,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            **{f"{state}_at": self.times.get(f"{state}_at") for state in states},
            "request_counts": {
                "total": self.total,
                "completed": self.completed,
                "failed": self.failed,
            },
            "metadata": self.metadata,
        }


class FileStorage:
    """One folder."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        try:
            for name in ("files", "batches"):
                (self.folder / name).mkdir(parents=True, exist_ok=True, mode=0o700)
            probe = self.folder / f".{secrets.token_hex(8)}"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise ConfigError(
                f"cannot write to {folder}: {error.strerror}.", where=FLAG, fix="name a folder."
            ) from error

    def new_file(self, owner: str, filename: str, purpose: str) -> FileFacts:
        """Return the facts of a file that is about to be written."""
        return FileFacts(
            id=f"file_{secrets.token_hex(16)}",
            owner=owner,
            filename=filename,
            purpose=purpose,
            created_at=int(time.time()),
        )

    def content(self, file_id: str) -> Path:
        """Return where a file's bytes lie."""
        return self.folder / "files" / f"{file_id}.bin"

    def keep_file(self, facts: FileFacts, data: bytes | None = None) -> None:
        """Write a file, or only the facts of one whose bytes are there already. Mutates: facts"""
        if data is not None:
            _write(self.content(facts.id), data)
        facts.bytes = self.content(facts.id).stat().st_size
        _write(self.folder / "files" / f"{facts.id}.json", msgspec.json.encode(facts))

    def file(self, file_id: str, owner: str, where: str = "file_id") -> FileFacts:
        """Return the facts of a file. Raises: NotFound"""
        found = _read(self.folder / "files", file_id, FileFacts)
        if found is None or found.owner != owner:
            raise NotFound(
                f'there is no file "{file_id[:128]}".', where=where, code="file_not_found"
            )
        return found

    def files(self, owner: str) -> list[FileFacts]:
        """Return the files of a key, the newest first."""
        return sorted(
            (one for one in _all(self.folder / "files", FileFacts) if one.owner == owner),
            key=lambda one: (-one.created_at, one.id),
        )

    def drop_file(self, file_id: str) -> None:
        """Forget a file."""
        for path in (self.folder / "files" / f"{file_id}.json", self.content(file_id)):
            path.unlink(missing_ok=True)

    def new_batch(
        self, owner: str, endpoint: str, input_file_id: str, metadata: dict[str, str] | None
    ) -> BatchFacts:
        """Return a batch that is kept, but not begun."""
        now_s = int(time.time())
        batch = BatchFacts(
            id=f"batch_{secrets.token_hex(16)}",
            owner=owner,
            endpoint=endpoint,
            input_file_id=input_file_id,
            completion_window="24h",
            created_at=now_s,
            expires_at=now_s + DAY_S,
            metadata=metadata,
        )
        self.keep_batch(batch)
        return batch

    def keep_batch(self, batch: BatchFacts, *, syncs: bool = True) -> None:
        """Write a batch as it is; without `syncs` the news may be lost with the machine."""
        path = self.folder / "batches" / f"{batch.id}.json"
        _write(path, msgspec.json.encode(batch), syncs=syncs)

    def next_batch(self, closed: set[str]) -> BatchFacts | None:
        """Return the oldest batch that is open. `closed` are the ids of those that are known not to
        be. Mutates: closed"""
        waiting: list[BatchFacts] = []
        for path in (self.folder / "batches").glob("*.json"):
            one = None if path.stem in closed else _read(path.parent, path.stem, BatchFacts)
            if one is not None and one.is_open:
                waiting.append(one)
            elif one is not None:
                closed.add(path.stem)
        return min(waiting, key=lambda one: (one.created_at, one.id), default=None)

    def batch(self, batch_id: str, owner: str) -> BatchFacts:
        """Return a batch. Raises: NotFound"""
        found = _read(self.folder / "batches", batch_id, BatchFacts)
        if found is None or found.owner != owner:
            raise NotFound(
                f'there is no batch "{batch_id[:128]}".', where="batch_id", code="batch_not_found"
            )
        found.status = "cancelling" if self.is_cancelled(found) else found.status
        return found

    def batches(self, owner: str | None = None) -> list[BatchFacts]:
        """Return the batches of a key, the newest first; of all keys without one."""
        return sorted(
            (
                one
                for one in _all(self.folder / "batches", BatchFacts)
                if owner is None or one.owner == owner
            ),
            key=lambda one: (-one.created_at, one.id),
        )

    def cancel(self, batch: BatchFacts) -> None:
        """Ask the runner of a batch to end it."""
        _write(self.folder / "batches" / f"{batch.id}.cancel", b"")

    def is_cancelled(self, batch: BatchFacts) -> bool:
        """Return whether a batch that is open is to end."""
        return batch.is_open and (self.folder / "batches" / f"{batch.id}.cancel").exists()


def _all(folder: Path, kind: type[Any]) -> Iterator[Any]:
    for path in folder.glob("*.json"):
        found = _read(folder, path.stem, kind)
        if found is not None:
            yield found


def _read(folder: Path, name: str, kind: type[Any]) -> Any:
    """Return what is stored under a name; None for an invalid name, and where nothing is."""
    if not _ID.fullmatch(name):
        return None
    with contextlib.suppress(FileNotFoundError):
        return msgspec.json.decode((folder / f"{name}.json").read_bytes(), type=kind)
    return None


def _write(path: Path, data: bytes, *, syncs: bool = True) -> None:
    """Write a file that is there whole or not at all, also after a crash of the process, and with
    `syncs` of the machine."""
    new = path.with_suffix(f".{secrets.token_hex(4)}.new")
    with new.open("wb") as file:
        file.write(data)
        file.flush()
        if syncs:
            os.fsync(file.fileno())
    new.replace(path)
