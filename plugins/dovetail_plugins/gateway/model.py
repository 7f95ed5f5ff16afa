"""GatewayModel: the state of one of several models, and what is known of its server."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import math
import time
from typing import Any

from dovetail.errors import RequestError
from dovetail_plugins.gateway.entries import ModelEntry
from dovetail_plugins.gateway.memory_need import MemoryNeed
from dovetail_plugins.gateway.server import Server
from dovetail_plugins.http_client.response import Response

STEADY_S = 60.0
"""After living this long, a model's earlier deaths no longer count."""

LONGEST_PAUSE_S = 60.0
ASK_LIMIT_S = 5.0
"""How long a model's server may take to answer /health, /load or /metrics."""


class ModelState(enum.StrEnum):
    """The state of a model. Only a loaded one takes requests."""

    UNLOADED = "unloaded"
    LOADING = "loading"
    LOADED = "loaded"
    ASLEEP = "asleep"
    WAKING = "waking"
    LEAVING = "leaving"


class GatewayModel:
    """One model. `change` is the task that is changing it; the task returns the error for the
    waiting requests, None on success."""

    def __init__(self, entry: ModelEntry, need: MemoryNeed) -> None:
        self.entry = entry
        self.need = need
        self.state = ModelState.UNLOADED
        self.server: Server | None = None
        self.change: asyncio.Task[RequestError | None] | None = None
        self.num_running = 0
        self.num_waiting = 0
        self.num_deaths = 0
        self.last_death = ""
        self.may_start_s = 0.0
        self.loaded_s = 0.0
        self.last_used_s = 0.0
        self.keep_alive_s: float | None = None
        """How long it stays loaded when idle, as a request asked; None: as its entry says."""
        self.card: dict[str, Any] = {}

    @property
    def name(self) -> str:
        """Return the name used in answers and metrics."""
        return self.entry.name

    @property
    def is_resident(self) -> bool:
        """Return whether it holds memory, or is about to."""
        return self.state is not ModelState.UNLOADED

    @property
    def is_idle(self) -> bool:
        """Return whether no request runs on it or waits for it."""
        return self.num_running == 0 and self.num_waiting == 0

    @property
    def idle_after_s(self) -> float | None:
        """Return after how long without requests it leaves memory; None: never."""
        if self.keep_alive_s is not None:
            return self.keep_alive_s if math.isfinite(self.keep_alive_s) else None
        return self.entry.idle_after_s or None

    def idle_for_s(self) -> float | None:
        """Return in how many seconds it leaves memory if no request comes; None: it stays."""
        after_s = self.idle_after_s
        if after_s is None:
            return None
        passed_s = time.monotonic() - self.last_used_s if self.is_idle else 0.0
        return max(0.0, after_s - passed_s)

    async def ask(self, path: str) -> Response | None:
        """Return its server's answer to a GET; None if it is not loaded or does not answer."""
        if self.server is None or self.state is not ModelState.LOADED:
            return None
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(ASK_LIMIT_S):
                return await self.server.connections.request("GET", path)
        return None

    def to_come(self) -> tuple[MemoryNeed, int]:
        """Return (its need, how many bytes of that it has taken so far).

        Host memory is taken as it is used. Device memory is taken all together, so a model loaded
        there will take no more. A sleeping model has released its memory: nothing counts as still
        to come.
        """
        if self.server is None or self.state is ModelState.ASLEEP:
            return self.need, self.need.num_bytes
        if self.need.is_host:
            return self.need, self.server.used_bytes()
        return self.need, 0 if self.state is ModelState.LOADING else self.need.num_bytes

    def used(self) -> None:
        """Record that it was used now."""
        self.last_used_s = time.monotonic()

    def died(self, how: str) -> None:
        """Record a death. The next request may restart the model immediately after the first death,
        and after growing pauses later. Mutates: self"""
        now_s = time.monotonic()
        is_steady = self.loaded_s > 0 and now_s - self.loaded_s >= STEADY_S
        self.num_deaths = 1 if is_steady else self.num_deaths + 1
        self.last_death = how
        pause_s = 0.0 if self.num_deaths < 2 else 2.0 ** (self.num_deaths - 2)
        self.may_start_s = now_s + min(pause_s, LONGEST_PAUSE_S)
        self.loaded_s = 0.0

    def health_entry(self) -> dict[str, Any]:
        """Return its entry in /health."""
        facts: dict[str, Any] = {"model": self.name, "state": str(self.state)}
        facts |= {"running": self.num_running, "waiting": self.num_waiting}
        if self.num_deaths:
            facts |= {"deaths": self.num_deaths, "reason": self.last_death}
        return facts
