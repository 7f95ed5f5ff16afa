"""RayEngines: the engines of a server as actors of a Ray cluster, any number to a machine.

Ray places the actors, starts and ends them. Each runs its engine as a headless process does and
connects to the server by itself, so that requests, faults and deaths work as for engines started
manually on other machines.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import msgspec

from dovetail.config.rules.machine.cores import UNBOUND
from dovetail.config.rules.parallel.joining import BACKEND
from dovetail.engine.faults import error_of
from dovetail.errors import ConfigError
from dovetail.interfaces.engine_starter import EngineStarter, EnginesWanted
from dovetail_plugins.executors import _ray_session as session
from dovetail_plugins.executors._ray_engine_actor import EngineActor, EngineBoot, Outcome
from dovetail_plugins.executors._ray_places import Places, gpus_beside, in_order, reason_of

SIZE_FLAG = "--data-parallel-size"
LOOPBACK = "127.0.0.1"
STRATEGY = "PACK"
WAIT_S = 30.0
"""How long resources in use are waited for."""
LEAVE_LIMIT_S = 5.0


class RayEngines(EngineStarter):
    """The actors of one server. The cluster is the one that RAY_ADDRESS names, or one that runs on
    this machine, or one started here, which ends with this process."""

    def __init__(self, wanted: EnginesWanted) -> None:
        self._wanted = wanted
        self._actors: list[Any] = []
        self._ends: list[Any] = []
        self._ray: Any = session.connect(None, flag=BACKEND)
        self._places = Places(self._ray, len(wanted.numbers), what="engines", flag=SIZE_FLAG)
        try:
            resources = self._resources()
            self._reserved_cpus = resources["CPU"]
            self._places.reserve(resources, strategy=STRATEGY, wait_s=WAIT_S)
            environment = {"env_vars": session.variables()}
            actors = self._places.actors(EngineActor, resources, environment)
            self._actors, self._placed = in_order(self._ray, actors, "an engine", flag=BACKEND)
        except BaseException:
            self.close()
            raise
        session.guard()

    def _resources(self) -> dict[str, float]:
        """Return Ray's reservation for each engine. Raises: ConfigError"""
        ranks, places = self._wanted.num_ranks, self._places
        if self._wanted.device == "cuda":
            places.check("GPU", ranks)
            return {"CPU": float(ranks), "GPU": float(ranks)}
        min_cores = ranks * (self._wanted.num_threads or 1)
        places.check("CPU", min_cores)
        cpus = min_cores if self._wanted.num_threads else places.fair_share() // ranks * ranks
        return {"CPU": float(max(min_cores, cpus))}

    @property
    def host(self) -> str:
        """Return this machine's address in the cluster, or the loopback if all are here."""
        own: str = self._ray.util.get_node_ip_address()
        return LOOPBACK if all(place.address == own for place in self._placed) else own

    def start(self, fields: Mapping[str, Any]) -> None:
        """Start all engines, numbered machine by machine, this one first."""
        for number in range(len(self._actors)):
            boot = msgspec.msgpack.encode(self._boot(number, fields))
            self._ends.append(self._actors[number].serve.remote(boot))

    def _boot(self, number: int, fields: Mapping[str, Any]) -> EngineBoot:
        """Return an actor's task. On a CPU its engine keeps to as many threads as Ray has reserved,
        on whichever cores: others of the cluster's programs run there too."""
        nodes = [place.node for place in self._placed]
        first = nodes.index(nodes[number])
        own: dict[str, Any] = {
            "data_parallel_start_rank": self._wanted.numbers[first],
            "data_parallel_size_local": nodes.count(nodes[number]),
        }
        if self._wanted.device == "cpu":
            own["num_threads"] = int(self._reserved_cpus // self._wanted.num_ranks)
            own["cpu_cores"] = fields.get("cpu_cores", UNBOUND)
        return EngineBoot(
            fields={**fields, **own},
            place=number - first,
            gpus=gpus_beside(self._placed, number),
            folder=os.getcwd(),  # noqa: PTH109
        )

    def look(self) -> None:
        """Raise the error with which an engine ended before the server had all."""
        ended, _ = self._ray.wait(self._ends, timeout=0)
        if not ended:
            return
        number = self._ends.index(ended[0])
        name = f"engine {self._wanted.numbers[number]} on {self._placed[number].address}"
        try:
            outcome = msgspec.msgpack.decode(self._ray.get(ended[0]), type=Outcome)
        except self._ray.exceptions.RayError as error:
            raise _early(name, reason_of(error)) from error
        if outcome.fault is None:
            raise _early(name, f"it ended with status {outcome.status}")
        found = error_of(outcome.fault)
        raise type(found)(f"{name}: {found.what}", where=found.where, fix=found.fix)

    def close(self) -> None:
        """End the actors and give their places back."""
        if self._ray is None:
            return
        ray, self._ray = self._ray, None
        if self._ends:  # ended by the server, if it had them
            ray.wait(self._ends, num_returns=len(self._ends), timeout=LEAVE_LIMIT_S)
        for actor in self._actors:
            ray.kill(actor)
        self._places.remove()
        session.disconnect()


def _early(name: str, reason: str) -> ConfigError:
    return ConfigError(
        f"{name} did not come to the server: {reason}.",
        where=BACKEND,
        fix="see its lines in Ray's log, and check that its machine reaches this one.",
    )
