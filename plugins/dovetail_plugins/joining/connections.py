"""How a process joins one of another machine: its connections to that one's PeerListener."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import msgspec

from dovetail.config.rules.parallel.joining import SECRET, SECRET_VARIABLE, Meeting
from dovetail.engine.faults import error_of
from dovetail.errors import ConfigError
from dovetail.processes.handshake import (
    HELLO_LIMIT_S,
    WrongSecret,
    make_lasting,
    receive_message,
    respond,
    send_message,
)
from dovetail_plugins.joining.peers import POLL_PERIOD_S, JoinReply, JoinRequest

logger = logging.getLogger(__name__)


class NotListening(OSError):
    """Nothing listens at an address."""


@contextmanager
def talking_to_server(meeting: Meeting, where: str) -> Iterator[None]:
    """Raise ConfigError for what a server does wrong in a with block. `where` is the flag that has
    its address. Raises: NotListening, as it came"""
    try:
        yield
    except NotListening:
        raise
    except WrongSecret as error:
        raise ConfigError(
            f"the server at {meeting.name} has another secret.",
            where=SECRET,
            fix=f"set {SECRET_VARIABLE} to the same text on every machine.",
        ) from error
    except (OSError, EOFError, msgspec.MsgspecError) as error:
        raise ConfigError(
            f"what listens at {meeting.name} does not answer as a server that engines join: "
            f"{error}.",
            where=where,
            fix="check the address and the port, and see the server's log lines.",
        ) from error


def open_connections(
    host: str, port: int, secret: bytes, request: JoinRequest, *, limit_s: float = 0.0
) -> list[socket.socket]:
    """Return the connections of a peer that has joined, in order. It waits `limit_s` for a listener
    that is still to start.

    Raises: ConfigError if it is refused; NotListening, WrongSecret, OSError, EOFError, MsgspecError
    """
    deadline_s = time.monotonic() + limit_s
    with ExitStack() as stack:
        connections: list[socket.socket] = []
        num_more = 0
        while len(connections) <= num_more:
            left_s = deadline_s - time.monotonic()
            connection = open_connection(host, port, left_s, "the server")
            stack.callback(connection.close)
            respond(connection, secret)
            send_message(connection, request)
            reply = receive_message(connection, JoinReply)
            if reply.refusal is not None:
                raise error_of(reply.refusal)
            make_lasting(connection)
            num_more = reply.num_more
            connections.append(connection)
            request = msgspec.structs.replace(request, connection=len(connections), facts=b"")
        stack.pop_all()
    return connections


def open_connection(host: str, port: int, limit_s: float, what: str) -> socket.socket:
    """Return a connection to a listener, which may be still to start; the log calls it `what`.

    Raises: NotListening when there is none in time
    """
    deadline_s, is_logged = time.monotonic() + limit_s, False
    while True:
        try:
            return socket.create_connection((host, port), timeout=HELLO_LIMIT_S)
        except OSError as error:
            if time.monotonic() > deadline_s:
                raise NotListening(str(error)) from error
            if not is_logged:
                is_logged = True
                logger.info("waiting for %s at %s:%d: %s", what, host, port, error)
        time.sleep(POLL_PERIOD_S)
