"""TextThreads: long work on text is done in threads, so that the event loop stays free."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

SHORT_TEXT_CHARS = 4096
"""Texts up to this size are processed in the event loop, where a thread would cost more."""

LONG_WORK = SHORT_TEXT_CHARS + 1
"""A size that always makes `run` use a thread."""

Answer = TypeVar("Answer")


class TextThreads:
    """The threads of one application."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=2, thread_name_prefix="text")

    async def run(self, call: Callable[[], Answer], num_chars: int) -> Answer:
        """Return call(), run in a thread if its text is long."""
        if num_chars <= SHORT_TEXT_CHARS:
            return call()
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)
