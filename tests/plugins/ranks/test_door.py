"""Door: ranks of this executor come in; strangers, other versions and other flags do not."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from dovetail.errors import ConfigError
from dovetail.processes.handshake import NONCE_BYTES, PROOF_BYTES
from dovetail_plugins.ranks.door import Door, DoorAddress, Hello, come_in

LIMIT_S = 20.0


def hello(rank: int = 1, **changes: Any) -> Hello:
    return Hello(**({"rank": rank, "channel": "", "process": 7, "host": "there"} | changes))


def door(check: Callable[[Hello], str | None] = lambda hello: None) -> Door:
    return Door(host="127.0.0.1", is_local=True, check=check)


def knocking(address: DoorAddress, one: Hello) -> tuple[threading.Thread, list[Any]]:
    """Let a rank come in from a thread; return it and what came of it."""
    found: list[Any] = []

    def knock() -> None:
        try:
            found.append(come_in(address, one))
        except ConfigError as error:
            found.append(error)

    thread = threading.Thread(target=knock)
    thread.start()
    return thread, found


def test_ranks_come_in_by_two_connections_and_strangers_do_not() -> None:
    with door() as made, socket.create_connection(("127.0.0.1", made.address.port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n".ljust(64))
        thread, found = knocking(made.address, hello())
        guest = made.admit({1}, LIMIT_S)[1]
        thread.join(LIMIT_S)
        assert guest.hello.name == "rank 1 (process 7 on there)"
        (there,) = found
        for ours, theirs in ((guest.orders, there.orders), (guest.aside, there.aside)):
            ours.sendall(b"order")
            assert theirs.recv(5) == b"order"
        guest.close()
        there.close()
        while heard := stranger.recv(64):  # a nonce, and no proof
            assert len(heard) <= NONCE_BYTES or heard.endswith(bytes(PROOF_BYTES))


@pytest.mark.parametrize(
    ("one", "told"),
    [
        (hello(version="0.0.1"), r"rank 1 \(process 7 on there\) runs dovetail 0.0.1"),
        (hello(host="other"), "started with other flags"),
    ],
)
def test_who_does_not_fit_is_told_on_both_sides(one: Hello, told: str) -> None:
    def check(who: Hello) -> str | None:
        return "started with other flags" if who.host == "other" else None

    with door(check) as made:
        thread, found = knocking(made.address, one)
        with pytest.raises(ConfigError, match=told):
            made.admit({1}, LIMIT_S)
        thread.join(LIMIT_S)
        assert isinstance(found[0], ConfigError) and found[0].fix


def test_who_does_not_come_is_named() -> None:
    with door() as made:
        with pytest.raises(ConfigError, match="the ranks 1, 3 did not come"):
            made.admit({1, 3}, 0.1)
        closed = msgspec.structs.replace(made.address, port=made.address.port)

        def look() -> None:
            raise ConfigError("the machine is on fire")

        with pytest.raises(ConfigError, match="on fire"):
            made.admit({1}, LIMIT_S, look)
    with pytest.raises(ConfigError, match="cannot reach rank 0's engine"):
        come_in(closed, hello())
