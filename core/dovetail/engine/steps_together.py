"""StepsTogether: engines that share experts run as many steps as each other, in memory they share.

Each engine counts the steps that it has begun. One that has begun fewer than another must run a
step without requests, for the other's tokens need its experts; nobody else has to be asked. Knows
no model and no message.
"""

from __future__ import annotations

import mmap
import time
from pathlib import Path

LOOK_S, REST_S = 0.002, 0.02
"""How often an engine without work looks whether another has begun a step: soon after steps, and
once there has been none for REST_AFTER_S. The first step after that is so much later."""
REST_AFTER_S = 1.0
BYTES = 8
FILE = "steps"


def create(folder: Path, num_engines: int) -> None:
    """Make the file of as many engines in a folder."""
    (folder / FILE).write_bytes(bytes(2 * BYTES * num_engines))


class StepsTogether:
    """The counters, as the engine in one `place` of them sees them."""

    def __init__(self, folder: Path, place: int, num_engines: int) -> None:
        with (folder / FILE).open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 2 * BYTES * num_engines)
        self._numbers = memoryview(self._memory).cast("q")
        self._place, self._num_engines = place, num_engines
        self._is_open = True
        self._began_s = time.monotonic()

    @property
    def look_again_s(self) -> float:
        """Return how long this engine may look away from the others while it has no work."""
        return REST_S if time.monotonic() - self._began_s > REST_AFTER_S else LOOK_S

    @property
    def is_behind(self) -> bool:
        """Return whether another engine has begun a step that this one has not."""
        begun = self._numbers[: self._num_engines]
        return max(begun) > begun[self._place]

    def begin(self) -> None:
        """Count a step of this engine, which is handed over now. Mutates: self"""
        self._numbers[self._place] += 1
        self._began_s = time.monotonic()

    def leave(self) -> None:
        """Say that this engine begins no more steps but those it owes the others. Mutates: self"""
        self._numbers[self._num_engines + self._place] = 1

    @property
    def is_over(self) -> bool:
        """Return whether all engines leave, and this one owes no step."""
        return all(self._numbers[self._num_engines :]) and not self.is_behind

    def close(self) -> None:
        """Let go of the memory. May be called twice."""
        if self._is_open:
            self._is_open = False
            self._numbers.release()
            self._memory.close()
