"""The servers of this user that run on this machine, by the files that they write.

The file of a killed server is recognized by its process: both the pid and the start time must
match.
"""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path

import psutil

from dovetail.json_values import json_value
from dovetail.processes.own_folder import is_own
from dovetail.server.launch.records import ServerRecord, records_folder

CLOCK_ERROR_S = 2.0
"""How much two readings of a process's start time may differ: boot time is not read exactly."""


def running_servers() -> list[ServerRecord]:
    """Return the running servers, oldest first, without those that serve a model for another one.
    Records of ended servers are removed."""
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
    pids = {record.pid for record in found}
    own = [record for record in found if not _serves_another(record, pids)]
    return sorted(own, key=lambda record: record.started_s)


def _serves_another(record: ServerRecord, pids: Container[int]) -> bool:
    """Return whether a server answers only its parent, which is one of these."""
    process = process_of(record)
    try:
        is_child = process is not None and process.ppid() in pids
    except psutil.Error:  # it has just ended
        return False
    return is_child and record.url.startswith("unix:")


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
