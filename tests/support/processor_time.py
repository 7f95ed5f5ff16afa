"""What each test costs: the processor time of its process and of all processes that it started.

`pytest --processor-time FILE` writes a line for each test, and `python -m support.processor_time
FILE` (with `tests` on the PYTHONPATH) lists where the time went, by folder and by file. Wall time
says little where several workers share two cores that are always busy.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

TICKS = os.sysconf("SC_CLK_TCK")
UTIME, CSTIME = 11, 15
"""The range of fields of /proc/PID/stat, counted after the name, that hold a process's user and
system time and those of its children that have ended."""
PARTS = ("setup", "call", "teardown")
LISTED = 60


def descendants_seconds(pid: int | str = "self") -> float:
    """Return the processor seconds of all living descendants of a process, and of their children
    that have ended."""
    total = 0.0
    for listing in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = listing.read_text(encoding="utf-8").split()
        except OSError:  # a thread or a process ends at any time
            continue
        for child in children:
            total += _seconds(child) + descendants_seconds(child)
    return total


def _seconds(pid: str) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[UTIME:CSTIME])) / TICKS


class ProcessorTime:
    """Writes the seconds that the parts of each test take, in this process and in its children."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("a", encoding="utf-8", buffering=1)
        self.before = (0.0, 0.0)
        self.line: dict[str, object] = {}

    def _passed(self) -> tuple[float, float]:
        """Return the seconds since the call before: this process's, and its descendants'."""
        used = os.times()
        now = (time.process_time(), used[2] + used[3] + descendants_seconds())
        own, children = now[0] - self.before[0], now[1] - self.before[1]
        self.before = now
        return round(own, 4), round(max(children, 0.0), 2)

    def _write(self, name: str, **parts: tuple[float, float]) -> None:
        self.file.write(json.dumps({"test": name, **parts}) + "\n")

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Iterator[None]:
        self._write("(start)", call=self._passed())
        result = yield
        self._write("(collection)", call=self._passed())
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._write("(between tests)", call=self._passed())
        self.line = {}
        result = yield
        self._write(item.nodeid, **self.line)  # type: ignore[arg-type]
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Iterator[None]:
        return (yield from self._part("setup"))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self) -> Iterator[None]:
        return (yield from self._part("call"))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self) -> Iterator[None]:
        return (yield from self._part("teardown"))

    def _part(self, name: str) -> Iterator[None]:
        try:
            return (yield)
        finally:
            self.line[name] = self._passed()


def main(path: str, listed: int = LISTED) -> None:
    """Print the seconds of all files together, of folders, of files and of tests, most first."""
    tables: dict[str, Counter[str]] = {"folder": Counter(), "file": Counter(), "test": Counter()}
    parts: dict[str, Counter[str]] = {}
    for line in map(json.loads, Path(path).read_text(encoding="utf-8").splitlines()):
        name = line.pop("test")
        file = name.partition("::")[0]
        for part, (own, children) in line.items():
            keys = (_folder(file), file, name)
            for key, (title, table) in zip(keys, tables.items(), strict=True):
                table[key] += own + children
                parts.setdefault(title + key, Counter()).update(
                    {part: own + children, "children": children}
                )
    print(f"{sum(tables['file'].values()):.0f} s")
    for title, table in tables.items():
        print(f"\n{title:80} {'s':>7} {' '.join(f'{part:>8}' for part in (*PARTS, 'children'))}")
        for key, seconds in table.most_common(listed):
            cells = " ".join(f"{parts[title + key][part]:8.1f}" for part in (*PARTS, "children"))
            print(f"{key[-80:]:80} {seconds:7.1f} {cells}")


def _folder(file: str) -> str:
    return "/".join(file.split("/")[: 3 if file.startswith("tests/plugins") else 2])


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
