"""Pulls: downloads that run in their own processes, each shared by all who want the same model.

A download ends when the last client that waits for it leaves.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from dovetail.config.checkpoint.sources.hub import Hub
from dovetail.json_values import InvalidJson, json_value
from dovetail_plugins.gateway.manage.lines import Line, lines_of

MODULE = "dovetail_plugins.gateway.manage.pull_child"


class Pull:
    """One download, and the queues of those who wait for it. None in a queue is its end."""

    def __init__(self, name: str, quant: str, hub: Hub) -> None:
        self._boot = {
            "name": name,
            "quant": quant,
            "cache": hub.cache,
            "token": hub.token,
            "is_modelscope": hub.is_modelscope,
        }
        self._queues: set[asyncio.Queue[Line | None]] = set()
        self._past: dict[str, Line] = {}
        self._last: Line = {}
        self.is_ending = False
        self.task = asyncio.ensure_future(self._run())

    async def lines(self) -> AsyncGenerator[Line, None]:
        """Yield the newest line of each file and state so far, then all lines. Raises: what
        starting a process raises"""
        queue: asyncio.Queue[Line | None] = asyncio.Queue()
        for past in self._past.values():
            queue.put_nowait(past)
        self._queues.add(queue)
        try:
            while (line := await queue.get()) is not None:
                yield line
            await self.task
        finally:
            self._queues.discard(queue)
            if not self._queues:
                self.is_ending = True
                self.task.cancel()

    async def _run(self) -> None:
        try:
            async with lines_of(MODULE, self._boot) as reader:
                while data := await reader.readline():
                    with contextlib.suppress(InvalidJson):  # cut off as the process ended
                        self._tell(json_value(data))
            if not {"error"} & self._last.keys() and self._last.get("status") != "success":
                self._tell({"error": "the download ended before it was complete; pull it again."})
        finally:
            for queue in self._queues:
                queue.put_nowait(None)

    def _tell(self, line: Line) -> None:
        self._last = line
        self._past[str(line.get("digest") or line.get("status"))] = line
        for queue in self._queues:
            queue.put_nowait(line)


class Pulls:
    """All downloads of a server."""

    def __init__(self) -> None:
        self._running: dict[tuple[str, str], Pull] = {}

    async def lines(self, name: str, quant: str, hub: Hub) -> AsyncGenerator[Line, None]:
        """Yield the lines of a download, which is begun unless it runs. Mutates: self"""
        key = (name.lower(), quant.lower())
        pull = self._running.get(key)
        if pull is None or pull.is_ending or pull.task.done():
            pull = self._running[key] = Pull(name, quant, hub)
            pull.task.add_done_callback(lambda _: self._forget(key, pull))
        lines = pull.lines()
        async with contextlib.aclosing(lines):
            async for line in lines:
                yield line

    @property
    def num_running(self) -> int:
        """Return the number of downloads."""
        return len(self._running)

    def _forget(self, key: tuple[str, str], pull: Pull) -> None:
        if self._running.get(key) is pull:
            del self._running[key]
