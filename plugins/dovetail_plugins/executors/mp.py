"""MpExecutor: one process per rank, all on this machine."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.interfaces.plugin import Info
from dovetail.interfaces.spec import RunSpec, Selection
from dovetail.ranks.executor import RankLinks, RanksExecutor
from dovetail_plugins.executors._local_ranks import LocalRanks


class MpExecutor(RanksExecutor):
    """Each rank has its own process; they end with the engine."""

    info = Info(summary="one process per rank, on this machine")

    def _start_ranks(self, runs: Sequence[RunSpec], worker: Selection) -> RankLinks:
        return LocalRanks(runs, worker)
