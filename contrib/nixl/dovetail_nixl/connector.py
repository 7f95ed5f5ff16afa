"""NIXL: engines give each other blocks over whatever NIXL's backends offer, RDMA for instance.

It is p2p with another carrier. The asking side registers memory and tells where it is, with its
agent's metadata; the giving side writes blocks there from memory of its own, and the notification
that NIXL brings behind them says that they have come. Source: NIXL's documentation, "Python API
Reference".
"""

from __future__ import annotations

import base64
import secrets
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import torch

from dovetail.errors import ConfigError
from dovetail.interfaces.kv_connector import Buffer, StoreFacts
from dovetail.interfaces.plugin import Info
from dovetail_plugins.kv_connectors.p2p import (
    EXTRA,
    P2P,
    Carrier,
    Landing,
    P2POptions,
    landing_bytes,
    lay_into,
)

WRITE_LIMIT_S = 5.0
POLL_S = 0.0002
MOST_MET = 64
"""How many asking agents are remembered; the ones that asked last."""
DONE, ERROR = "DONE", "ERR"


@dataclass(frozen=True, slots=True, kw_only=True)
class NixlOptions(P2POptions):
    """What p2p takes, and how bytes travel."""

    backends: tuple[str, ...] = field(
        default=("UCX",), metadata={"help": "backends of NIXL that may be used"}
    )


class Nixl(P2P):
    """An agent beside every rank."""

    interface_version = 1
    info = Info(
        summary="engine to engine by NIXL: RDMA and what else its backends offer",
        source="https://github.com/ai-dynamo/nixl",
        requires=("nixl",),
    )
    Options = NixlOptions

    @classmethod
    def unavailable_reason(cls) -> str | None:
        """Return how to get NIXL where it is not installed."""
        if super().unavailable_reason() is None:
            return None
        return "NIXL is not installed. Fix: run `pip install nixl`."

    def carrier(self, facts: StoreFacts) -> Carrier:
        """Return an agent of NIXL. Raises: ConfigError"""
        return NixlCarrier(self.options.backends, landing_bytes(facts.block_bytes))


class _Told(msgspec.Struct, array_like=True, frozen=True):
    """What an asking side tells in a question: its agent, where the memory is, and the notification
    that is to come behind the blocks."""

    agent: str
    metadata: bytes
    address: int
    num_bytes: int
    notice: bytes


class _Agent:
    """An agent of NIXL that several threads may call. What it raises is an OSError."""

    def __init__(self, backends: Sequence[str]) -> None:
        """Raises: ConfigError"""
        from nixl._api import nixl_agent, nixl_agent_config  # type: ignore[import-not-found]

        self.name = f"dovetail-{secrets.token_hex(8)}"
        self._agent = nixl_agent(self.name, nixl_agent_config(backends=list(backends)))
        self._lock = threading.Lock()
        self._notices: set[bytes] = set()
        there = self.call("get_plugin_list")
        for missing in [name for name in backends if name not in there]:
            raise ConfigError(
                f"NIXL has no backend {missing}; it has {', '.join(there)}.",
                where=f"{EXTRA}.backends",
                fix="name others, or see why NIXL does not find it.",
            )

    def call(self, method: str, *values: Any) -> Any:
        """Return what a method of the agent returns. Raises: OSError"""
        with self._lock:
            try:
                return getattr(self._agent, method)(*values)
            except Exception as error:  # NIXL's, which have no base of their own
                raise OSError(f"NIXL: {type(error).__name__}: {error}") from error

    def has_come(self, notice: bytes) -> bool:
        """Return, once, whether a notification has come. Raises: OSError. Mutates: self"""
        for notices in self.call("get_new_notifs").values():
            self._notices.update(notices)
        is_here = notice in self._notices
        self._notices.discard(notice)
        return is_here


class _Memory:
    """Host memory that an agent has registered. Shapes: rows [num_bytes] uint8"""

    def __init__(self, agent: _Agent, num_bytes: int) -> None:
        """Raises: OSError"""
        self._agent = agent
        self._rows = torch.empty(num_bytes, dtype=torch.uint8)
        self._registered: Any = agent.call("register_memory", self._rows)
        self.address = self._rows.data_ptr()
        self.view = memoryview(self._rows.numpy())

    def close(self) -> None:
        """Give the memory back; views of it stay valid. May be called twice. Raises: OSError"""
        registered, self._registered = self._registered, None
        if registered is not None:
            self._agent.call("deregister_memory", registered)


class _NixlLanding(Landing):
    """Memory that agents of peers write into."""

    def __init__(self, agent: _Agent, num_bytes: int) -> None:
        """Raises: OSError"""
        self._agent = agent
        self._memory = _Memory(agent, num_bytes)
        self._metadata: bytes = agent.call("get_agent_metadata")
        self._notice = b""
        self.view = self._memory.view

    def name(self) -> str:
        """Return where the memory is, and a new notification to wait for. Mutates: self"""
        self._notice = secrets.token_bytes(8)
        told = _Told(
            agent=self._agent.name,
            metadata=self._metadata,
            address=self._memory.address,
            num_bytes=len(self.view),
            notice=self._notice,
        )
        return base64.b64encode(msgspec.msgpack.encode(told)).decode()

    def wait(self, limit_s: float) -> None:
        """Return once the notification has come. Raises: OSError"""
        deadline_s = time.monotonic() + limit_s
        while not self._agent.has_come(self._notice):
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"NIXL brought no blocks in {limit_s:g} s")
            time.sleep(POLL_S)

    def close(self) -> None:
        """Let go of the memory."""
        self._memory.close()


class NixlCarrier(Carrier):
    """An agent, the memory from which it gives, and the agents that have asked."""

    def __init__(self, backends: Sequence[str], room_bytes: int) -> None:
        """Raises: ConfigError"""
        self._agent = _Agent(backends)
        self._room_bytes = room_bytes
        self._giving = threading.Lock()
        self._own: _Memory | None = None
        self._met: dict[str, tuple[bytes, str]] = {}

    def landing(self, num_bytes: int, *, is_here: bool) -> Landing:
        """Return registered memory, for peers here and elsewhere. Raises: OSError"""
        del is_here
        return _NixlLanding(self._agent, num_bytes)

    def lay(self, blocks: Sequence[Buffer | None], name: str) -> tuple[int, ...]:
        """Write blocks into an asking agent's memory. Raises: OSError, ValueError. Mutates: self"""
        told = msgspec.msgpack.decode(base64.b64decode(name, validate=True), type=_Told)
        with self._giving:
            if self._own is None:
                self._own = _Memory(self._agent, self._room_bytes)
            sizes = lay_into(self._own.view[: told.num_bytes], blocks)
            if num_bytes := sum(size for size in sizes if size > 0):
                self._write(self._own.address, told, num_bytes)
        return sizes

    def _write(self, address: int, told: _Told, num_bytes: int) -> None:
        """Have bytes written, and wait until they are. Raises: OSError. Mutates: self"""
        call, peer = self._agent.call, self._peer(told)
        own = call("get_xfer_descs", [(address, num_bytes, 0)], "DRAM")
        theirs = call("get_xfer_descs", [(told.address, num_bytes, 0)], "DRAM")
        handle = call("initialize_xfer", "WRITE", own, theirs, peer, told.notice)
        try:
            deadline_s = time.monotonic() + WRITE_LIMIT_S
            state = call("transfer", handle)
            while state not in (DONE, ERROR):
                if time.monotonic() > deadline_s:
                    raise TimeoutError(f"NIXL wrote nothing in {WRITE_LIMIT_S:g} s")
                time.sleep(POLL_S)
                state = call("check_xfer_state", handle)
            if state == ERROR:
                raise OSError("NIXL could not write blocks")
        finally:
            call("release_xfer_handle", handle)

    def _peer(self, told: _Told) -> str:
        """Return NIXL's name of an asking agent, which it may not know yet. Raises: OSError.
        Mutates: self"""
        metadata, peer = self._met.pop(told.agent, (b"", ""))
        if metadata != told.metadata:
            if peer:
                self._agent.call("remove_remote_agent", peer)
            peer = self._agent.call("add_remote_agent", told.metadata)
        self._met[told.agent] = (told.metadata, peer)
        if len(self._met) > MOST_MET:
            _, gone = self._met.pop(next(iter(self._met)))
            self._agent.call("remove_remote_agent", gone)
        return peer

    def close(self) -> None:
        """Let go of memory and agents. May be called twice."""
        with self._giving:
            for _, peer in self._met.values():
                self._agent.call("remove_remote_agent", peer)
            self._met.clear()
            if self._own is not None:
                self._own.close()
                self._own = None
