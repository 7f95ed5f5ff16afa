"""ServerProcess: a whole `dovetail serve` in its own process, for end-to-end tests.

Reads the log for the line that says where it answers. Needs httpx and psutil.
"""

from __future__ import annotations

import contextlib
import re
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from functools import cache
from typing import Any, Self

import httpx
import psutil

from dovetail.processes.process import child_environment
from support.orphans import WARM, command_of, is_running

READY = re.compile(r"^(?!\[.* at unix:).*ready in [\d.]+ s at ((?:https?://|unix:)\S+)")
"""Of the server itself: one of several models has its name in brackets and a Unix socket."""

START_LIMIT_S = 240.0
STOP_LIMIT_S = 60.0
"""Hung, not slow: beside other tests a start may take long."""


class ServerProcess:
    """Started by the constructor; use as a context manager, which kills what is left."""

    def __init__(
        self,
        *args: str,
        env: dict[str, str] | None = None,
        command: str = "serve",
        within: Sequence[str] = (),
    ) -> None:
        """Start `dovetail command args`, after the words of `within`: ip netns exec NAME, say."""
        self.lines: list[str] = []
        self.url = ""
        self._news = threading.Condition()
        self.process = subprocess.Popen(
            [*within, sys.executable, "-m", "dovetail", command, *args],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=_environment() | (env or {}),
        )
        self._known: dict[int, psutil.Process] = {}
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._news:
                self.lines.append(line.rstrip())
                found = READY.search(line)
                self.url = found.group(1) if found else self.url
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    def wait_ready(self) -> Self:
        """Return once the server answers. Raises: RuntimeError with its log when it does not."""
        deadline_s = time.monotonic() + START_LIMIT_S
        with self._news:
            while not self.url:
                is_over = self.process.poll() is not None or time.monotonic() > deadline_s
                if is_over:
                    raise RuntimeError("the server did not start:\n" + "\n".join(self.lines))
                self._news.wait(0.2)
        self.descendants()
        return self

    def client(self, **options: Any) -> httpx.Client:
        """Return an HTTP client of the server."""
        usual: dict[str, Any] = {"timeout": 120.0, "verify": _certificates()}
        return httpx.Client(base_url=self.url, **(usual | options))

    def descendants(self) -> list[psutil.Process]:
        """Return the living processes that this server has ever been seen to have below it."""
        # Once the server has gone, what it left behind is known from before.
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.process.pid).children(recursive=True):
                if WARM not in command_of(child):
                    self._known[child.pid] = child
        return [child for child in self._known.values() if is_running(child)]

    def serving(self) -> list[psutil.Process]:
        """Return the living API processes and the engine, without those that compile constraints:
        they start whenever they like."""
        return [c for c in self.descendants() if not any("compile_w" in x for x in c.cmdline())]

    def engine(self) -> psutil.Process:
        """Return the engine process."""
        return next(c for c in self.descendants() if "dovetail.engine.process" in c.cmdline())

    def wait(self, timeout_s: float = STOP_LIMIT_S) -> int:
        """Return the exit status."""
        return self.process.wait(timeout_s)

    def orphans(self, timeout_s: float) -> list[psutil.Process]:
        """Return the descendants that still live after `timeout_s`."""
        deadline_s = time.monotonic() + timeout_s
        while self.descendants() and time.monotonic() < deadline_s:
            time.sleep(0.02)
        return self.descendants()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *reason: object) -> None:
        left = self.descendants()
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(STOP_LIMIT_S)
        for child in left:
            if is_running(child):
                child.kill()
        self.reader.join(STOP_LIMIT_S)
        assert self.process.stderr is not None
        self.process.stderr.close()


@cache
def _certificates() -> ssl.SSLContext:
    """Return what clients trust, read once: it takes longer than a request."""
    return httpx.create_ssl_context()


def _environment() -> dict[str, str]:
    """Return this process's environment, with its import path and one thread per process."""
    return child_environment() | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
