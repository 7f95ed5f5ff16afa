"""Messages on the first connection of an engine that joins a server on another machine.

An engine opens several connections. Connection 0 links the processes that start and watch the
engine, and ends with either of them. Connection 1 links the engine and the server's main process;
later ones lead to the API processes. Each begins with the handshake: a Hello and a Welcome.
"""

from __future__ import annotations

import msgspec

from dovetail.engine.messages import Fault
from dovetail.version import __version__

CONTROL = 0


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """An engine introduces itself. `launch` is unique to one start of it; `spec`, an encoded
    EngineSpec, is sent on the first connection only."""

    engine: int
    connection: int
    launch: str
    process: int
    host: str
    version: str = __version__
    spec: bytes = b""

    @property
    def name(self) -> str:
        """Return the engine's name for messages."""
        return f"engine {self.engine} (process {self.process} on {self.host})"


class Welcome(msgspec.Struct, frozen=True, kw_only=True):
    """The server's answer: how many more connections to open, or why the engine is refused."""

    num_connections: int = 0
    refusal: Fault | None = None


class Start(msgspec.Struct, frozen=True, tag="start"):
    """All engines have joined: load the model."""


class Leave(msgspec.Struct, frozen=True, tag="leave"):
    """End the engine, by force after `grace_s`, which is 0 if the server has given it up."""

    grace_s: float


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """The engine has ended: its last message."""

    reason: str


class Order(msgspec.Struct, frozen=True):
    """A message from the server on the first connection."""

    order: Start | Leave
