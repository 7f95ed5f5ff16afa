"""Connects the engines of a machine to the JoinServer of another one, by several connections.

Knows no engine process; the caller owns the connections.
"""

from __future__ import annotations

import secrets
import socket
import time
from contextlib import ExitStack
from dataclasses import dataclass

import msgspec

from dovetail.config.rules.parallel.joining import ADDRESS, Meeting
from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import EngineSpec
from dovetail_plugins.joining.connections import (
    NotListening,
    open_connections,
    talking_to_server,
)
from dovetail_plugins.joining.peers import JoinRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedEngine:
    """An engine that has joined: the connection that starts and ends it, and its own ones."""

    spec: EngineSpec
    control: socket.socket
    own: tuple[socket.socket, ...]

    def close(self) -> None:
        """Close all connections."""
        for connection in (self.control, *self.own):
            connection.close()


def join_engines(meeting: Meeting, specs: tuple[EngineSpec, ...]) -> list[JoinedEngine]:
    """Return all engines once each has joined. Blocks.

    Raises: ConfigError when the server does not answer in time, or refuses one
    """
    launch = secrets.token_hex(8)
    deadline_s = time.monotonic() + meeting.limit_s
    with ExitStack() as stack:
        joined = []
        for spec in specs:
            one = _join(meeting, spec, launch, deadline_s - time.monotonic())
            stack.callback(one.close)
            joined.append(one)
        stack.pop_all()
    return joined


def _join(meeting: Meeting, spec: EngineSpec, launch: str, limit_s: float) -> JoinedEngine:
    """Return one engine that has joined. Raises: ConfigError"""
    facts = msgspec.msgpack.encode(spec)
    request = JoinRequest(kind="engine", number=spec.engine, launch=launch, facts=facts)
    try:
        with talking_to_server(meeting, ADDRESS):
            control, *own = open_connections(
                meeting.host, meeting.port, meeting.secret, request, limit_s=limit_s
            )
    except NotListening as error:
        raise ConfigError(
            f"no server listened at {meeting.name} within {meeting.limit_s:g} s: {error}.",
            where=ADDRESS,
            fix="start the server there, with --data-parallel-size-local below "
            "--data-parallel-size, and check that this machine reaches the address.",
        ) from error
    return JoinedEngine(spec=spec, control=control, own=tuple(own))
