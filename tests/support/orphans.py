"""Orphans: the children of a program that was killed, for tests. Needs psutil."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterable

import psutil

from dovetail.processes.process import child_environment

WARM = "support.warm_children"
BROWSER = "chrom"
"""A part of the programs of Chromium and its driver."""
TRACKER = "from multiprocessing.resource_tracker import "


def kill_parent(script: str, *words: str, ready: str) -> list[psutil.Process]:
    """Run a Python script, kill it, and return the processes that it had started.

    It prints their ids on one line of standard output; it is killed once a line of its standard
    error, or of theirs, holds the text `ready`. Raises: RuntimeError when none does
    """
    with subprocess.Popen(
        [sys.executable, "-P", "-c", script, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=child_environment(),
    ) as parent:
        assert parent.stdout is not None and parent.stderr is not None
        try:
            children = [psutil.Process(int(word)) for word in parent.stdout.readline().split()]
            lines: list[str] = []
            while not lines or ready not in lines[-1]:
                lines.append(parent.stderr.readline())
                if not lines[-1]:
                    raise RuntimeError("the parent ended before it was killed:\n" + "".join(lines))
        finally:
            parent.kill()
    return children


def own_children(*, recursive: bool = False) -> list[psutil.Process]:
    """Return the living children of this process that a test has started; those of `warm_children`,
    the browser, and what `multiprocessing` starts for itself, stay as long as this process."""
    found = psutil.Process().children(recursive=recursive)
    return [child for child in found if is_running(child) and not _stays(command_of(child))]


def _stays(words: list[str]) -> bool:
    is_browser = bool(words) and BROWSER in words[0]
    return is_browser or WARM in words or any(word.startswith(TRACKER) for word in words)


def command_of(process: psutil.Process) -> list[str]:
    """Return a process's command line; empty if it has ended."""
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return []


def survivors(processes: Iterable[psutil.Process], timeout_s: float) -> list[psutil.Process]:
    """Return those that still run after `timeout_s`; return earlier when none does."""
    deadline_s = time.monotonic() + timeout_s
    left = [process for process in processes if is_running(process)]
    while left and time.monotonic() < deadline_s:
        time.sleep(0.02)
        left = [process for process in left if is_running(process)]
    return left


def is_running(process: psutil.Process) -> bool:
    """Return whether a process has not ended; one that nobody has collected has."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
