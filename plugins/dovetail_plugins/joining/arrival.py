"""Arrival: connects the engines of a machine to the server's reception, by several connections.

Knows no engine process; the caller owns the connections.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from contextlib import ExitStack
from dataclasses import dataclass

import msgspec

from dovetail.config.rules.parallel.joining import ADDRESS, SECRET, SECRET_VARIABLE, Meeting
from dovetail.engine.faults import error_of
from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import EngineSpec
from dovetail.joining.messages import CONTROL, Hello, Welcome
from dovetail.processes.handshake import (
    HELLO_LIMIT_S,
    WrongSecret,
    make_lasting,
    receive_message,
    respond,
    send_message,
)

logger = logging.getLogger(__name__)

RETRY_PERIOD_S = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrived:
    """An engine that has been let in: the connection that starts and ends it, and its own ones."""

    spec: EngineSpec
    control: socket.socket
    own: tuple[socket.socket, ...]

    def close(self) -> None:
        """Close all connections."""
        for connection in (self.control, *self.own):
            connection.close()


def arrive(meeting: Meeting, specs: tuple[EngineSpec, ...]) -> list[Arrived]:
    """Return all engines once each has been let in. Blocks.

    Raises: ConfigError when the server does not answer in time, or does not let one in
    """
    launch = secrets.token_hex(8)
    deadline_s = time.monotonic() + meeting.limit_s
    with ExitStack() as stack:
        arrived = []
        for spec in specs:
            one = _arrive(meeting, spec, launch, deadline_s)
            stack.callback(one.close)
            arrived.append(one)
        stack.pop_all()
    return arrived


def _arrive(meeting: Meeting, spec: EngineSpec, launch: str, deadline_s: float) -> Arrived:
    """Return one engine that has been let in. Raises: ConfigError"""
    hello = Hello(
        engine=spec.engine,
        connection=CONTROL,
        launch=launch,
        process=os.getpid(),
        host=socket.gethostname(),
        spec=msgspec.msgpack.encode(spec),
    )
    with ExitStack() as stack:
        control, welcome = _opened(meeting, hello, deadline_s)
        stack.callback(control.close)
        own = []
        for number in range(1, welcome.num_connections + 1):
            asked = msgspec.structs.replace(hello, connection=number, spec=b"")
            connection, _ = _opened(meeting, asked, deadline_s)
            stack.callback(connection.close)
            own.append(connection)
        stack.pop_all()
    return Arrived(spec=spec, control=control, own=tuple(own))


def _opened(meeting: Meeting, hello: Hello, deadline_s: float) -> tuple[socket.socket, Welcome]:
    """Return a connection that has been let in, and the welcome. Raises: ConfigError"""
    connection = _connected(meeting, deadline_s)
    try:
        respond(connection, meeting.secret)
        send_message(connection, hello)
        welcome = receive_message(connection, Welcome)
        if welcome.refusal is not None:
            raise error_of(welcome.refusal)
        make_lasting(connection)
    except WrongSecret as error:
        connection.close()
        raise ConfigError(
            f"the server at {meeting.name} has another secret.",
            where=SECRET,
            fix=f"set {SECRET_VARIABLE} to the same text on every machine.",
        ) from error
    except (OSError, EOFError, msgspec.MsgspecError) as error:
        connection.close()
        raise ConfigError(
            f"what listens at {meeting.name} does not answer as a server that engines join: "
            f"{error}.",
            where=ADDRESS,
            fix="check the address and the port, and see the server's log lines.",
        ) from error
    except BaseException:
        connection.close()
        raise
    return connection, welcome


def _connected(meeting: Meeting, deadline_s: float) -> socket.socket:
    """Return a connection, waiting for a server that is still to start. Raises: ConfigError"""
    is_told = False
    while True:
        try:
            return socket.create_connection((meeting.host, meeting.port), timeout=HELLO_LIMIT_S)
        except OSError as error:
            if time.monotonic() > deadline_s:
                raise ConfigError(
                    f"no server listened at {meeting.name} within {meeting.limit_s:g} s: {error}.",
                    where=ADDRESS,
                    fix="start the server there, with --data-parallel-size-local below "
                    "--data-parallel-size, and check that this machine reaches the address.",
                ) from error
            if not is_told:
                is_told = True
                logger.info("waiting for the server at %s: %s", meeting.name, error)
            time.sleep(RETRY_PERIOD_S)
