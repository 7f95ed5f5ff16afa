"""Door: accepts ranks in other processes, on any machine, over TCP.

A rank opens two connections (see `ranks.links`). On each the door's secret is proved (`handshake`);
then comes a Hello, and a Welcome back.
"""

from __future__ import annotations

import logging
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from dovetail.errors import ConfigError
from dovetail.interfaces.communicator import JOIN_LIMIT_S
from dovetail.processes.handshake import (
    HELLO_LIMIT_S,
    challenge,
    make_lasting,
    receive_message,
    respond,
    send_message,
)
from dovetail.version import __version__

logger = logging.getLogger(__name__)

TOKEN_BYTES = 32
LOOK_PERIOD_S = 0.2
ORDERS, ASIDE = "orders", "aside"


class DoorAddress(msgspec.Struct, frozen=True, kw_only=True):
    """The address of a door, and the token that opens it."""

    host: str
    port: int
    token: bytes


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """Identifies a rank. `run` is the rank's RunSpec, encoded, if it made its own; `has_engine`:
    its own engine makes the same calls as the executor's."""

    rank: int
    channel: str
    process: int
    host: str
    version: str = __version__
    run: bytes = b""
    has_engine: bool = False

    @property
    def name(self) -> str:
        """Return how messages call this rank."""
        return f"rank {self.rank} (process {self.process} on {self.host})"


class Welcome(msgspec.Struct, frozen=True, kw_only=True):
    """The door's answer. `refusal` says why the rank may not come in."""

    refusal: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Guest:
    """A rank that has come, by both connections."""

    hello: Hello
    orders: socket.socket
    aside: socket.socket

    @property
    def ending(self) -> str:
        """Return the known reason for the end of a rank that is not a child of this process."""
        return f"{self.hello.name} ended, or lost its connection."

    def close(self) -> None:
        """Close both connections."""
        self.orders.close()
        self.aside.close()


Check = Callable[[Hello], str | None]
"""Says why a rank may not come in."""


class Door:
    """A listening socket. Use it with `with`; those who came in stay when it is closed."""

    def __init__(self, *, host: str, is_local: bool, check: Check) -> None:
        """Listen on this machine's loopback address or on all; `host` is how others reach it, and
        `check` says why a rank may not come in."""
        self._check = check
        self._socket = _listening(is_local)
        self._token = secrets.token_bytes(TOKEN_BYTES)
        port = self._socket.getsockname()[1]
        self.address = DoorAddress(host=host, port=port, token=self._token)

    def __enter__(self) -> Door:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def admit(
        self,
        numbers: set[int],
        limit_s: float = JOIN_LIMIT_S,
        look: Callable[[], None] = lambda: None,
    ) -> dict[int, Guest]:
        """Return these ranks once all have come. `look` is called now and then, and raises when it
        is in vain to wait.

        Raises: ConfigError for a rank that may not come in, and when they do not come in time
        """
        waiting: dict[tuple[int, str], tuple[Hello, socket.socket]] = {}
        wanted = {(number, channel) for number in numbers for channel in (ORDERS, ASIDE)}
        deadline_s = time.monotonic() + limit_s
        try:
            while missing := wanted - set(waiting):
                hello, connection = self._next(deadline_s, {who for who, _ in missing}, look)
                waiting[hello.rank, hello.channel] = (hello, connection)
        except BaseException:
            for _, connection in waiting.values():
                connection.close()
            raise
        return {
            number: Guest(
                hello=waiting[number, ORDERS][0],
                orders=waiting[number, ORDERS][1],
                aside=waiting[number, ASIDE][1],
            )
            for number in numbers
        }

    def _next(
        self, deadline_s: float, missing: set[int], look: Callable[[], None]
    ) -> tuple[Hello, socket.socket]:
        """Return the next rank that connects. Raises: ConfigError, what `look` raises"""
        self._socket.settimeout(LOOK_PERIOD_S)
        while True:
            try:
                connection, _ = self._socket.accept()
            except TimeoutError as error:
                look()
                if time.monotonic() < deadline_s:
                    continue
                raise ConfigError(
                    f"the ranks {', '.join(map(str, sorted(missing)))} did not come to "
                    f"{self.address.host}:{self.address.port} in time.",
                    where="--tensor-parallel-size",
                    fix="see the log lines of those ranks, and check that they reach that address.",
                ) from error
            try:
                return self._greet(connection), connection
            except (OSError, EOFError, msgspec.MsgspecError):  # a stranger, or one who went again
                connection.close()
            except BaseException:
                connection.close()
                raise

    def _greet(self, connection: socket.socket) -> Hello:
        """Return the greeting of the connecting rank. Raises: ConfigError for a rank of another
        version, OSError, EOFError, MsgspecError for a stranger"""
        connection.settimeout(HELLO_LIMIT_S)
        challenge(connection, self._token)
        hello = receive_message(connection, Hello)
        refusal: str | None
        if hello.version != __version__:
            refusal = f"{hello.name} runs dovetail {hello.version}, and rank 0 {__version__}."
        else:
            refusal = self._check(hello)
        send_message(connection, Welcome(refusal=refusal))
        if refusal is not None:
            raise _refused(refusal)
        make_lasting(connection)
        return hello


def come_in(address: DoorAddress, hello: Hello) -> Guest:
    """Return the two connections of a rank that has connected to a door.

    Raises: ConfigError when it cannot be reached, or rejects the rank
    """
    orders = _open(address, msgspec.structs.replace(hello, channel=ORDERS))
    try:
        aside = _open(address, msgspec.structs.replace(hello, channel=ASIDE))
    except BaseException:
        orders.close()
        raise
    return Guest(hello=hello, orders=orders, aside=aside)


def _open(address: DoorAddress, hello: Hello) -> socket.socket:
    try:
        connection = socket.create_connection((address.host, address.port), timeout=HELLO_LIMIT_S)
    except OSError as error:
        raise _unreachable(address, hello, error) from error
    try:
        connection.settimeout(JOIN_LIMIT_S)  # the door takes one after another
        respond(connection, address.token)
        send_message(connection, hello)
        answer = receive_message(connection, Welcome)
        if answer.refusal is not None:
            raise _refused(answer.refusal)
        make_lasting(connection)
    except (OSError, EOFError) as error:
        connection.close()
        raise _unreachable(address, hello, error) from error
    except BaseException:
        connection.close()
        raise
    return connection


def wait_for_listener(host: str, port: int, limit_s: float, what: str) -> None:
    """Wait until a listener accepts at an address, which may not have been started yet; the log
    calls it `what`. Raises: OSError when there is none in time"""
    begun_s, is_told = time.monotonic(), False
    while True:
        try:
            socket.create_connection((host, port), timeout=HELLO_LIMIT_S).close()
            return
        except OSError as error:
            if time.monotonic() - begun_s > limit_s:
                raise
            if not is_told:
                is_told = True
                logger.info("waiting for %s at %s:%d: %s", what, host, port, error)
        time.sleep(LOOK_PERIOD_S)


def _refused(reason: str) -> ConfigError:
    fix = "start every rank with the same version of dovetail and the same flags."
    return ConfigError(reason, where="--distributed-executor-backend", fix=fix)


def _unreachable(address: DoorAddress, hello: Hello, error: Exception) -> ConfigError:
    return ConfigError(
        f"rank {hello.rank} cannot reach rank 0's engine at {address.host}:{address.port}: {error}",
        where="--distributed-executor-backend",
        fix="check that this machine reaches that address, and see rank 0's log lines.",
    )


def _listening(is_local: bool) -> socket.socket:
    if is_local:
        return socket.create_server(("127.0.0.1", 0))
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))
