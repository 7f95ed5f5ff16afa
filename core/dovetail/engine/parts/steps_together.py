"""StepsTogether: keeps engines that share experts at the same step count, through shared memory.

Each engine counts the steps it has started. An engine with fewer than another must run a step
without requests, since the other's tokens need its experts. No messages are needed.
"""

from __future__ import annotations

import logging
import mmap
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from dovetail.engine.parts.part import EnginePart, Run
from dovetail.errors import EngineDead
from dovetail.interfaces.data.step import StepPlan

logger = logging.getLogger(__name__)

LOOK_S, REST_S = 0.002, 0.02
"""How often an idle engine checks whether another has started a step: often after recent steps,
rarely once there has been none for REST_AFTER_S. That adds to the delay of the next step."""
REST_AFTER_S = 1.0
LEAVE_LIMIT_S = 2.0
"""How long an engine that shuts down keeps stepping for the others."""
STEP_ALONG = -2
"""Step id of steps without requests, for other engines."""
BYTES = 8
FILE = "steps"


def create(folder: Path, num_engines: int) -> None:
    """Create the counter file of `num_engines` engines in a folder."""
    (folder / FILE).write_bytes(bytes(2 * BYTES * num_engines))


class StepsTogether(EnginePart):
    """The counters, as seen by the engine at index `place`."""

    def __init__(self, folder: Path, place: int, num_engines: int) -> None:
        with (folder / FILE).open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 2 * BYTES * num_engines)
        self._numbers = memoryview(self._memory).cast("q")
        self._place, self._num_engines = place, num_engines
        self._is_open = True
        self._began_s = time.monotonic()

    @property
    def idle_wake_s(self) -> float:
        """Return how long this engine may wait between checks while it has no work."""
        return REST_S if time.monotonic() - self._began_s > REST_AFTER_S else LOOK_S

    @property
    def has_work(self) -> bool:
        """Return whether another engine has started a step that this one has not."""
        begun = self._numbers[: self._num_engines]
        return max(begun) > begun[self._place]

    def complete(self, plan: StepPlan) -> StepPlan:
        """Count a step of this engine that is about to be submitted. Mutates: self"""
        self._numbers[self._place] += 1
        self._began_s = time.monotonic()
        return plan

    def owed_plans(self) -> Sequence[StepPlan]:
        """Return a plan without requests if another engine needs one. Mutates: self"""
        if not self.has_work:
            return ()
        return (self.complete(StepPlan(step_id=STEP_ALONG, rows=())),)

    def leave(self, finish: Callable[[], None], run: Run) -> None:
        """Keep stepping until the other engines end too, or a time limit. One of them may be in a
        step that needs this engine's experts. Mutates: self"""
        self.announce_leave()
        deadline_s = time.monotonic() + LEAVE_LIMIT_S
        try:
            finish()
            while not self.is_over and time.monotonic() < deadline_s:
                plans = self.owed_plans()
                run(plans)
                if not plans:
                    time.sleep(self.idle_wake_s)
        except EngineDead as error:
            logger.debug("this engine ends with another: %s", error)

    def announce_leave(self) -> None:
        """Announce that this engine only runs steps that it owes the others. Mutates: self"""
        self._numbers[self._num_engines + self._place] = 1

    @property
    def is_over(self) -> bool:
        """Return whether all engines are leaving and this one owes no step."""
        return all(self._numbers[self._num_engines :]) and not self.has_work

    def close(self) -> None:
        """Release the shared memory. May be called twice."""
        if self._is_open:
            self._is_open = False
            self._numbers.release()
            self._memory.close()
