"""PendingSteps: steps queued on the device whose results the host has not read yet, in order.

Each result is read once, after those of earlier steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from dovetail.interfaces.data.step import StepResult


class PendingStep:
    """One step in flight (`interfaces.executor.PendingStep`)."""

    __slots__ = ("_finish", "_queue", "_result")

    def __init__(self, steps: PendingSteps, finish: Callable[[], StepResult]) -> None:
        self._queue = steps
        self._finish = finish
        self._result: StepResult | None = None

    def result(self) -> StepResult:
        """Wait for the result, reading those of earlier steps first. Mutates: the runner"""
        if self._result is None:
            self._queue.resolve(self)
        assert self._result is not None, "a step ended without a result"
        return self._result

    def resolve(self) -> None:
        """Read the result. Mutates: self"""
        self._result = self._finish()


class PendingSteps:
    """The steps in flight, oldest first."""

    def __init__(self) -> None:
        self._pending: deque[PendingStep] = deque()

    def __len__(self) -> int:
        return len(self._pending)

    def start(self, finish: Callable[[], StepResult]) -> PendingStep:
        """Return a new step. Mutates: self"""
        step = PendingStep(self, finish)
        self._pending.append(step)
        return step

    def resolve(self, last: PendingStep) -> None:
        """Resolve all steps up to this one. Mutates: self"""
        while self._pending and last in self._pending:
            self._pending.popleft().resolve()

    def resolve_all_but(self, count: int) -> None:
        """Resolve the oldest until `count` remain. Mutates: self"""
        while len(self._pending) > count:
            self._pending.popleft().resolve()
