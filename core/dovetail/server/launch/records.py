"""The servers that run here: a small file each in a folder of the user, from ready to end."""

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

from dovetail.processes.own_folder import own_folder

logger = logging.getLogger("dovetail.server")


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


@contextlib.contextmanager
def record_removed() -> Iterator[None]:
    """Remove this process's record, if one was written, at the end of the block."""
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # an unwritable folder has no record of ours
            (records_folder() / f"{os.getpid()}.json").unlink(missing_ok=True)
