"""RankListener: accepts ranks in other processes, on any machine, over TCP.

A rank opens two connections (see `ranks.links`), as `joining.peers` describes.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Collection

import msgspec

from dovetail.errors import ConfigError
from dovetail_plugins.joining.connections import open_connections
from dovetail_plugins.joining.peers import JoinRequest, PeerListener

TOKEN_BYTES = 32
ORDERS, ASIDE = 0, 1
"""The places of a rank's two connections."""
EXECUTOR_FLAG = "--distributed-executor-backend"

Check = Callable[[JoinRequest], str | None]
"""Says why a rank may not join."""


class ListenerAddress(msgspec.Struct, frozen=True, kw_only=True):
    """The address of a listener, and the secret of those who may join."""

    host: str
    port: int
    token: bytes


class RankListener(PeerListener):
    """Accepts the ranks with these numbers. Use it with `with`."""

    kind = "rank"
    address_flag = number_flag = EXECUTOR_FLAG
    number_fix = "give each process another rank."
    ends_on_refusal = True

    def __init__(
        self,
        numbers: Collection[int],
        *,
        host: str,
        is_local: bool,
        check: Check = lambda request: None,
    ) -> None:
        """Listen on this machine's loopback address or on all; `host` is how others reach it."""
        listening = _listening(is_local)
        port = listening.getsockname()[1]
        self._check = check
        self.address = ListenerAddress(host=host, port=port, token=secrets.token_bytes(TOKEN_BYTES))
        place = f"{host}:{port}"
        super().__init__(listening, self.address.token, place, numbers, ASIDE)

    def _compared(self, request: JoinRequest) -> ConfigError | None:
        """Return why a rank may not join, or None."""
        if (reason := self._check(request)) is None:
            return None
        fix = "start every rank with the same version of dovetail and the same flags."
        return ConfigError(reason, where=EXECUTOR_FLAG, fix=fix)


def join_rank(address: ListenerAddress, number: int, facts: bytes = b"") -> list[socket.socket]:
    """Return the two connections of a rank that has joined. `facts` is what it was started with.

    Raises: ConfigError when the listener cannot be reached, or refuses the rank
    """
    launch = secrets.token_hex(8)
    request = JoinRequest(kind="rank", number=number, launch=launch, facts=facts)
    try:
        return open_connections(address.host, address.port, address.token, request)
    except (OSError, EOFError) as error:
        raise ConfigError(
            f"rank {number} cannot reach rank 0's engine at {address.host}:{address.port}: {error}",
            where=EXECUTOR_FLAG,
            fix="check that this machine reaches that address, and see rank 0's log lines.",
        ) from error


def _listening(is_local: bool) -> socket.socket:
    if is_local:
        return socket.create_server(("127.0.0.1", 0))
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))
