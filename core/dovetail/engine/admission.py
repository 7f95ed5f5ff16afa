"""Admission: requests that are not with the scheduler yet, because something is loaded for them.

A request waits until everything that the parts load for it is on every rank. Then it passes the
parts in order. Each part may make it wait, for example for an adapter slot. Other requests may
overtake it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from dovetail.engine.active_request import ActiveRequest
from dovetail.engine.parts.part import EnginePart
from dovetail.errors import RequestError

Schedule = Callable[[ActiveRequest], None]
"""Takes a request that has everything it needs."""
Refuse = Callable[[ActiveRequest, BaseException], None]
"""Takes a request that cannot run, and the error."""


class Admission:
    """The requests of one engine that are not with its scheduler yet."""

    def __init__(self, parts: Sequence[EnginePart], schedule: Schedule, refuse: Refuse) -> None:
        self._parts = parts
        self._schedule = schedule
        self._refuse = refuse
        self._loading: dict[str, ActiveRequest] = {}
        self._waiting: dict[str, ActiveRequest] = {}

    def __len__(self) -> int:
        return len(self._loading) + len(self._waiting)

    def __iter__(self) -> Iterator[str]:
        """Return the ids of the requests."""
        yield from self._loading
        yield from self._waiting

    def add(self, active: ActiveRequest) -> None:
        """Schedule a request, start to load what it needs, or refuse it. Mutates: self"""
        try:
            for part in self._parts:
                part.receive(active)
        except RequestError as error:
            self._refuse(active, error)
            return
        if active.loads:
            self._loading[active.request_id] = active
        else:
            self._pass(active, self._parts)

    def advance(self) -> None:
        """Schedule the requests that are ready by now. Mutates: self"""
        for active in [one for one in self._loading.values() if one.is_loaded]:
            del self._loading[active.request_id]
            self._go_on(active, active.load_error, self._parts)
        if self._waiting:
            for number, part in enumerate(self._parts, 1):
                for active, error in part.take_ready():
                    del self._waiting[active.request_id]
                    self._go_on(active, error, self._parts[number:])

    def abort(self, request_id: str) -> bool:
        """Drop a request; return whether it was here. Mutates: self"""
        active = self._loading.pop(request_id, None) or self._waiting.pop(request_id, None)
        if active is None:
            return False
        for part in self._parts:
            part.forget(active)
        return True

    def _go_on(
        self, active: ActiveRequest, error: BaseException | None, parts: Sequence[EnginePart]
    ) -> None:
        if error is None:
            self._pass(active, parts)
        else:
            self._refuse(active, error)

    def _pass(self, active: ActiveRequest, parts: Sequence[EnginePart]) -> None:
        """Schedule a request unless one of the parts has it wait. Mutates: self"""
        for part in parts:
            if part.must_wait(active):
                self._waiting[active.request_id] = active
                return
        self._schedule(active)
