"""RunnerSleep: a runner's weights and KV cache fall asleep together and wake up one by one.

The cache and all that belongs to rows is let go and made again; weights are offloaded in place at
level 1 and read from the checkpoint again at level 2. Once both are there the runner warms up as it
did at its start, which captures and measures what it needs to.
"""

from __future__ import annotations

from collections.abc import Callable

from dovetail.interfaces.step import KVLayout
from dovetail.runner.model_runner import ModelRunner
from dovetail.runner.offloaded_memory import OffloadedMemory, offload


class RunnerSleep:
    """The sleep of one runner that has been allocated. `release` returns free memory."""

    def __init__(self, runner: ModelRunner, layout: KVLayout, release: Callable[[], None]) -> None:
        self._runner = runner
        self._layout = layout
        self._release = release
        self._weights: OffloadedMemory | None = None
        self._level = 0
        self._has_cache = True

    def sleep(self, level: int) -> None:
        """Release the memory. Raises: RequestError when weights cannot be kept: then nothing
        sleeps. Mutates: the runner"""
        self._weights = offload(self._runner.weights(), keeps=level == 1)
        self._level = level
        self._runner.release()
        self._has_cache = False
        self._release()

    def wake_up_weights(self) -> None:
        """Have the weights again. Raises: RequestError, ConfigError. Mutates: the runner"""
        if self._weights is None:
            return
        if self._level == 1:
            self._weights.restore()
        else:
            self._runner.load()
        self._weights = None
        self._warm_up()

    def wake_up_cache(self) -> None:
        """Have an empty cache again. Raises: ConfigError. Mutates: the runner"""
        if self._has_cache:
            return
        self._runner.allocate(self._layout)
        self._has_cache = True
        self._warm_up()

    def close(self) -> None:
        """Drop the weights that are kept for an engine that ends asleep. May be called twice."""
        if self._weights is not None:
            self._weights.forget()

    def _warm_up(self) -> None:
        if self._has_cache and self._weights is None:
            self._runner.warm_up()
            self._runner.transfers.open()
