"""Which rank is where: the RunSpec of every rank of a run, for ranks on this machine."""

from __future__ import annotations

import msgspec

from dovetail.interfaces.spec import RankSpec, RunSpec


def rank_runs(run: RunSpec) -> list[RunSpec]:
    """Return each rank's own RunSpec. `run.rank` says how many there are."""
    return [_rank_run(run, number) for number in range(run.rank.world_size)]


def _rank_run(run: RunSpec, number: int) -> RunSpec:
    size, tensor_size = run.rank.world_size, run.rank.tensor_size
    rank = RankSpec(
        rank=number,
        world_size=size,
        tensor_rank=number % tensor_size,
        tensor_size=tensor_size,
        local_rank=number,
        local_size=size,
    )
    processors = run.rank_processors[number] if run.rank_processors else run.processors
    return msgspec.structs.replace(
        run,
        rank=rank,
        processors=processors,
        rank_processors=(),
        shows_progress=run.shows_progress and number == 0,
    )
