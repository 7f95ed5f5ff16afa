"""EventLog: the events of a background response, for clients that disconnect and come back.

An event's index is its `sequence_number`, so a client can resume after the last one it received.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator


class EventLog:
    """The encoded events of one response, stored until the response is deleted."""

    def __init__(self) -> None:
        self._frames: list[bytes] = []
        self._is_closed = False
        self._news = asyncio.Event()
        self.num_bytes = 0

    def add(self, frame: bytes) -> None:
        """Append an event. Mutates: self"""
        self._frames.append(frame)
        self.num_bytes += len(frame)
        self._wake()

    def close(self) -> None:
        """Make readers stop after the last event. Mutates: self"""
        self._is_closed = True
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def after(self, number: int) -> AsyncGenerator[bytes, None]:
        """Yield the events after the given number, including future ones."""
        place = number + 1
        while True:
            news = self._news
            while place < len(self._frames):
                yield self._frames[place]
                place += 1
            if self._is_closed:
                return
            if news is self._news:
                await news.wait()
