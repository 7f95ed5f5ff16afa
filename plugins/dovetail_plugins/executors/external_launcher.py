"""ExternalLauncherExecutor: ranks that a launcher such as torchrun has started.

The first rank's process has the engine that serves; the others are ranks that it drives. Offline,
each process makes an LLM with its own engine, and all of them run in lockstep.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from typing import Any

from dovetail.interfaces.data.spec import RunSpec, Selection
from dovetail.interfaces.data.step import CachedLayer, KVLayout, StepPlan
from dovetail.interfaces.executor import Executor, Loaded, PendingStep, Preparation, WorkerCall
from dovetail.interfaces.plugin import Info
from dovetail_plugins.executors._in_step import InStep
from dovetail_plugins.executors._launched_ranks import LaunchedRanks, join_first_rank
from dovetail_plugins.ranks.executor import RankLinks, RanksExecutor
from dovetail_plugins.ranks.layout import rank_log
from dovetail_plugins.ranks.remote import on_launcher_gone, serve_remote


class ExternalLauncherExecutor(Executor):
    """The executor for this process's rank: the first drives all, the others follow."""

    info = Info(summary="ranks that a launcher such as torchrun starts", requires=("torch",))
    capabilities = RanksExecutor.capabilities | {"launched_ranks"}

    def __init__(self, options: Any, run: RunSpec, worker: Selection) -> None:
        self.options = options
        part = InStep if run.rank.rank else FirstRank
        self._part: Executor = part(options, run, worker)

    @classmethod
    def follow(cls, run: RunSpec, worker: Selection) -> int:
        """Be a rank that the first rank's engine drives; return the exit status.

        Raises: ConfigError
        """
        on_launcher_gone(_leave)
        task, connections = join_first_rank(run, worker, has_engine=False)
        # From here on the first rank says when to end: requests may still be under way.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        log = rank_log(run.rank.rank)
        if log is not None:
            log.apply()
        return serve_remote(task, connections)

    def kv_layers(self) -> Sequence[CachedLayer]:
        """Return the cached data of the model's attention layers, in layer order."""
        return self._part.kv_layers()

    def free_bytes(self) -> int:
        """Return the bytes that the KV cache may take."""
        return self._part.free_bytes()

    def agreed(self, layout: KVLayout) -> KVLayout:
        """Return the layout that the first rank's engine has chosen."""
        return self._part.agreed(layout)

    def allocate(self, layout: KVLayout) -> None:
        """Create the KV cache and warm up. Raises: ConfigError when it cannot."""
        self._part.allocate(layout)

    def submit(self, plan: StepPlan) -> PendingStep:
        """Send a step to every rank, or wait for it from the first one."""
        return self._part.submit(plan)

    def prepare(self, item: Preparation) -> Loaded:
        """Load a constraint on every rank. The future raises RequestError."""
        return self._part.prepare(item)

    def sleep(self, level: int) -> None:
        """Let every rank give its memory back. Raises: RequestError"""
        self._part.sleep(level)

    def wake_up(self, tags: Sequence[str]) -> None:
        """Let every rank take its memory again. Raises: RequestError, ConfigError"""
        self._part.wake_up(tags)

    def collective_rpc(self, call: WorkerCall) -> list[Any]:
        """Run a method on every rank's worker; return the answers that this process receives: all
        in the first rank's, only their own in the others. Raises: RequestError"""
        return self._part.collective_rpc(call)

    def check(self) -> None:
        """Raise EngineDead when a rank is gone, or after shutdown."""
        self._part.check()

    def on_death(self, callback: Callable[[str], None]) -> None:
        """Register a callback for the unexpected end of a rank; it is called from any thread."""
        self._part.on_death(callback)

    def shutdown(self) -> None:
        """End all ranks, or leave once the first one has. May be called twice."""
        self._part.shutdown()


class FirstRank(RanksExecutor):
    """Drives all ranks, from the first one's process."""

    info = ExternalLauncherExecutor.info

    def _start_ranks(self, run: RunSpec, worker: Selection) -> RankLinks:
        self._launched = LaunchedRanks(run, worker)
        return self._launched

    def prepare(self, item: Preparation) -> Loaded:
        """Load a constraint on every rank. If other engines run in lockstep with this one, it is
        loaded on return: all of them must queue its request in the same step."""
        done = super().prepare(item)
        if self._launched.has_engines:
            wait([done])
        return done


def _leave() -> None:
    """End this process: the launcher that started it is gone."""
    signal.raise_signal(signal.SIGKILL)
