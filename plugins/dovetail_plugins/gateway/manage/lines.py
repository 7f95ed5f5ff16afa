"""Lines of JSON in a pipe: how a child process reports its progress to the server."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from dovetail.processes.process import Child, spawn

Line = dict[str, Any]
GRACE_S = 2.0
MAX_LINE_BYTES = 1 << 20


class Lines:
    """The child's end of the pipe."""

    def __init__(self, pipe: int) -> None:
        self._file = os.fdopen(pipe, "wb", buffering=0)

    def write(self, **fields: Any) -> None:
        """Write one line."""
        self._file.write(msgspec.json.encode(fields) + b"\n")


@contextlib.asynccontextmanager
async def lines_of(
    module: str, boot: Line, leftovers: Sequence[str] = ()
) -> AsyncIterator[asyncio.StreamReader]:
    """Start `module` with a boot message and the number of a pipe, yield its lines, and end it."""
    ours, theirs = os.pipe()
    child: Child | None = None
    try:
        try:
            child = await asyncio.to_thread(
                spawn,
                module,
                boot | {"pipe": theirs},
                pass_fds=[theirs],
                leftovers=leftovers,
                has_own_group=True,
            )
        finally:
            os.close(theirs)
        reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(ours, "rb", buffering=0)
        )
        try:
            yield reader
        finally:
            transport.close()
    finally:
        if child is not None:
            await asyncio.shield(asyncio.to_thread(child.end, GRACE_S))
