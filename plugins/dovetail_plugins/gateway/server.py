"""ModelServer: the server process of one model, from start to end.

It is a separate `dovetail serve` on a Unix socket in a private folder, and ends with this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import psutil

from dovetail.config.config import DEMO_ORIGIN
from dovetail.errors import DovetailError
from dovetail.processes.process import Child, spawn, taken
from dovetail_plugins.commands._engine_ahead import start_ahead
from dovetail_plugins.gateway.entries import KEPT, ModelEntry
from dovetail_plugins.http_client.connections import ConnectionPool

logger = logging.getLogger("dovetail_plugins.gateway")
MODULE = "dovetail_plugins.commands._server_child"
IMPORTED = "dovetail_plugins.commands._server_imports"
READY_PERIOD_S = 0.05
KILL_WAIT_S = 5.0
KEEP_ALIVE_S = 86400
OWNER_HEADER = "x-dovetail-owner"
"""The header in which a gateway names the owner of a request to the model's server."""


class ModelFailed(DovetailError):
    """A model's server did not start, or a call to it failed."""


class Server(Protocol):
    """The interface of a model's server."""

    @property
    def connections(self) -> ConnectionPool:
        """Return the connections to it."""

    @property
    def status(self) -> int | None:
        """Return its exit status; None while it runs."""

    def used_bytes(self) -> int:
        """Return the main memory used by all its processes."""

    async def wait_ready(self) -> None:
        """Return once it accepts requests. Raises: ModelFailed if it ends before"""

    async def stop(self) -> None:
        """End it gracefully, then by force. May be called after it has ended."""


def start_next() -> None:
    """Start the process of the next model's server: it imports what all of them do meanwhile."""
    start_ahead(MODULE, IMPORTED, {}, has_own_group=True)


class ModelServer:
    """The process, its socket, and connections to it. `when_ready` is called once it is ready."""

    def __init__(self, entry: ModelEntry, when_ready: Callable[[], None] = start_next) -> None:
        self._name, self._when_ready = entry.name, when_ready
        self._grace_s = entry.config.frontend.shutdown_timeout + KILL_WAIT_S
        self._folder = Path(tempfile.mkdtemp(prefix="dovetail-model-"))
        path = str(self._folder / "socket")
        if entry.config.frontend.api_server_count > 1:
            taken(MODULE)  # several share numbers in files, which is decided before imports
        try:
            self._child: Child = spawn(
                MODULE,
                child_fields(entry, path),
                leftovers=[str(self._folder)],
                has_own_group=True,
            )
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        self.connections = ConnectionPool(path)

    @property
    def status(self) -> int | None:
        """Return the exit status; None while it runs."""
        return self._child.status

    def used_bytes(self) -> int:
        """Return the main memory used by all its processes."""
        with contextlib.suppress(psutil.Error):  # it has just ended
            process = psutil.Process(self._child.pid)
            return sum(map(_resident, [process, *process.children(recursive=True)]))
        return 0

    async def wait_ready(self) -> None:
        """Return once it accepts requests. Raises: ModelFailed if it ends before"""
        while (status := self.status) is None:
            with contextlib.suppress(ConnectionError):  # it does not listen yet
                if (await self.connections.request("GET", "/ready")).status == 200:
                    return self._when_ready()
            await asyncio.sleep(READY_PERIOD_S)
        raise ModelFailed(
            f"its server ended with status {status} before it was ready.",
            fix="see the lines above this one in the server's log.",
        )

    async def stop(self) -> None:
        """End it gracefully, then by force."""
        try:
            self._child.send_signal(signal.SIGTERM)
            self.connections.close()
            await asyncio.to_thread(self._child.wait, self._grace_s)
        finally:
            self._child.close_parent_pipe()  # whatever is left of it ends now
            await asyncio.shield(asyncio.to_thread(self._child.end, KILL_WAIT_S))
            shutil.rmtree(self._folder, ignore_errors=True)


def _resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0


def child_fields(entry: ModelEntry, path: str) -> dict[str, Any]:
    """Return the flags of a model's own server, which listens at `path`."""
    config = entry.config
    given = {
        name: config.value(name)
        for name, origin in config.origins.items()
        if origin != DEMO_ORIGIN and name not in KEPT
    }
    own = {
        "uds": path,
        "served_model_name": (*entry.names, *entry.aliases),
        "disable_uvicorn_access_log": True,
        "timeout_keep_alive": KEEP_ALIVE_S,
        "owner_header": OWNER_HEADER,
        "api_keys_file": config.frontend.api_keys_file,
    }
    if not config.observability.log_prefix:
        own["log_prefix"] = f"[{entry.name}] "
    if entry.sleep_level:
        own |= {"enable_sleep_mode": True, "enable_dev_endpoints": True}
    return given | own
