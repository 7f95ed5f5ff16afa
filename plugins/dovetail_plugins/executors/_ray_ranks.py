"""RayRanks: ranks as Ray actors in a placement group, and the sockets to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from dovetail.errors import ConfigError
from dovetail.interfaces.communicator import JOIN_LIMIT_S
from dovetail.interfaces.data.spec import RunSpec, Selection
from dovetail_plugins.executors import _ray_nsight as nsight
from dovetail_plugins.executors import _ray_session as session
from dovetail_plugins.executors._ray_actor import ActorBoot, RankActor
from dovetail_plugins.executors._ray_places import (
    ActorPlace,
    Places,
    gpus_beside,
    in_order,
    reason_of,
)
from dovetail_plugins.joining.peers import Peer
from dovetail_plugins.ranks.layout import rank_log, rank_run
from dovetail_plugins.ranks.links import WiredLinks
from dovetail_plugins.ranks.messages import RankTask
from dovetail_plugins.ranks.rank_listener import ASIDE, ORDERS, RankListener
from dovetail_plugins.ranks.wire import socket_wires

SIZE_FLAG = "--tensor-parallel-size"
LOOPBACK = "127.0.0.1"


class RayRanks(WiredLinks):
    """The links to actors; rank numbers follow the machines, this one first."""

    def __init__(self, run: RunSpec, worker: Selection, options: Any) -> None:
        self._run, self._worker, self._options = run, worker, options
        self._actors: list[Any] = []
        self._ends: list[Any] = []
        self._peers: list[Peer] = []
        self._store: Any = None
        self._ray: Any = session.connect(options.address)
        size = run.rank.world_size
        self._places = Places(self._ray, size, what="ranks", flag=SIZE_FLAG)
        try:
            wanted = self._resources()
            self._places.reserve(
                wanted, strategy=self._options.strategy, wait_s=self._options.wait_s
            )
            self._actors = self._places.actors(RankActor, wanted, self._environment())
            self._gather(int(wanted["CPU"]))
        except BaseException:
            self._end_ranks(0.0)
            raise
        session.guard()
        orders = socket_wires([peer.connections[ORDERS] for peer in self._peers])
        super().__init__(orders, [peer.connections[ASIDE] for peer in self._peers])

    @property
    def pids(self) -> list[int]:
        """Return the process id of each rank."""
        return [peer.request.process for peer in self._peers]

    @property
    def nodes(self) -> list[str]:
        """Return the Ray node of each rank."""
        return [place.node for place in self._placed]

    def _resources(self) -> dict[str, float]:
        """Return Ray's reservation for each rank. Raises: ConfigError when no cluster of this size
        can hold all ranks"""
        is_gpu = self._run.device == "cuda"
        if is_gpu:
            self._places.check("GPU", self._options.gpus)
        self._places.check("CPU", self._options.cpus or 1)
        cpus = self._options.cpus or self._run.num_threads
        cpus = cpus or (1 if is_gpu else self._places.fair_share())
        wanted = {"CPU": float(cpus), **self._options.resources}
        return wanted | ({"GPU": self._options.gpus} if is_gpu else {})

    def _environment(self) -> dict[str, Any]:
        """Return the runtime environment of Ray in which ranks run."""
        variables = session.variables()
        if self._options.uses_nsight:
            return nsight.environment(variables)
        return {"env_vars": variables}

    def _gather(self, num_threads: int) -> None:
        """Number the actors by machine, make them ranks and let them join. Mutates: self"""
        if self._options.uses_nsight:
            nsight.check(self._ray, self._actors)
        self._actors, places = in_order(self._ray, self._actors, "a rank")
        self._placed = places
        own = self._ray.util.get_node_ip_address()
        is_local = all(place.address == own for place in places)
        host = LOOPBACK if is_local else own
        meeting = self._open_meeting(host)
        with RankListener(range(len(places)), host=host, is_local=is_local) as listener:
            for number in range(len(places)):
                boot = ActorBoot(
                    task=RankTask(
                        run=self._rank_run(number, places, num_threads),
                        worker=self._worker,
                        address=meeting,
                        is_open=True,
                    ),
                    listener=listener.address,
                    gpus=gpus_beside(places, number),
                    log=rank_log(number),
                )
                payload = msgspec.msgpack.encode(boot)
                self._ends.append(self._actors[number].serve.remote(payload))
            self._peers = listener.wait(JOIN_LIMIT_S, self._look)

    def _rank_run(self, number: int, places: Sequence[ActorPlace], num_threads: int) -> RunSpec:
        node = places[number].node
        local_rank = sum(place.node == node for place in places[:number])
        local_size = sum(place.node == node for place in places)
        run = rank_run(self._run, number, local_rank=local_rank, local_size=local_size)
        threads = num_threads if run.device == "cpu" else run.num_threads
        return msgspec.structs.replace(run, num_threads=threads)

    def _open_meeting(self, host: str) -> str:
        """Return the rendezvous address of the ranks' communicators. Mutates: self"""
        if self._run.communicator is None:
            return ""
        import torch.distributed as dist

        self._store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)
        return f"tcp://{host}:{self._store.port}"

    def _look(self) -> None:
        """Raise ConfigError when a rank has ended before it joined."""
        ended, _ = self._ray.wait(self._ends, timeout=0)
        if not ended:
            return
        try:
            reason = f"it ended with status {self._ray.get(ended[0])}"
        except self._ray.exceptions.RayError as error:
            reason = reason_of(error)
        raise ConfigError(
            f"rank {self._ends.index(ended[0])} did not come to its executor: {reason}",
            where=session.FLAG,
            fix="check that every machine of the cluster reaches this one.",
        )

    def _how_it_ended(self, number: int) -> str:
        return self._peers[number].ending

    def _end_ranks(self, grace_s: float) -> None:
        """End actors, placement group and connection. May be called twice. Mutates: self"""
        if self._ray is None:
            return
        ray, self._ray = self._ray, None
        if self._ends:
            ray.wait(self._ends, num_returns=len(self._ends), timeout=max(grace_s, 0.01))
        for actor in self._actors:
            ray.kill(actor)
        self._places.remove()
        for peer in self._peers:
            peer.close()
        self._actors, self._ends, self._store = [], [], None
        session.disconnect()
