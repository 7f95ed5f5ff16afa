"""RayExecutor: ranks as Ray actors, on any machines of a cluster.

Ray places the ranks, starts and ends them. Plans and results go over our own sockets between the
executor and the actors: an actor call takes far longer than sending a plan. Orders, faults and
deaths are then the same as for every executor with several ranks.

Source: Ray's documentation, "Placement Groups".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dovetail.interfaces.data.spec import RunSpec, Selection
from dovetail.interfaces.plugin import Info
from dovetail_plugins.executors._ray_ranks import RayRanks
from dovetail_plugins.ranks.executor import RankLinks, RanksExecutor

STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")


@dataclass(frozen=True, slots=True, kw_only=True)
class RayOptions:
    """Options of ray."""

    address: str | None = field(
        default=None,
        metadata={"help": "address of a cluster; without it RAY_ADDRESS, else one is started"},
    )
    strategy: str = field(
        default="PACK",
        metadata={"help": "placement strategy of Ray: PACK keeps ranks on few machines"},
    )
    cpus: int | None = field(
        default=None,
        metadata={
            "help": "CPUs that Ray reserves for each rank, and its threads on a CPU; as many "
            "as all ranks can have, or 1 beside a GPU"
        },
    )
    gpus: float = field(
        default=1.0, metadata={"help": "GPUs that Ray reserves for each rank on a GPU"}
    )
    resources: Mapping[str, float] = field(
        default_factory=dict,
        metadata={"help": "other resources of the cluster that each rank takes, by name"},
    )
    wait_s: float = field(
        default=30.0, metadata={"help": "how long resources in use are waited for, in seconds"}
    )
    uses_nsight: bool = field(
        default=False, metadata={"help": "run each rank under `nsys profile`"}
    )


class RayExecutor(RanksExecutor):
    """Ranks on the machines of a Ray cluster; they end with the engine."""

    info = Info(summary="ranks as Ray actors, on any machines", requires=("ray",), extra="ray")
    capabilities = RanksExecutor.capabilities | {"places_ranks"}
    Options = RayOptions

    def _start_ranks(self, run: RunSpec, worker: Selection) -> RankLinks:
        return RayRanks(run, worker, self.options)
