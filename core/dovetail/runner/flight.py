"""Flights: steps handed to the device whose results the host has not read yet, in their order.

A result is read once, after those of earlier steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from dovetail.interfaces.step import StepResult


class Flight:
    """One step on its way (`interfaces.executor.PendingStep`)."""

    __slots__ = ("_finish", "_flights", "_result")

    def __init__(self, flights: Flights, finish: Callable[[], StepResult]) -> None:
        self._flights = flights
        self._finish = finish
        self._result: StepResult | None = None

    def result(self) -> StepResult:
        """Wait for the result; those of earlier steps are read first. Mutates: the runner"""
        if self._result is None:
            self._flights.land(self)
        assert self._result is not None, "a step ended without a result"
        return self._result

    def land(self) -> None:
        """Read the result. Mutates: self"""
        self._result = self._finish()


class Flights:
    """The steps under way, oldest first."""

    def __init__(self) -> None:
        self._flying: deque[Flight] = deque()

    def __len__(self) -> int:
        return len(self._flying)

    def start(self, finish: Callable[[], StepResult]) -> Flight:
        """Return a new flight. Mutates: self"""
        flight = Flight(self, finish)
        self._flying.append(flight)
        return flight

    def land(self, last: Flight) -> None:
        """Land all flights up to this one. Mutates: self"""
        while self._flying and last in self._flying:
            self._flying.popleft().land()

    def land_all_but(self, count: int) -> None:
        """Land the oldest until `count` are left. Mutates: self"""
        while len(self._flying) > count:
            self._flying.popleft().land()
