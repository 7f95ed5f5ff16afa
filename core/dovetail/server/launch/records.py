"""The servers that run on this machine: one small file each, in a folder of the user.

A server writes its file when ready and removes it at its end. The file of a killed server is
recognized by its process: both the pid and the start time must match.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from dovetail.json_values import json_value
from dovetail.processes.own_folder import is_own, own_folder

logger = logging.getLogger("dovetail.server")
CLOCK_ERROR_S = 2.0
"""How much two readings of a process's start time may differ: boot time is not read exactly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRecord:
    """A server: its process, its address, and the names of its models."""

    pid: int
    started_s: float
    url: str
    names: tuple[str, ...]
    path: str


def records_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Return the user's folder of records, which may not exist yet."""
    environ = os.environ if environ is None else environ
    runtime = environ.get("XDG_RUNTIME_DIR")
    if runtime and Path(runtime).is_dir():
        return Path(runtime) / "dovetail"
    return Path(tempfile.gettempdir()) / f"dovetail-{os.getuid()}"


def write_record(url: str, names: Sequence[str], path: str) -> None:
    """Write a record of this process. If that fails, log it and let the server run."""
    own = psutil.Process()
    record = ServerRecord(
        pid=own.pid, started_s=own.create_time(), url=url, names=tuple(names), path=path
    )
    try:
        folder = own_folder(records_folder())
        part = folder / f"{own.pid}.part"
        part.write_text(json.dumps(asdict(record)), encoding="utf-8")
        part.replace(folder / f"{own.pid}.json")
    except OSError as error:
        logger.warning("`dovetail ps` will not show this server: %s", error)


def remove_record() -> None:
    """Remove this process's record, if any."""
    with contextlib.suppress(OSError):  # an unwritable folder has no record of ours
        (records_folder() / f"{os.getpid()}.json").unlink(missing_ok=True)


def running_servers() -> list[ServerRecord]:
    """Return the running servers, oldest first. Records of ended servers are removed."""
    found = []
    folder = records_folder()
    if not is_own(folder):
        return []
    for file in sorted(folder.glob("*.json")):
        record = _read(file)
        if record is not None and process_of(record) is not None:
            found.append(record)
        else:
            file.unlink(missing_ok=True)
    return sorted(found, key=lambda record: record.started_s)


def process_of(record: ServerRecord) -> psutil.Process | None:
    """Return the server's process; None if it has ended, even if its pid was used again."""
    try:
        process = psutil.Process(record.pid)
        is_same = abs(process.create_time() - record.started_s) < CLOCK_ERROR_S
        return process if is_same and process.status() != psutil.STATUS_ZOMBIE else None
    except psutil.Error:
        return None


def _read(file: Path) -> ServerRecord | None:
    """Return a record; None for a file that is not one."""
    try:
        content = json_value(file.read_bytes())
        return ServerRecord(
            pid=int(content["pid"]),
            started_s=float(content["started_s"]),
            url=str(content["url"]),
            names=tuple(map(str, content["names"])),
            path=str(content["path"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


@contextlib.contextmanager
def record_removed() -> Iterator[None]:
    """Remove this process's record, if one was written, at the end of the block."""
    try:
        yield
    finally:
        remove_record()
