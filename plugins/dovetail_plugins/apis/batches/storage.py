"""FileStorage: files and batches in a folder, each with a JSON record, safe against crashes.

Objects belong to the key that created them. Several processes may share one folder; each reads the
current state from disk when it needs it.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
import secrets
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from dovetail.errors import ConfigError, NotFound, RequestError
from dovetail.json_values import InvalidJson, json_struct
from dovetail.observability import metrics
from dovetail_plugins.durable_files import NEW, write_whole

logger = logging.getLogger("dovetail_plugins.batch")
DAMAGED = metrics.counter(
    "dovetail:damaged_batch_records", "Records of files and batches that cannot be read", ("kind",)
)
FLAG = "--file-storage"
_ID = re.compile(r"(file|batch)_[0-9a-f]{32}")
DAY_S = 86400
MAX_BYTES = 64 * 2**30
MAX_FILES = 10_000
"""The maximum number of files per key."""
MAX_OPEN_BATCHES = 1_000
MAX_ENDED_BATCHES = 10_000
"""The maximum number of ended batches per key."""
LEFT_OVER_S = 600.0
"""A file that is still being written is modified at least this often."""


class FileFacts(msgspec.Struct, kw_only=True):
    """The metadata of a file. Its bytes are in a file next to this record."""

    id: str
    owner: str
    filename: str
    purpose: str
    created_at: int
    bytes: int = 0

    def to_json(self) -> dict[str, Any]:
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
    """Why a batch was not started: a fault in a line of its input."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class BatchFacts(msgspec.Struct, kw_only=True):
    """The state of one batch."""

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
        """Return whether the batch still has work to do."""
        return self.status in ("validating", "in_progress", "finalizing", "cancelling")

    def goes(self, status: str) -> None:
        """Change the status. Mutates: self"""
        self.status = status
        self.times[f"{status}_at"] = int(time.time())

    def to_json(self) -> dict[str, Any]:
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

    def __init__(self, folder: str, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self.folder = Path(folder)
        self.live: dict[str, tuple[int, int]] = {}
        """The numbers of answered and failed lines of the batches running in this process."""
        self._damaged: set[Path] = set()
        self._coming: Counter[str] = Counter()
        self._lock = threading.Lock()
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
        """Return the metadata of a file that is about to be written."""
        return FileFacts(
            id=f"file_{secrets.token_hex(16)}",
            owner=owner,
            filename=filename,
            purpose=purpose,
            created_at=int(time.time()),
        )

    def result_file(self, batch: BatchFacts, kind: str) -> FileFacts:
        """Return the metadata of a batch's result file; create it if needed. Its id is derived from
        the batch's, so that after a crash the next process finds it again. Raises: OSError"""
        digest = hashlib.blake2b(f"{batch.id}:{kind}".encode(), digest_size=16).hexdigest()
        facts = self.new_file(batch.owner, f"{batch.id}_{kind}.jsonl", f"batch_{kind}")
        facts.id = f"file_{digest}"
        with contextlib.suppress(DamagedRecord):
            found = self._read(self.folder / "files", facts.id, FileFacts)
            if found is not None:
                return found
        self.content(facts.id).touch(mode=0o600)
        self.keep_file(facts)
        return facts

    def check_room(self, owner: str, num_bytes: int = 0) -> None:
        """Raise RequestError if a key's files would exceed its quota."""
        mine = self.files(owner)
        used_bytes = sum(one.bytes for one in mine)
        if used_bytes + num_bytes <= self._max_bytes and len(mine) < MAX_FILES:
            return
        raise RequestError(
            f"the files of this key take {used_bytes} bytes in {len(mine)} files. It may have "
            f"{self._max_bytes} bytes in {MAX_FILES} files.",
            where="file",
            fix="delete files that are not needed any more.",
            code="file_quota_exceeded",
        )

    def add_file(self, facts: FileFacts, data: bytes) -> None:
        """Write a file if its key has room, counting its concurrent uploads. Raises: RequestError,
        OSError. Mutates: facts"""
        with self._lock:
            self.check_room(facts.owner, self._coming[facts.owner] + len(data))
            self._coming[facts.owner] += len(data)
        try:
            self.keep_file(facts, data)
        finally:
            with self._lock:
                self._coming[facts.owner] -= len(data)

    def check_new_batch(self, owner: str) -> None:
        """Raise RequestError if a key has no room for results, or too many open batches. The oldest
        ended batches are deleted."""
        self.check_room(owner)
        mine = self.batches(owner)
        num_open = sum(batch.is_open for batch in mine)
        if num_open >= MAX_OPEN_BATCHES:
            raise RequestError(
                f"{num_open} batches of this key have not ended yet, which is the most.",
                fix="wait until some have ended, or cancel some.",
                code="too_many_batches",
                status=429,
            )
        for batch in [one for one in mine if not one.is_open][MAX_ENDED_BATCHES - 1 :]:
            (self.folder / "batches" / f"{batch.id}.json").unlink(missing_ok=True)

    def content(self, file_id: str) -> Path:
        """Return the path of a file's bytes."""
        return self.folder / "files" / f"{file_id}.bin"

    def keep_file(self, facts: FileFacts, data: bytes | None = None) -> None:
        """Write a file, or only its record if its bytes exist already. Mutates: facts"""
        if data is not None:
            write_whole(self.content(facts.id), data)
        facts.bytes = self.content(facts.id).stat().st_size
        write_whole(self.folder / "files" / f"{facts.id}.json", msgspec.json.encode(facts))

    def file(self, file_id: str, owner: str, where: str = "file_id") -> FileFacts:
        """Return the metadata of a file. Raises: NotFound"""
        found = self._read(self.folder / "files", file_id, FileFacts)
        if found is None or found.owner != owner:
            raise NotFound(
                f'there is no file "{file_id[:128]}".', where=where, code="file_not_found"
            )
        return found

    def files(self, owner: str, purpose: str | None = None) -> list[FileFacts]:
        """Return the files of a key, newest first; those of one purpose, if it is named."""
        found = self._all(self.folder / "files", FileFacts)
        return sorted(
            (one for one in found if one.owner == owner and purpose in (None, one.purpose)),
            key=lambda one: (-one.created_at, one.id),
        )

    def drop_file(self, file_id: str) -> None:
        """Delete a file."""
        for path in (self.folder / "files" / f"{file_id}.json", self.content(file_id)):
            path.unlink(missing_ok=True)

    def new_batch(
        self, owner: str, endpoint: str, input_file_id: str, metadata: dict[str, str] | None
    ) -> BatchFacts:
        """Return a new batch, stored but not started."""
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

    def keep_batch(self, batch: BatchFacts) -> None:
        """Store a batch. Raises: OSError"""
        write_whole(self.folder / "batches" / f"{batch.id}.json", msgspec.json.encode(batch))

    def open_batches(self, closed: set[str]) -> list[BatchFacts]:
        """Return the open batches, oldest first. `closed` are the ids of batches known to have
        ended. Mutates: closed"""
        waiting: list[BatchFacts] = []
        for path in (self.folder / "batches").glob("*.json"):
            if path.stem in closed:
                continue
            with contextlib.suppress(DamagedRecord):  # logged and counted in `_read`
                one = self._read(path.parent, path.stem, BatchFacts)
                if one is not None and one.is_open:
                    waiting.append(one)
                elif one is not None:
                    closed.add(path.stem)
        return sorted(waiting, key=lambda one: (one.created_at, one.id))

    def batch(self, batch_id: str, owner: str) -> BatchFacts:
        """Return a batch. Raises: NotFound"""
        found = self._read(self.folder / "batches", batch_id, BatchFacts)
        if found is None or found.owner != owner:
            raise NotFound(
                f'there is no batch "{batch_id[:128]}".', where="batch_id", code="batch_not_found"
            )
        found.status = "cancelling" if self.is_cancelled(found) else found.status
        return self._counted(found)

    def _counted(self, batch: BatchFacts) -> BatchFacts:
        """Return a batch with its newest counts, which are stored separately while it runs."""
        if not batch.is_open:
            return batch
        if batch.id in self.live:
            batch.completed, batch.failed = self.live[batch.id]
            return batch
        with contextlib.suppress(FileNotFoundError, InvalidJson):
            counts = json_struct(self._counts(batch).read_bytes(), tuple[int, int])
            batch.completed, batch.failed = counts
        return batch

    def _counts(self, batch: BatchFacts) -> Path:
        return self.folder / "batches" / f"{batch.id}.counts"

    def keep_counts(self, batch: BatchFacts) -> None:
        """Write the progress of a batch for other processes. It may be lost: the results have it
        too. Raises: OSError"""
        write_whole(self._counts(batch), msgspec.json.encode(self.live[batch.id]), syncs=False)

    def end_batch(self, batch: BatchFacts, status: str) -> None:
        """Record that a batch has ended, and delete the files of an open one. Mutates: batch.
        Raises: OSError"""
        batch.goes(status)
        self.keep_batch(batch)
        self.live.pop(batch.id, None)
        self._counts(batch).unlink(missing_ok=True)
        (self.folder / "batches" / f"{batch.id}.cancel").unlink(missing_ok=True)

    def batches(self, owner: str | None = None) -> list[BatchFacts]:
        """Return the batches of a key, newest first; of all keys without one."""
        return sorted(
            (
                self._counted(one)
                for one in self._all(self.folder / "batches", BatchFacts)
                if owner is None or one.owner == owner
            ),
            key=lambda one: (-one.created_at, one.id),
        )

    def cancel(self, batch: BatchFacts) -> None:
        """Request that a batch's runner end it."""
        write_whole(self.folder / "batches" / f"{batch.id}.cancel", b"")

    def cancelled_at(self, batch: BatchFacts) -> float | None:
        """Return when a batch was cancelled; None if it was not."""
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / "batches" / f"{batch.id}.cancel").stat().st_mtime
        return batch.times.get("cancelled_at")

    def drop_batch(self, batch: BatchFacts) -> None:
        """Delete the record of a batch that has ended. Raises: OSError"""
        (self.folder / "batches" / f"{batch.id}.json").unlink(missing_ok=True)

    def is_cancelled(self, batch: BatchFacts) -> bool:
        """Return whether an open batch has been cancelled."""
        return batch.is_open and (self.folder / "batches" / f"{batch.id}.cancel").exists()

    def tidy(self) -> None:
        """Remove incomplete files of killed processes. Raises: OSError"""
        before_s = time.time() - LEFT_OVER_S
        for path in (*self.folder.glob(f"*/*{NEW}"), *self.folder.glob("files/*.bin")):
            is_whole = path.suffix != NEW and path.with_suffix(".json").exists()
            with contextlib.suppress(FileNotFoundError):
                if not is_whole and path.stat().st_mtime < before_s:
                    logger.info("%s was left half written; it is removed", path)
                    path.unlink()

    def _all(self, folder: Path, kind: type[Any]) -> Iterator[Any]:
        for path in folder.glob("*.json"):
            with contextlib.suppress(DamagedRecord):  # logged and counted in `_read`
                found = self._read(folder, path.stem, kind)
                if found is not None:
                    yield found

    def _read(self, folder: Path, name: str, kind: type[Any]) -> Any:
        """Return the stored object; None if the name is invalid or unknown. Raises:
        DamagedRecord"""
        if not _ID.fullmatch(name):
            return None
        path = folder / f"{name}.json"
        try:
            return json_struct(path.read_bytes(), kind)
        except FileNotFoundError:
            return None
        except InvalidJson as error:
            if path not in self._damaged:
                self._damaged.add(path)
                DAMAGED.labels(folder.name).inc()
                logger.error("%s is damaged and left out: %s", path, error)
            raise DamagedRecord(name) from error


class DamagedRecord(RequestError):
    """The record of a file or batch is unreadable."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"the server's record of {name} is damaged.",
            fix="ask the operator to restore it, or send the file or the batch again.",
            code="record_damaged",
            status=500,
        )
