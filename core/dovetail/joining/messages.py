"""What crosses the first connection of an engine that joins a server on another machine.

An engine opens several: connection 0 is between the processes that start and watch it, and ends
with either; 1 is the engine's own to the server's main process, those after it are to API
processes. All begin with the handshake, a Hello and a Welcome.
"""

from __future__ import annotations

import msgspec

from dovetail.engine.messages import Fault
from dovetail.version import __version__

CONTROL = 0


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """Which engine comes. `launch` tells its start from any other; `spec`, an encoded EngineSpec,
    comes with the first connection only."""

    engine: int
    connection: int
    launch: str
    process: int
    host: str
    version: str = __version__
    spec: bytes = b""

    @property
    def name(self) -> str:
        """Return how messages call this engine."""
        return f"engine {self.engine} (process {self.process} on {self.host})"


class Welcome(msgspec.Struct, frozen=True, kw_only=True):
    """The server's answer: how many connections to open beside the first, or why not."""

    num_connections: int = 0
    refusal: Fault | None = None


class Start(msgspec.Struct, frozen=True, tag="start"):
    """All engines have joined: load the model."""


class Leave(msgspec.Struct, frozen=True, tag="leave"):
    """End the engine, by force after `grace_s`; that is 0 where the server has given it up."""

    grace_s: float


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """The engine's last word."""

    reason: str


class Order(msgspec.Struct, frozen=True):
    """What the server says on the first connection."""

    order: Start | Leave
