"""Models whose servers are a few lines each, on Unix sockets, for tests of the gateway."""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI

from dovetail.config.config import Config
from dovetail.config.sections.frontend import FrontendConfig
from dovetail.config.sections.gateway import GatewayConfig
from dovetail.server.families import build_apis
from dovetail_plugins.gateway.app import build_gateway
from dovetail_plugins.gateway.catalogue import Catalogue
from dovetail_plugins.gateway.entries import ModelEntry
from dovetail_plugins.gateway.fleet import Fleet
from dovetail_plugins.gateway.memory_need import MemoryNeed
from dovetail_plugins.gateway.model import GatewayModel
from dovetail_plugins.gateway.server import ModelFailed
from dovetail_plugins.http_client.connections import ConnectionPool

SIZE = 100
"""What each model needs, in bytes."""


class FakeServer:
    """Answers like a model's server; `gate` holds back what comes after a stream's first piece."""

    def __init__(self, entry: ModelEntry) -> None:
        self.name = entry.name
        self.folder = tempfile.TemporaryDirectory()
        self.path = str(Path(self.folder.name) / "s")
        self.status: int | None = None
        self.gate = asyncio.Event()
        self.may_start = asyncio.Event()
        self.may_start.set()
        self.calls: list[tuple[str, str]] = []
        self.heads: list[str] = []
        self.num_left = 0
        self.connections = ConnectionPool(self.path)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[Any]] = set()

    def used_bytes(self) -> int:
        return SIZE

    async def wait_ready(self) -> None:
        await self.may_start.wait()
        if self.status is not None:
            raise ModelFailed("its server ended before it was ready.")
        self._server = await asyncio.start_unix_server(self._serve, self.path)

    async def stop(self) -> None:
        await self.die(0)
        self.connections.close()
        self.folder.cleanup()

    async def die(self, status: int) -> None:
        """End at once, with all connections."""
        self.status = status
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            try:
                while True:
                    await self._answer_one(reader, writer)
            except asyncio.CancelledError:
                pass
            finally:
                self._tasks.discard(task)
                writer.close()

    async def _answer_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        method, path, _ = head.split(" ", 2)
        lengths = [x for x in head.lower().split("\r\n") if x.startswith("content-length:")]
        body = await reader.readexactly(int(lengths[0][15:])) if lengths else b""
        self.calls.append((method, path))
        self.heads.append(head)
        if b'"stream":true' in body.replace(b" ", b""):
            await self._stream(reader, writer)
            return
        status, text = self._told(path, body)
        writer.write(
            f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n"
            f"content-length: {len(text)}\r\n\r\n{text}".encode()
        )
        await writer.drain()

    def _told(self, path: str, body: bytes) -> tuple[int, str]:
        if path == "/v1/models":
            return 200, json.dumps({"data": [{"id": self.name, "max_model_len": 64}]})
        if path in ("/api/tags", "/api/ps"):
            return 200, json.dumps({"models": [{"name": self.name, "size": 7}]})
        if path == "/metrics":
            return 200, f'# TYPE x gauge\nx{{engine="0"}} 1\nvllm_y{{model_name="{self.name}"}} 2\n'
        if path.startswith("/v1/responses/"):
            return (200 if path.endswith(self.name) else 404), json.dumps({"by": self.name})
        return 200, json.dumps({"by": self.name, "size": len(body)})

    async def _stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        def piece(text: str) -> bytes:
            return f"{len(text):x}\r\n{text}\r\n".encode()

        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
            b"transfer-encoding: chunked\r\n\r\n" + piece("data: 1\n\n")
        )
        await writer.drain()
        gate = asyncio.ensure_future(self.gate.wait())
        left = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait((gate, left), return_when=asyncio.FIRST_COMPLETED)
            if left.done() and left.result() == b"":
                self.num_left += 1
                raise ConnectionError
        finally:
            gate.cancel()
            left.cancel()
            await asyncio.gather(gate, left, return_exceptions=True)
        writer.write(piece("data: [DONE]\n\n") + b"0\r\n\r\n")
        await writer.drain()


def need_of_size(num_bytes: int) -> MemoryNeed:
    return MemoryNeed(num_bytes=num_bytes, context_tokens=32, is_host=True, free_bytes=lambda: None)


class Rig:
    """A gateway over fake models: the application, the fleet, and every server ever started. Those
    of a catalogue need `sizes` or SIZE bytes."""

    def __init__(
        self,
        *names: str,
        wait_s: float = 5.0,
        limit: int | None = None,
        sizes: dict[str, int] | None = None,
        frontend: dict[str, Any] | None = None,
        gateway: dict[str, Any] | None = None,
        catalogue: Catalogue | None = None,
        max_loaded: int = 0,
        **entry: Any,
    ) -> None:
        self.started: list[FakeServer] = []
        self.holds_starts = False
        self.fails_starts = False
        given = {"loads_at_start": False, "idle_after_s": 0.0, "sleep_level": 0} | entry
        self.models = [
            GatewayModel(
                ModelEntry(names=tuple(name.split(",")), config=Config(), **given),
                need_of_size((sizes or {}).get(name, SIZE)),
            )
            for name in names
        ]
        self.fleet = Fleet(
            self.models,
            start=self.start,
            wait_s=wait_s,
            limit_bytes=limit,
            max_loaded=max_loaded,
            catalogue=catalogue,
            measure=lambda entry: need_of_size((sizes or {}).get(entry.name, SIZE)),
        )
        apis = build_apis().values()
        self.app: FastAPI = build_gateway(
            self.fleet, FrontendConfig(**(frontend or {})), apis, GatewayConfig(**(gateway or {}))
        )

    def start(self, entry: ModelEntry) -> FakeServer:
        server = FakeServer(entry)
        self.started.append(server)
        if self.holds_starts:
            server.may_start.clear()
        if self.fails_starts:
            server.status = 1
        return server

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[httpx.AsyncClient]:
        """Give a client of the application; models end with it."""
        transport = httpx.ASGITransport(app=self.app, raise_app_exceptions=False)
        async with (
            self.fleet,
            httpx.AsyncClient(transport=transport, base_url="http://test", timeout=20) as client,
        ):
            yield client

    def names_started(self) -> list[str]:
        return [server.name for server in self.started]
