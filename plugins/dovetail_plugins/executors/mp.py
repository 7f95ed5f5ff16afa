"""MpExecutor: one process per rank, all on this machine."""

from __future__ import annotations

from dovetail.interfaces.data.spec import RunSpec, Selection
from dovetail.interfaces.plugin import Info
from dovetail_plugins.executors._local_ranks import LocalRanks
from dovetail_plugins.ranks.executor import RankLinks, RanksExecutor
from dovetail_plugins.ranks.layout import rank_runs


class MpExecutor(RanksExecutor):
    """Each rank has its own process; they end with the engine."""

    info = Info(summary="one process per rank, on this machine")

    def _start_ranks(self, run: RunSpec, worker: Selection) -> RankLinks:
        return LocalRanks(rank_runs(run), worker)
