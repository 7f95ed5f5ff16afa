"""LaunchedRanks: the ranks that a launcher has started, as the first one's executor sees them.

They find one another by torch's store at the launcher's address. The first rank runs in a child
process of the engine; the others join its RankListener, whose address and token are in the store.
"""

from __future__ import annotations

import socket
from contextlib import ExitStack
from datetime import timedelta
from functools import cache
from itertools import count
from typing import TYPE_CHECKING

import msgspec

from dovetail.config.rules.machine.launch import FLAG, Launch, launch_of
from dovetail.errors import ConfigError
from dovetail.interfaces.communicator import JOIN_LIMIT_S
from dovetail.interfaces.data.spec import RunSpec, Selection
from dovetail.processes.process import Child
from dovetail_plugins.executors._local_ranks import (
    channel_of,
    end_children,
    how_child_ended,
    spawn_rank,
)
from dovetail_plugins.joining.comparison import differences
from dovetail_plugins.joining.connections import open_connection
from dovetail_plugins.joining.peers import JoinRequest, Peer
from dovetail_plugins.ranks.layout import rank_run
from dovetail_plugins.ranks.links import WiredLinks
from dovetail_plugins.ranks.messages import Orders, RankTask
from dovetail_plugins.ranks.rank_listener import (
    ASIDE,
    ORDERS,
    ListenerAddress,
    RankListener,
    join_rank,
)
from dovetail_plugins.ranks.wire import socket_wires

if TYPE_CHECKING:
    import torch.distributed as dist

_OF_ONE_RANK = frozenset(
    {
        *("rank.rank", "rank.world_size", "rank.tensor_rank", "rank.stage"),
        *("rank.local_rank", "rank.local_size"),
        *("processors", "rank_processors", "num_threads", "shows_progress", "load_options"),
    }
)
"""Fields of a RunSpec that may differ between ranks; the launcher's rank numbers are compared
elsewhere."""


class RankFacts(msgspec.Struct, frozen=True):
    """What a rank was started with. `has_engine`: its own engine makes the same calls as the
    executor's."""

    run: RunSpec
    has_engine: bool


_numbers = count()
"""How many engines this process has had; every rank makes them in the same order."""


class LaunchedRanks(WiredLinks):
    """The links of the first rank's executor."""

    def __init__(self, run: RunSpec, worker: Selection) -> None:
        self._children: list[Child] = []
        self._peers: list[Peer] = []
        others = range(1, run.rank.world_size)
        orders: list[socket.socket] = []
        try:
            if others:
                orders.append(self._gather(run, worker, others))
            else:
                orders.append(self._spawn_first(run, worker, address=""))
        except BaseException:
            for connection in orders:
                connection.close()
            self._end_ranks(0.0)
            raise
        super().__init__(
            socket_wires([*orders, *(peer.connections[ORDERS] for peer in self._peers)]),
            [channel_of(self._children[0]), *(peer.connections[ASIDE] for peer in self._peers)],
        )

    @property
    def has_engines(self) -> bool:
        """Return whether engines of other processes make the same calls as this one."""
        facts = (msgspec.msgpack.decode(peer.request.facts) for peer in self._peers)
        return any(one["has_engine"] for one in facts)

    def _gather(self, run: RunSpec, worker: Selection, others: range) -> socket.socket:
        """Start the first rank and let the others join. Raises: ConfigError. Mutates: self"""
        launch = launch_of()
        key, store = _engine_key(launch), _store(launch, is_first=True)

        def check(request: JoinRequest) -> str | None:
            return difference(run, request)

        is_local = launch.is_one_machine
        with RankListener(others, host=launch.host, is_local=is_local, check=check) as listener:
            store.set(key, msgspec.json.encode(_reachable(listener.address, launch)).decode())
            connection = self._spawn_first(run, worker, address=_meeting(launch, key))
            try:
                self._peers = listener.wait(JOIN_LIMIT_S)
            except BaseException:
                connection.close()
                raise
        return connection

    def _spawn_first(self, run: RunSpec, worker: Selection, *, address: str) -> socket.socket:
        """Start the first rank. Mutates: self"""
        ours, theirs = socket.socketpair()
        with ExitStack() as stack, theirs:
            stack.enter_context(ours)
            orders = Orders(theirs.fileno())
            child = spawn_rank(_own_run(run), worker, address, orders, is_open=True)
            self._children.append(child)
            stack.pop_all()
        return ours

    def _how_it_ended(self, number: int) -> str:
        if number == 0:
            return how_child_ended(0, self._children[0])
        return self._peers[number - 1].ending

    def _end_ranks(self, grace_s: float) -> None:
        end_children(self._children, grace_s)
        for peer in self._peers:
            peer.close()


def join_first_rank(
    run: RunSpec, worker: Selection, *, has_engine: bool
) -> tuple[RankTask, list[socket.socket]]:
    """Connect this process to the first rank's executor; return its task and the
    connections.

    Raises: ConfigError when it cannot be reached, or was started with other flags
    """
    launch = launch_of()
    key = _engine_key(launch)
    facts = msgspec.msgpack.encode(RankFacts(run, has_engine))
    connections = join_rank(_listener_address(launch, key), launch.rank, facts)
    task = RankTask(run=_own_run(run), worker=worker, address=_meeting(launch, key), is_open=True)
    return task, connections


def difference(run: RunSpec, request: JoinRequest) -> str | None:
    """Return how another rank's run differs from this one's, or None."""
    ours, theirs = msgspec.to_builtins(run), msgspec.msgpack.decode(request.facts)["run"]
    for place, mine, other in differences(ours, theirs):
        may_differ = place in _OF_ONE_RANK or place.partition(".")[0] in _OF_ONE_RANK
        if not may_differ and not place.endswith("path"):
            return (
                f"{request.name} was started with other flags: {place} is {other!r} there and "
                f"{mine!r} at rank 0."
            )
    return None


def _own_run(run: RunSpec) -> RunSpec:
    """Return the RunSpec of this process's rank."""
    rank = run.rank
    return rank_run(run, rank.rank, local_rank=rank.local_rank, local_size=rank.local_size)


def _engine_key(launch: Launch) -> str:
    """Return the key of this engine in the launcher's store; the same on every rank."""
    return f"dovetail-{launch.attempt}-{next(_numbers)}"


def _meeting(launch: Launch, key: str) -> str:
    """Return the rendezvous address of the ranks' communicators (see Membership)."""
    host = f"[{launch.host}]" if ":" in launch.host else launch.host
    return f"tcp://{host}:{launch.port}#{launch.run_id}-{key}"


def _reachable(address: ListenerAddress, launch: Launch) -> ListenerAddress:
    """Return the listener's address as the others reach it."""
    if launch.is_one_machine:
        return msgspec.structs.replace(address, host="127.0.0.1")
    return address


def _listener_address(launch: Launch, key: str) -> ListenerAddress:
    """Wait until the first rank listens. Raises: ConfigError"""
    store = _store(launch, is_first=False)
    try:
        store.wait([key], timedelta(seconds=JOIN_LIMIT_S))
    except RuntimeError as error:
        raise ConfigError(
            f"rank 0 did not start its engine within {JOIN_LIMIT_S:.0f} s of rank {launch.rank}.",
            where=FLAG,
            fix="see rank 0's log lines; every rank must start as many engines, in one order.",
        ) from error
    return msgspec.json.decode(store.get(key), type=ListenerAddress)


@cache
def _store(launch: Launch, *, is_first: bool) -> dist.Store:
    """Return the store at the launcher's address. Raises: ConfigError"""
    import torch.distributed as dist

    opens = is_first and not launch.has_store
    limit = timedelta(seconds=JOIN_LIMIT_S)
    try:
        if not opens:  # torch itself tries for minutes, and says so by a stack of C++
            open_connection(launch.host, launch.port, JOIN_LIMIT_S, "the launcher's store").close()
        return dist.TCPStore(
            launch.host, launch.port, is_master=opens, timeout=limit, wait_for_workers=False
        )
    except (OSError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        how = "open" if opens else "reach"
        raise ConfigError(
            f"rank {launch.rank} cannot {how} the launcher's store at "
            f"{launch.host}:{launch.port}: {reason.rstrip('.')}.",
            where="the variables MASTER_ADDR and MASTER_PORT",
            fix="give another --master-port, and check that every machine reaches the address.",
        ) from error
