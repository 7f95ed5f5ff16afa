"""TinyWorker: a ModelRunner on the CPU and nothing else, for tests of executors; and methods that
are added to it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from dovetail.errors import RequestError
from dovetail.interfaces.data.spec import RunSpec
from dovetail.interfaces.data.step import CachedLayer, KVLayout, StepPlan, StepResult
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.worker import Worker
from dovetail.runner.model_runner import ModelRunner


class TinyWorker(Worker):
    """Passes every call on to a ModelRunner."""

    info = Info(summary="test worker: a model runner on the CPU", devices=("cpu",))

    def __init__(self, options: Any, run: RunSpec) -> None:
        self.options = options
        self.rank = run.rank.rank
        self._runner = ModelRunner(run, torch.device("cpu"))

    def load(self) -> None:
        """Build the model."""
        self._runner.load()

    def kv_layers(self) -> Sequence[CachedLayer]:
        """Return the caches of the model's layers."""
        return self._runner.kv_layers()

    def free_bytes(self) -> int:
        """Return a fixed size."""
        return 1 << 24

    def allocate(self, layout: KVLayout) -> None:
        """Create cache and rows, and warm up."""
        self._runner.allocate(layout)
        self._runner.warm_up()

    def step(self, plan: StepPlan) -> StepResult:
        """Run one step."""
        return self._runner.step(plan)


class SleepingWorker(TinyWorker):
    """Can sleep, and then reports twice the free memory; knows only level 2."""

    capabilities = frozenset({"sleep"})

    def __init__(self, options: Any, run: RunSpec) -> None:
        super().__init__(options, run)
        self._asleep: set[str] = set()

    def free_bytes(self) -> int:
        """Return a size that depends on whether this worker sleeps."""
        return super().free_bytes() * (2 if self._asleep else 1)

    def sleep(self, level: int) -> None:
        """Sleep. Raises: RequestError"""
        if level != 2:
            raise RequestError("nothing can be kept here.")
        self._asleep = {"weights", "kv_cache"}

    def wake_up(self, tags: Sequence[str]) -> None:
        """Wake up the named parts."""
        self._asleep -= set(tags)


class TinyMethods:
    """Methods for a tiny worker, to be called on every rank."""

    rank: int

    def place(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the rank and what was given."""
        return {"rank": self.rank, "args": args, **kwargs}

    def nap(self, seconds: float) -> None:
        """Take time."""
        time.sleep(seconds)

    def fail(self, rank: int) -> None:
        """Raise on one rank. Raises: ValueError"""
        if rank == self.rank:
            raise ValueError("no luck")

    def lost(self) -> object:
        """Return what cannot be sent."""
        return object()


class HidingMethods(TinyMethods):
    """Methods, one of which the worker has already."""

    def free_bytes(self) -> int:
        """Return nothing of use."""
        return 0
