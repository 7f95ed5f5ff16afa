"""ChildChannel: a child process and an asyncio message channel to it.

A message is framed by `process.framed`; raw bytes may follow it, as many as the message says. This
module does not know what the messages mean.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any, Self, TypeVar

import msgspec

from dovetail.processes.process import LENGTH, Child, framed, spawn
from dovetail.processes.uninterrupted import uninterrupted

Message = TypeVar("Message")

SLICE_BYTES = 1 << 18


class ChildChannel:
    """A child process and its channel. `close` ends the process; `pid` is its process id."""

    def __init__(
        self, child: Child, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._child = child
        self._reader = reader
        self._writer = writer
        self.pid = child.pid

    @classmethod
    async def open(cls, module: str, boot: Any, *, pass_fds: Sequence[int] = ()) -> Self:
        """Start a module in a child process with a channel. The child inherits `pass_fds` under the
        same numbers. Raises: ConfigError, OSError"""
        child = spawn(module, boot, has_channel=True, pass_fds=pass_fds)
        try:
            reader, writer = await asyncio.open_unix_connection(
                sock=child.channel, limit=4 * SLICE_BYTES
            )
        except BaseException:
            child.end(0.0)
            raise
        return cls(child, reader, writer)

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return self._child.status is not None

    async def send(self, message: msgspec.Struct, data: bytes = b"") -> None:
        """Send a message and the bytes that follow it. Raises: OSError when the process ends"""
        self._writer.write(framed(msgspec.msgpack.encode(message)))
        rest = memoryview(data)
        while rest:
            self._writer.write(rest[:SLICE_BYTES])
            rest = rest[SLICE_BYTES:]
            await self._writer.drain()
        await self._writer.drain()

    async def receive(self, message_type: type[Message]) -> Message:
        """Return the next message. Raises: IncompleteReadError, OSError when the process ends"""
        (size,) = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
        return msgspec.msgpack.decode(await self._reader.readexactly(size), type=message_type)

    async def receive_bytes(self, size: int) -> bytes:
        """Return the next bytes. Raises: IncompleteReadError, OSError when the process ends"""
        return await self._reader.readexactly(size)

    async def close(self) -> None:
        """Kill the process, whatever it is doing."""
        self._writer.transport.abort()
        await uninterrupted(self._end())

    async def _end(self) -> None:
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()
        await asyncio.get_running_loop().run_in_executor(None, self._child.end, 0.0)
