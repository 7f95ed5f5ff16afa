"""RunnerSleep: puts a runner's weights and KV cache to sleep together and wakes each separately.

The cache and all row state are released and allocated again. Weights are offloaded in place at
level 1 and read from the checkpoint again at level 2. When both are back, the runner warms up as at
startup, which captures graphs and measures again.
"""

from __future__ import annotations

from collections.abc import Callable

from dovetail.interfaces.data.step import KVLayout
from dovetail.runner.load.offloaded_memory import OffloadedMemory, offload
from dovetail.runner.model_runner import ModelRunner


class RunnerSleep:
    """Sleep and wake-up of one allocated runner. `release` returns free memory to the system."""

    def __init__(self, runner: ModelRunner, layout: KVLayout, release: Callable[[], None]) -> None:
        self._runner = runner
        self._layout = layout
        self._release = release
        self._weights: OffloadedMemory | None = None
        self._level = 0
        self._has_cache = True

    @property
    def is_asleep(self) -> bool:
        """Return whether the weights are released."""
        return self._weights is not None

    def sleep(self, level: int) -> None:
        """Release the memory. If the weights cannot be saved, nothing is released.
        Raises: RequestError. Mutates: the runner"""
        self._weights = offload(self._runner.weights(), keeps=level == 1)
        self._level = level
        self._runner.release()
        self._has_cache = False
        self._release()

    def wake_up_weights(self) -> None:
        """Load the weights again. Raises: RequestError, ConfigError. Mutates: the runner"""
        if self._weights is None:
            return
        if self._level == 1:
            self._weights.restore()
        else:
            self._runner.load()
        self._weights = None
        self._warm_up()

    def wake_up_cache(self) -> None:
        """Allocate an empty cache again. Raises: ConfigError. Mutates: the runner"""
        if self._has_cache:
            return
        self._runner.allocate(self._layout)
        self._has_cache = True
        self._warm_up()

    def close(self) -> None:
        """Drop the saved weights of an engine that is shut down asleep. May be called twice."""
        if self._weights is not None:
            self._weights.forget()

    def _warm_up(self) -> None:
        if self._has_cache and self._weights is None:
            self._runner.warm_up()
            self._runner.open()
