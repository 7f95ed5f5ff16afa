"""Places: a Ray cluster's reservation for ranks or engines, and the actors that fill it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dovetail.errors import ConfigError
from dovetail.version import __version__
from dovetail_plugins.executors import _ray_session as session

VISIBLE = "CUDA_VISIBLE_DEVICES"


class ActorPlace(msgspec.Struct, frozen=True, kw_only=True):
    """The place of an actor: its Ray node, that machine's address, and the GPUs it was given."""

    node: str
    address: str
    gpus: tuple[str, ...]
    version: str


def own_place() -> bytes:
    """Return the Place of the actor that this process is, encoded."""
    import ray

    context = ray.get_runtime_context()
    gpus = context.get_accelerator_ids().get("GPU", [])
    place = ActorPlace(
        node=context.get_node_id(),
        address=ray.util.get_node_ip_address(),
        gpus=tuple(map(str, gpus)),
        version=__version__,
    )
    return msgspec.msgpack.encode(place)


class Places:
    """A placement group with a bundle for each of `count` actors, called `what` in errors; `flag`
    is the flag with the count. Closed with `remove`."""

    def __init__(self, ray: Any, count: int, *, what: str, flag: str) -> None:
        self._ray, self._count, self._what, self._flag = ray, count, what, flag
        self._nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        self._group: Any = None

    def check(self, name: str, each: float) -> None:
        """Raise ConfigError unless the nodes could hold all actors with so much of a resource."""
        count, nodes = self._count, self._nodes
        room = sum(int(node.get(name, 0) // each) for node in nodes)
        if room >= count:
            return
        total = sum(node.get(name, 0) for node in nodes)
        fix = f"use {self._flag} {room}, or add machines." if room else "add machines."
        raise ConfigError(
            f"{count} {self._what} need {each:g} of the Ray cluster's {name}s each, and it has "
            f"{total:g} on {len(nodes)} {'machine' if len(nodes) == 1 else 'machines'}.",
            where=self._flag,
            fix=fix,
        )

    def fair_share(self) -> int:
        """Return the most CPUs that the nodes can give to each actor."""
        free = int(self._ray.available_resources().get("CPU", 0))
        return fair_share([int(node.get("CPU", 0)) for node in self._nodes], self._count, free)

    def reserve(self, wanted: Mapping[str, float], *, strategy: str, wait_s: float) -> None:
        """Reserve so much for each actor. Raises: ConfigError. Mutates: self"""
        from ray.util.placement_group import placement_group

        group = placement_group([dict(wanted)] * self._count, strategy=strategy)
        self._group = group
        if group.wait(wait_s):
            return
        self.remove()
        free = self._ray.available_resources()
        fitting = min(int(free.get(name, 0) // each) for name, each in wanted.items() if each)
        what = ", ".join(f"{each:g} {name}" for name, each in wanted.items())
        has = ", ".join(f"{free.get(name, 0):g} {name}" for name in wanted)
        raise ConfigError(
            f"the Ray cluster could not place {self._count} {self._what} of {what} within "
            f"{wait_s:g} s; it has {has} free.",
            where=self._flag,
            fix=f"use {self._flag} {fitting}, or end what else runs there."
            if 0 < fitting < self._count
            else "end what else runs there, or add machines.",
        )

    def actors(
        self, actor_class: type[object], wanted: Mapping[str, float], environment: Mapping[str, Any]
    ) -> list[Any]:
        """Return an actor of a class in each bundle."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        return [
            self._ray.remote(actor_class)
            .options(
                num_cpus=wanted["CPU"],
                num_gpus=wanted.get("GPU", 0),
                resources={k: v for k, v in wanted.items() if k not in ("CPU", "GPU")},
                max_restarts=0,
                runtime_env=dict(environment),
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    placement_group=self._group, placement_group_bundle_index=bundle
                ),
            )
            .remote()
            for bundle in range(self._count)
        ]

    def remove(self) -> None:
        """Release the reservation. May be called twice. Mutates: self"""
        if self._group is not None:
            from ray.util.placement_group import remove_placement_group

            remove_placement_group(self._group)
            self._group = None


def in_order(
    ray: Any, actors: Sequence[Any], what: str, *, flag: str = session.FLAG
) -> tuple[list[Any], list[ActorPlace]]:
    """Return actors and their places, machine by machine, this one first.

    Raises: ConfigError when one cannot be started, or has another version
    """
    try:
        answers = ray.get([actor.place.remote() for actor in actors])
    except ray.exceptions.RayError as error:
        raise ConfigError(
            f"Ray could not start {what}: {reason_of(error)}",
            where=flag,
            fix="install the same dovetail on every machine of the cluster.",
        ) from error
    places = [msgspec.msgpack.decode(one, type=ActorPlace) for one in answers]
    for place in places:
        if place.version != __version__:
            raise ConfigError(
                f"the machine {place.address} has dovetail {place.version}, and this one "
                f"{__version__}.",
                where=flag,
                fix="install the same version on every machine of the cluster.",
            )
    here = ray.get_runtime_context().get_node_id()
    order = sorted(range(len(places)), key=lambda i: (places[i].node != here, places[i].node, i))
    return [actors[i] for i in order], [places[i] for i in order]


def gpus_beside(places: Sequence[ActorPlace], number: int) -> tuple[str, ...]:
    """Return the GPUs of all actors on one's machine, in the actors' order."""
    node = places[number].node
    return tuple(gpu for place in places if place.node == node for gpu in place.gpus)


def reason_of(error: Exception) -> str:
    """Return the line of a Ray error that says what happened."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__


def fair_share(cpus: Sequence[int], count: int, free: int) -> int:
    """Return the maximum number of CPUs that nodes with `cpus` CPUs can give to each of `count`
    actors, with `free` in total."""
    for each in range(max(1, min(free // count, max(cpus))), 1, -1):
        if sum(one // each for one in cpus) >= count:
            return each
    return 1
