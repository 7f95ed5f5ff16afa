"""Placement: the machine of each rank, as far as it is known before the executor starts them."""

from __future__ import annotations

import logging

import msgspec

from dovetail import registry
from dovetail.config.rules.machine.launch import FLAG, Launch, launch_of
from dovetail.config.rules.selections import NO_CHOICE
from dovetail.config.sections.parallel import ParallelConfig
from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import RankSpec

log = logging.getLogger(__name__)
LAUNCHED, PLACES_RANKS = "launched_ranks", "places_ranks"
"""Capabilities of an executor."""


def placed(parallel: ParallelConfig, rank: RankSpec) -> RankSpec:
    """Return this process's position among all ranks. `rank` is the first one on this machine.

    Raises: ConfigError if a launcher has started another number of ranks
    """
    claimed = _capabilities(parallel)
    if PLACES_RANKS in claimed and rank.world_size > 1:
        return msgspec.structs.replace(rank, local_size=1)
    if LAUNCHED not in claimed:
        return rank
    launch = launch_of()
    if launch.size != rank.world_size:
        raise ConfigError(
            f"the launcher started {launch.size} ranks, and the flags divide the model over "
            f"{rank.world_size}.",
            where="--tensor-parallel-size",
            fix=f"use {launch.size} (with --pipeline-parallel-size: their product), or start "
            f"{rank.world_size} processes.",
        )
    return msgspec.structs.replace(
        rank, rank=launch.rank, local_rank=launch.local_rank, local_size=launch.local_size
    )


def places_ranks(parallel: ParallelConfig) -> bool:
    """Return whether the executor chooses its ranks' machines only when it starts them."""
    return PLACES_RANKS in _capabilities(parallel)


def launched(parallel: ParallelConfig) -> Launch | None:
    """Return the launcher's settings, None if the executor starts its ranks itself.

    Raises: ConfigError
    """
    return launch_of() if LAUNCHED in _capabilities(parallel) else None


def max_restarts(limit: int, parallel: ParallelConfig) -> int:
    """Return how often a dead engine is started again: never if a launcher started its ranks."""
    if not limit or launched(parallel) is None:
        return limit
    log.info("--max-engine-restarts has no effect: only the launcher can start the ranks again.")
    return 0


def _capabilities(parallel: ParallelConfig) -> frozenset[str]:
    spec = parallel.distributed_executor_backend
    if spec is None or spec in NO_CHOICE:
        return frozenset()
    capabilities: frozenset[str] = registry.load("executor", spec, where=FLAG).capabilities
    return capabilities
