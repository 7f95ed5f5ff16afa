"""Pausing: whether an engine starts steps, and whether it is to get new requests."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any

from dovetail.engine.active_request import ActiveRequest
from dovetail.engine.messages import AnyOperation, Leave, Pause, Resume
from dovetail.engine.parts.part import Engine, EnginePart, Ready
from dovetail.errors import RequestError


class Pausing(EnginePart):
    """The pause of the engine of a number, and whether it leaves."""

    def __init__(self, engine: Engine, number: int) -> None:
        self._engine, self._number = engine, number
        self._is_paused = self._is_leaving = False
        self._held: dict[str, ActiveRequest] = {}
        self._pending: list[tuple[Pause, Future[None]]] = []
        self._departures: list[Future[None]] = []

    def perform(self, operation: AnyOperation) -> Any:
        """Resume, leave, or pause: then the future is done once no step runs. Raises: RequestError.
        Mutates: self, the engine"""
        if isinstance(operation, Resume):
            return self._resume()
        if isinstance(operation, Leave):
            return self._leave(operation)
        if not isinstance(operation, Pause):
            return NotImplemented
        if operation.mode == "keep" and operation.drops:
            self._engine.preempt_all()
        elif operation.mode == "abort":
            self._engine.abort_all()
        self._is_paused, self._engine.is_held = True, operation.mode != "wait"
        done: Future[None] = Future()
        self._pending.append((operation, done))
        return done

    def _leave(self, operation: Leave) -> Future[None] | None:
        if operation.engine != self._number:
            return None
        self._is_leaving = operation.leaves
        self._departures.append(Future())
        return self._departures[-1]

    def _resume(self) -> None:
        self._is_paused = self._engine.is_held = False
        for _, done in self._take_pending():
            done.set_exception(RequestError("it was resumed before it had paused.", status=409))

    def _take_pending(self) -> list[tuple[Pause, Future[None]]]:
        pending, self._pending = self._pending, []
        return pending

    def poll(self) -> None:
        """Complete a pause once no step is in flight and no request runs that it waits for. An
        engine can leave once it has no requests but those that wait here, without output."""
        engine = self._engine
        if not (self._is_leaving and (engine.active or engine.is_stepping)):
            while self._departures:
                self._departures.pop().set_result(None)
        if not self._pending or engine.is_stepping or not (engine.is_held or not engine.active):
            return
        engine.is_held = True
        for operation, done in self._take_pending():
            if operation.drops:
                engine.reset_prefix_cache()
            done.set_result(None)

    def must_wait(self, active: ActiveRequest) -> bool:
        """Return whether the engine is paused or leaves. Mutates: self"""
        must_wait = self._is_paused or self._is_leaving
        if must_wait:
            self._held[active.request_id] = active
        return must_wait

    def take_ready(self) -> Iterable[Ready]:
        """Return the requests that came during a pause, after it. Mutates: self"""
        if self._is_paused or self._is_leaving:
            return ()
        held, self._held = self._held, {}
        return [(active, None) for active in held.values()]

    def forget(self, active: ActiveRequest) -> None:
        """Forget a request that waits. Mutates: self"""
        self._held.pop(active.request_id, None)

    def describe(self, condition: dict[str, Any], repeats: list[AnyOperation]) -> None:
        """Add whether the engine is paused, and whether it leaves. Mutates: condition, repeats"""
        condition["is_paused"], condition["is_leaving"] = self._is_paused, self._is_leaving
        if self._is_paused:
            repeats.append(Pause(mode="keep"))
