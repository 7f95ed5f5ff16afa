"""RayRanks: ranks as Ray actors in a placement group, and the sockets to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dovetail.errors import ConfigError
from dovetail.interfaces.spec import RunSpec, Selection
from dovetail.ranks.door import Door, Guest
from dovetail.ranks.layout import rank_log, rank_run
from dovetail.ranks.links import SocketLinks
from dovetail.ranks.messages import RankTask
from dovetail.version import __version__
from dovetail_plugins.executors import _ray_session as session
from dovetail_plugins.executors._ray_actor import ActorBoot, Place, RankActor

SIZE_FLAG = "--tensor-parallel-size"
LOOPBACK = "127.0.0.1"
NSIGHT = {"t": "cuda,cudnn,cublas,nvtx", "o": "'dovetail_rank_%p'", "stop-on-exit": "true"}
"""Options of `nsys profile`, which write a file per rank into Ray's log folder."""


class RayRanks(SocketLinks):
    """The links to actors; rank numbers follow the machines, this one first."""

    def __init__(self, run: RunSpec, worker: Selection, options: Any) -> None:
        self._run, self._worker, self._options = run, worker, options
        self._actors: list[Any] = []
        self._ends: list[Any] = []
        self._guests: dict[int, Guest] = {}
        self._group: Any = None
        self._store: Any = None
        self._ray: Any = session.connect(options.address)
        try:
            wanted = self._resources()
            self._group = self._reserve(wanted)
            self._start_actors(wanted)
            self._gather(int(wanted["CPU"]))
        except BaseException:
            self._end_ranks(0.0)
            raise
        session.guard()
        guests = [self._guests[number] for number in range(run.rank.world_size)]
        super().__init__([guest.orders for guest in guests], [guest.aside for guest in guests])

    @property
    def pids(self) -> list[int]:
        """Return the process id of each rank."""
        return [self._guests[number].hello.process for number in sorted(self._guests)]

    @property
    def nodes(self) -> list[str]:
        """Return the Ray node of each rank."""
        return [place.node for place in self._placed]

    def _resources(self) -> dict[str, float]:
        """Return what Ray is to reserve for each rank. Raises: ConfigError when no cluster of this
        size can hold all ranks"""
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        size, is_gpu = self._run.rank.world_size, self._run.device == "cuda"
        if is_gpu:
            self._check(nodes, "GPU", "GPUs", self._options.gpus)
        self._check(nodes, "CPU", "CPUs", self._options.cpus or 1)
        cpus = self._options.cpus or self._run.num_threads
        if not cpus:
            free = int(self._ray.available_resources().get("CPU", 0))
            cpus = 1 if is_gpu else _fair_share([node.get("CPU", 0) for node in nodes], size, free)
        wanted = {"CPU": float(cpus), **self._options.resources}
        return wanted | ({"GPU": self._options.gpus} if is_gpu else {})

    def _check(
        self, nodes: Sequence[Mapping[str, float]], name: str, plural: str, each: float
    ) -> None:
        """Raise ConfigError unless the nodes can hold all ranks."""
        size = self._run.rank.world_size
        room = sum(int(node.get(name, 0) // each) for node in nodes)
        if room >= size:
            return
        total = sum(node.get(name, 0) for node in nodes)
        fix = f"use {SIZE_FLAG} {room}, or add machines." if room else "add machines."
        raise ConfigError(
            f"{size} ranks need {each:g} of the Ray cluster's {plural} each, and it has {total:g} "
            f"on {len(nodes)} {'machine' if len(nodes) == 1 else 'machines'}.",
            where=SIZE_FLAG,
            fix=fix,
        )

    def _reserve(self, wanted: Mapping[str, float]) -> Any:
        """Return a placement group with a bundle for each rank. Raises: ConfigError"""
        from ray.util.placement_group import placement_group, remove_placement_group

        size, wait_s = self._run.rank.world_size, self._options.wait_s
        group = placement_group([dict(wanted)] * size, strategy=self._options.strategy)
        if group.wait(wait_s):
            return group
        remove_placement_group(group)
        free = self._ray.available_resources()
        fitting = min(int(free.get(name, 0) // each) for name, each in wanted.items() if each)
        what = ", ".join(f"{each:g} {name}" for name, each in wanted.items())
        has = ", ".join(f"{free.get(name, 0):g} {name}" for name in wanted)
        raise ConfigError(
            f"the Ray cluster could not place {size} ranks of {what} within {wait_s:g} s; it has "
            f"{has} free.",
            where=SIZE_FLAG,
            fix=f"use {SIZE_FLAG} {fitting}, or end what else runs there."
            if fitting
            else "end what else runs there, or add machines.",
        )

    def _start_actors(self, wanted: Mapping[str, float]) -> None:
        """Start an actor in each bundle. Mutates: self"""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        environment: dict[str, Any] = {"env_vars": session.variables()}
        if self._options.uses_nsight:
            environment["nsight"] = NSIGHT
        for bundle in range(self._run.rank.world_size):
            remote = self._ray.remote(RankActor).options(
                num_cpus=wanted["CPU"],
                num_gpus=wanted.get("GPU", 0),
                resources={k: v for k, v in wanted.items() if k not in ("CPU", "GPU")},
                max_restarts=0,
                runtime_env=environment,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    placement_group=self._group,
                    placement_group_bundle_index=bundle,
                ),
            )
            self._actors.append(remote.remote())

    def _places(self) -> list[Place]:
        """Return where each actor is. Raises: ConfigError when one cannot be started"""
        try:
            told = self._ray.get([actor.place.remote() for actor in self._actors])
        except self._ray.exceptions.RayError as error:
            raise ConfigError(
                f"Ray could not start a rank: {_reason(error)}",
                where=session.FLAG,
                fix="install the same dovetail on every machine of the cluster"
                + (", and nsys." if self._options.uses_nsight else "."),
            ) from error
        places = [msgspec.msgpack.decode(one, type=Place) for one in told]
        for place in places:
            if place.version != __version__:
                raise ConfigError(
                    f"the machine {place.address} has dovetail {place.version}, and this one "
                    f"{__version__}.",
                    where=session.FLAG,
                    fix="install the same version on every machine of the cluster.",
                )
        return places

    def _gather(self, num_threads: int) -> None:
        """Number the actors by machine, make them ranks and let them come in. Mutates: self"""
        places = self._places()
        here = self._ray.get_runtime_context().get_node_id()
        order = sorted(
            range(len(places)), key=lambda i: (places[i].node != here, places[i].node, i)
        )
        self._actors = [self._actors[i] for i in order]
        self._placed = places = [places[i] for i in order]
        own = self._ray.util.get_node_ip_address()
        is_local = all(place.address == own for place in places)
        host = LOOPBACK if is_local else own
        meeting = self._open_meeting(host)
        with Door(host=host, is_local=is_local, check=lambda hello: None) as door:
            for number in range(len(places)):
                boot = ActorBoot(
                    task=RankTask(
                        run=self._rank_run(number, places, num_threads),
                        worker=self._worker,
                        address=meeting,
                        is_open=True,
                    ),
                    door=door.address,
                    gpus=_gpus_beside(places, number),
                    log=rank_log(number),
                )
                payload = msgspec.msgpack.encode(boot)
                self._ends.append(self._actors[number].serve.remote(payload))
            self._guests = door.admit(set(range(len(places))), look=self._look)

    def _rank_run(self, number: int, places: Sequence[Place], num_threads: int) -> RunSpec:
        node = places[number].node
        local_rank = sum(place.node == node for place in places[:number])
        local_size = sum(place.node == node for place in places)
        run = rank_run(self._run, number, local_rank=local_rank, local_size=local_size)
        threads = num_threads if run.device == "cpu" else run.num_threads
        return msgspec.structs.replace(run, num_threads=threads)

    def _open_meeting(self, host: str) -> str:
        """Return the address where the ranks' communicators meet. Mutates: self"""
        if self._run.communicator is None:
            return ""
        import torch.distributed as dist

        self._store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)
        return f"tcp://{host}:{self._store.port}"

    def _look(self) -> None:
        """Raise ConfigError when a rank has ended before it came."""
        ended, _ = self._ray.wait(self._ends, timeout=0)
        if not ended:
            return
        try:
            reason = f"it ended with status {self._ray.get(ended[0])}"
        except self._ray.exceptions.RayError as error:
            reason = _reason(error)
        raise ConfigError(
            f"rank {self._ends.index(ended[0])} did not come to its executor: {reason}",
            where=session.FLAG,
            fix="check that every machine of the cluster reaches this one.",
        )

    def _how_it_ended(self, number: int) -> str:
        return self._guests[number].ending

    def _end_ranks(self, grace_s: float) -> None:
        """End actors, placement group and connection. May be called twice. Mutates: self"""
        if self._ray is None:
            return
        ray, self._ray = self._ray, None
        if self._ends:
            ray.wait(self._ends, num_returns=len(self._ends), timeout=max(grace_s, 0.01))
        for actor in self._actors:
            ray.kill(actor)
        if self._group is not None:
            from ray.util.placement_group import remove_placement_group

            remove_placement_group(self._group)
        for guest in self._guests.values():
            guest.close()
        self._actors, self._ends, self._store = [], [], None
        session.disconnect()


def _fair_share(nodes: Sequence[float], size: int, free: int) -> int:
    """Return the most CPUs for each of `size` ranks that nodes with so many CPUs can give."""
    most = max(1, min(free // size, int(max(nodes))))
    for each in range(most, 1, -1):
        if sum(int(cpus) // each for cpus in nodes) >= size:
            return each
    return 1


def _gpus_beside(places: Sequence[Place], number: int) -> tuple[str, ...]:
    """Return the GPUs of all ranks on one's machine, in the order of the ranks."""
    node = places[number].node
    return tuple(gpu for place in places if place.node == node for gpu in place.gpus)


def _reason(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__
