"""Limits that control groups of Linux put on this process's memory; imports no torch.

Source: Linux, Documentation/admin-guide/cgroup-v1/memory.rst and cgroup-v2.rst
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_ROOT, _OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_VERSIONS = (
    ("", "", "memory.max", "memory.current"),
    ("memory", "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
)
"""Folder, controller, and files with limit and use of version 2 and 1."""
_NO_LIMIT = 1 << 60
"""Version 1 writes a number above it where there is no limit."""


def memory_limits() -> Iterator[tuple[int, int]]:
    """Yield limit and use in bytes of this process's control groups and those around them. Use is
    without file content: the kernel drops it when memory is needed."""
    for name, controller, limit_file, used_file in _VERSIONS:
        root = _ROOT / name
        group = root / _own_group(controller).lstrip("/")
        for folder in (group, *group.parents):
            limit, used = _number(folder / limit_file), _number(folder / used_file)
            if limit is not None and used is not None and limit < _NO_LIMIT:
                yield limit, used - _cached_bytes(_text(folder / "memory.stat"))
            if folder == root:
                break


def _own_group(controller: str) -> str:
    """Return this process's group of a controller, "" if it has none; no controller: version 2.

    In a container it may be a group that is not shown there: those around it are, then.
    """
    lines = (line.split(":", 2) for line in _text(_OWN_GROUPS).splitlines())
    return next((path for _, names, path in lines if controller in names.split(",")), "")


def _cached_bytes(stat: str) -> int:
    """Return the file content of a memory.stat, that of groups within included."""
    found = dict(line.split(None, 1) for line in stat.splitlines() if " " in line)
    words = ("active_file", "inactive_file")
    return sum(int(found.get(f"total_{word}", found.get(word, 0))) for word in words)


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdecimal() else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
