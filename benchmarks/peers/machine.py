"""The machine around a measurement: CPU time that others took, memory of a process tree.

Linux only (/proc/stat).
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil


def busy_s() -> float:
    """Return the CPU seconds all cores have been busy or stolen since boot."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    ticks = [int(value) for value in fields]
    idle = ticks[3] + ticks[4]
    return (sum(ticks) - idle) / os.sysconf("SC_CLK_TCK")


def family(pid: int) -> list[psutil.Process]:
    """Return a process and its descendants; nothing when it is gone."""
    try:
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def used_s(pid: int) -> float:
    """Return the CPU seconds of a process tree, with children that ended and were waited for."""
    total_s = 0.0
    for process in family(pid):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue  # it ended while we looked
        total_s += times.user + times.system + times.children_user + times.children_system
    return total_s


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process tree."""
    total = 0
    for process in family(pid):
        try:
            total += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue  # it ended while we looked
    return total


@dataclass(slots=True)
class Window:
    """A stretch of time: which share of the machine's cores the pids took, and others."""

    pids: list[int]
    wall_s: float = 0.0
    own_share: float = 0.0
    foreign_share: float = 0.0
    _marks: tuple[float, float, float] = field(default=(0.0, 0.0, 0.0))

    def _now(self) -> tuple[float, float, float]:
        return time.perf_counter(), busy_s(), sum(used_s(pid) for pid in self.pids)

    def __enter__(self) -> Self:
        self._marks = self._now()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        wall_s, all_s, own_s = (b - a for a, b in zip(self._marks, self._now(), strict=True))
        cores_s = wall_s * (os.cpu_count() or 1)
        self.wall_s = wall_s
        self.own_share = own_s / cores_s
        self.foreign_share = max(0.0, all_s - own_s) / cores_s


def wait_quiet(limit_share: float, longest_s: float) -> float:
    """Wait until others leave the machine alone for half a second; return the last share seen."""
    deadline_s = time.perf_counter() + longest_s
    while True:
        with Window(pids=[os.getpid()]) as window:
            time.sleep(0.5)
        if window.foreign_share <= limit_share or time.perf_counter() > deadline_s:
            return window.foreign_share
