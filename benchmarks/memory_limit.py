"""Runs a command under a memory limit, in a control group that is made for it.

    python benchmarks/memory_limit.py 1GiB COMMAND ...

File content that the group reads counts: what exceeds the limit is dropped and read again. Works
with control groups of version 1 and 2. The group is removed when the command ends. It needs to be
root, or the owner of the part of the tree that this process is in. No program of the system's
service manager takes part.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_EMPTY_S = 10.0


class NoLimit(Exception):
    """This machine does not let this process limit memory. The message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A control group. `peak` and `failures` are files' names: the most memory that was in use, and
    how often the limit was met."""

    folder: Path
    peak: str
    failures: str

    def within(self, command: Sequence[str]) -> list[str]:
        """Return a command that runs another one in the group, as the same process."""
        enter = 'echo $$ > "$0" && exec "$@"'
        return ["sh", "-c", enter, str(self.folder / "cgroup.procs"), *command]

    def peak_bytes(self) -> int:
        """Return the most memory that was in use, file content included."""
        return int((self.folder / self.peak).read_text())


@contextlib.contextmanager
def limited(num_bytes: int) -> Iterator[Group]:
    """Make a group for a with block; it must be empty at its end. Raises: NoLimit"""
    group = _made(num_bytes)
    try:
        yield group
    finally:
        end_s = time.monotonic() + _EMPTY_S
        while True:
            try:
                group.folder.rmdir()
                break
            except OSError:  # processes that end are in it for a moment
                if time.monotonic() > end_s:
                    raise
                time.sleep(0.05)


def _made(num_bytes: int) -> Group:
    """Return a new group with a limit. Raises: NoLimit"""
    name = f"dovetail-{os.getpid()}"
    for hierarchy, limit, peak, failures in (
        ("memory", "memory.limit_in_bytes", "memory.max_usage_in_bytes", "memory.failcnt"),
        ("", "memory.max", "memory.peak", "memory.events"),
    ):
        parent = _own_group(hierarchy)
        if parent is None:
            continue
        folder = parent / name
        try:
            if not hierarchy:
                _hand_memory_on(parent)
            folder.mkdir()
            try:
                (folder / limit).write_text(str(num_bytes))
            except OSError:
                folder.rmdir()
                raise
        except OSError as error:
            raise NoLimit(f"no memory limit can be set in {parent}: {error}") from error
        return Group(folder=folder, peak=peak, failures=failures)
    raise NoLimit("this machine has no control groups for memory")


def _own_group(hierarchy: str) -> Path | None:
    """Return the folder of this process's group, None if the hierarchy has no memory controller."""
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        root = _ROOT / hierarchy
        is_own = hierarchy in controllers.split(",") if hierarchy else not controllers
        if is_own and (hierarchy or (root / "cgroup.controllers").is_file()):
            own = root / path.lstrip("/")
            return own if own.is_dir() else root
    return None


def _hand_memory_on(parent: Path) -> None:
    """Let groups within this one limit memory. Raises: OSError: a group with processes cannot"""
    if "memory" not in (parent / "cgroup.subtree_control").read_text().split():
        (parent / "cgroup.subtree_control").write_text("+memory")


def num_bytes(text: str) -> int:
    """Return the bytes of a size such as 800M or 1.5GiB. Raises: ValueError"""
    match = re.fullmatch(r"([\d.]+)\s*([KMG]?)(i?B)?", text)
    if match is None:
        raise ValueError(f"{text} is not a size: write 800M or 1.5GiB.")
    return int(float(match.group(1)) * _UNITS[match.group(2)])


def main() -> int:
    """Run the command; return its exit status, 2 if there is no limit."""
    if len(sys.argv) < 3:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        with limited(num_bytes(sys.argv[1])) as group:
            status = subprocess.run(group.within(sys.argv[2:]), check=False).returncode
            print(f"peak: {group.peak_bytes() >> 20} MiB", file=sys.stderr)
    except (NoLimit, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    return status


if __name__ == "__main__":
    sys.exit(main())
