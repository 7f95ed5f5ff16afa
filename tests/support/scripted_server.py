"""A server whose answers a test writes itself, byte by byte."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from dovetail_plugins.bench.client import RequestTarget, target_of

Writer = asyncio.StreamWriter
Handler = Callable[[dict[str, Any], Writer], Awaitable[None]]


class Scripted:
    """Reads one request per connection and lets a script answer it."""

    def __init__(self, handler: Handler, models: list[dict[str, Any]] | None = None) -> None:
        self.handler = handler
        self.models = [{"id": "m"}] if models is None else models
        self.bodies: list[dict[str, Any]] = []
        self.heads: list[str] = []
        self.url = ""
        self.tasks: set[asyncio.Task[Any]] = set()

    async def __call__(self, reader: asyncio.StreamReader, writer: Writer) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        try:
            await self._answer(reader, writer)
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: Writer) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.heads.append(head)
        if head.startswith("GET"):
            data = json.dumps({"data": self.models}).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
            return
        length = int(head.lower().split("content-length: ")[1].split("\r\n")[0])
        self.bodies.append(json.loads(await reader.readexactly(length)))
        await self.handler(self.bodies[-1], writer)


@asynccontextmanager
async def serving(script: Scripted) -> AsyncIterator[RequestTarget]:
    server = await asyncio.start_server(script, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    script.url = f"http://127.0.0.1:{port}"
    try:
        yield target_of(script.url, "/v1/completions", api_key="k", timeout_s=5)
    finally:
        server.close()
        await asyncio.gather(*script.tasks)
