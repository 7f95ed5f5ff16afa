"""The RunSpec of every rank of a run, with its place, and how each logs."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from dovetail.interfaces.data.spec import RunSpec
from dovetail.observability.logging import LogSettings, settings


def rank_runs(run: RunSpec) -> list[RunSpec]:
    """Return each rank's own RunSpec, for ranks on this machine. `run.rank` says how many there
    are."""
    size = run.rank.world_size
    return [rank_run(run, number, local_rank=number, local_size=size) for number in range(size)]


def rank_run(run: RunSpec, number: int, *, local_rank: int, local_size: int) -> RunSpec:
    """Return one rank's own RunSpec, as the `local_rank`-th of its machine."""
    tensor_size = run.rank.tensor_size
    rank = msgspec.structs.replace(
        run.rank,
        rank=number,
        tensor_rank=number % tensor_size,
        local_rank=local_rank,
        local_size=local_size,
        stage=number // tensor_size % run.rank.num_stages,
    )
    processors = run.rank_processors[local_rank] if run.rank_processors else run.processors
    return msgspec.structs.replace(
        run,
        rank=rank,
        processors=processors,
        rank_processors=(),
        shows_progress=run.shows_progress and number == 0,
    )


def rank_log(number: int) -> LogSettings | None:
    """Return this process's log settings with the rank's number before each line; None if it has
    set up no log."""
    known = settings()
    return None if known is None else replace(known, prefix=f"{known.prefix}[rank {number}] ")
