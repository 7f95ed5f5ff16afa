"""RankListener: ranks of this executor join; strangers, other versions and other flags do not."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from dovetail.errors import ConfigError
from dovetail.processes.handshake import NONCE_BYTES, PROOF_BYTES
from dovetail_plugins.joining import connections
from dovetail_plugins.joining.peers import JoinRequest
from dovetail_plugins.ranks import rank_listener
from dovetail_plugins.ranks.rank_listener import ListenerAddress, RankListener, join_rank

LIMIT_S = 20.0


def listener(
    *numbers: int, check: Callable[[JoinRequest], str | None] = lambda request: None
) -> RankListener:
    return RankListener(numbers, host="127.0.0.1", is_local=True, check=check)


def joining(address: ListenerAddress, number: int = 1) -> tuple[threading.Thread, list[Any]]:
    """Let a rank join from a thread; return it and what came of it."""
    found: list[Any] = []

    def join() -> None:
        try:
            found.append(join_rank(address, number))
        except ConfigError as error:
            found.append(error)

    thread = threading.Thread(target=join)
    thread.start()
    return thread, found


def test_ranks_join_by_two_connections_and_strangers_do_not() -> None:
    with listener(1) as made, socket.create_connection(("127.0.0.1", made.address.port)) as other:
        other.sendall(b"GET / HTTP/1.1\r\n".ljust(64))
        thread, found = joining(made.address)
        (peer,) = made.wait(LIMIT_S)
        thread.join(LIMIT_S)
        assert peer.request.name.startswith("rank 1 (process ")
        (there,) = found
        for ours, theirs in zip(peer.connections, there, strict=True):
            ours.sendall(b"order")
            assert theirs.recv(5) == b"order"
            theirs.close()
        peer.close()
        while heard := other.recv(64):  # a nonce, and no proof
            assert len(heard) <= NONCE_BYTES or heard.endswith(bytes(PROOF_BYTES))


@pytest.mark.parametrize(
    ("number", "version", "told"),
    [
        (1, "0.0.1", r"rank 1 \(process .*\) runs dovetail 0.0.1"),
        (2, None, "started with other flags"),
        (3, None, "rank 3 .* is not expected; the server is waiting for ranks 1 and 2"),
    ],
)
def test_who_does_not_fit_is_told_on_both_sides(
    number: int, version: str | None, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if version is not None:

        def old(**fields: Any) -> JoinRequest:
            return JoinRequest(**fields, version=version)

        monkeypatch.setattr(rank_listener, "JoinRequest", old)

    def check(request: JoinRequest) -> str | None:
        return "started with other flags" if request.number == 2 else None

    with listener(1, 2, check=check) as made:
        thread, found = joining(made.address, number)
        with pytest.raises(ConfigError, match=told):
            made.wait(LIMIT_S)
        thread.join(LIMIT_S)
        assert isinstance(found[0], ConfigError) and found[0].fix


def test_who_does_not_come_is_named() -> None:
    with listener(1, 3) as made:
        with pytest.raises(ConfigError, match="still missing: ranks 1 and 3"):
            made.wait(0.1)
        closed = msgspec.structs.replace(made.address, port=made.address.port)

        def look() -> None:
            raise ConfigError("the machine is on fire")

        with pytest.raises(ConfigError, match="on fire"):
            made.wait(LIMIT_S, look)
    with pytest.raises(ConfigError, match="cannot reach rank 0's engine"):
        join_rank(closed, 1)


def test_a_rank_that_leaves_before_the_others_have_joined_ends_the_wait() -> None:
    with listener(1, 2) as made:
        thread, found = joining(made.address)
        thread.join(LIMIT_S)
        for connection in found[0]:
            connection.close()
        with pytest.raises(ConfigError, match=r"rank 1 .* disconnected before all"):
            made.wait(LIMIT_S)


def test_a_peer_that_is_refused_keeps_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[socket.socket] = []
    opens = connections.open_connection

    def noted(*place: Any) -> socket.socket:
        opened.append(opens(*place))
        return opened[-1]

    monkeypatch.setattr(connections, "open_connection", noted)
    with listener(1, check=lambda request: "no") as made:
        with pytest.raises(ConfigError, match="no"):
            join_rank(made.address, 1)
        assert [one.fileno() for one in opened] == [-1]
