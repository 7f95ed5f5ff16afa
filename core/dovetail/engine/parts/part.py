"""EnginePart: a feature of the engine that follows its steps.

The core knows parts only by this class and calls all of them in the order of `parts.build`. A
feature that is off has no part. Every method does nothing here, so a part defines those it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from dovetail.interfaces.data.step import StepPlan, StepResult
from dovetail.interfaces.scheduler import RequestState

if TYPE_CHECKING:
    from dovetail.engine.active_request import ActiveRequest
    from dovetail.engine.messages import AnyOperation, RequestUpdate

IDLE_WAKE_S = 2.0
"""Longest wait for messages without work. API processes ping the engine every second."""

Ready = tuple["ActiveRequest", BaseException | None]
"""A request that waits no longer, and the error if it failed."""
Run = Callable[[Iterable[StepPlan]], None]
"""Runs plans without requests, one after the other."""


@dataclass(slots=True, kw_only=True)
class StepRecord:
    """A step that the scheduler has recorded. `changed` are its requests, `took_s` the duration of
    the engine's step, `num_unfinished` the requests with the scheduler."""

    plan: StepPlan
    result: StepResult
    changed: Sequence[RequestState]
    took_s: float
    num_unfinished: int


class Engine(Protocol):
    """The engine core, as operations change it."""

    is_held: bool
    active: dict[str, ActiveRequest]

    @property
    def is_empty(self) -> bool: ...
    @property
    def is_stepping(self) -> bool: ...
    def abort_all(self) -> None: ...
    def preempt_all(self) -> None: ...
    def reset_prefix_cache(self) -> None: ...
    def forget_memory(self) -> None: ...


class EnginePart:
    """A feature that follows the engine's steps. Used by the engine's thread."""

    # A request: `receive`, perhaps a wait, `begin`, `end`, `forget`.

    def receive(self, active: ActiveRequest) -> None:
        """Start to load what an arriving request needs. Raises: RequestError to refuse it"""

    def must_wait(self, active: ActiveRequest) -> bool:
        """Return whether a request that is loaded must wait here; then `take_ready` returns it."""
        return False

    def take_ready(self) -> Iterable[Ready]:
        """Return the requests that wait here no longer. Called once per step."""
        return ()

    def begin(self, active: ActiveRequest, num_unfinished: int) -> None:
        """Note that the scheduler, which now has `num_unfinished` requests, has got a request."""

    def complete_update(self, active: ActiveRequest, update: RequestUpdate) -> RequestUpdate:
        """Return the last update of a finished request, completed."""
        return update

    def end(self, active: ActiveRequest) -> None:
        """Undo `begin`: the scheduler is done with the request."""

    def forget(self, active: ActiveRequest) -> None:
        """Undo `receive` and a wait: the request has ended, been aborted, or been refused, perhaps
        before this part received it."""

    # A step, in this order.

    def begin_step(self) -> None:
        """Prepare for a step that is about to be planned."""

    def complete(self, plan: StepPlan) -> StepPlan:
        """Return a plan that is about to be submitted, completed."""
        return plan

    def note(self, step: StepRecord) -> None:
        """Learn from a recorded step, before the updates of its requests are made."""

    def publish(self) -> None:
        """Publish what was collected, at the end of a step or of another change."""

    def report(self, stats: dict[str, Any]) -> None:
        """Add this part's fields to a StepStats. Mutates: stats"""

    # Operations of clients, between two steps.

    def perform(self, operation: AnyOperation) -> Any:
        """Return an operation's result or its future, or NotImplemented if it is not this part's.
        Raises: RequestError and ConfigError for the caller's mistakes"""
        return NotImplemented

    def poll(self) -> None:
        """Complete what operations have begun, if that is possible now."""

    def describe(self, condition: dict[str, Any], repeats: list[AnyOperation]) -> None:
        """Add this part's fields to an EngineCondition, and the operations that bring a new engine
        to it. Mutates: condition, repeats"""

    # Without a step.

    @property
    def has_work(self) -> bool:
        """Return whether the engine must step although it has no requests."""
        return False

    @property
    def idle_wake_s(self) -> float:
        """Return how long the engine may wait for messages while it has no work."""
        return IDLE_WAKE_S

    def owed_plans(self) -> Sequence[StepPlan]:
        """Return the plans that other engines wait for. Called when no step can run."""
        return ()

    def leftover_plans(self) -> Sequence[StepPlan]:
        """Return plans for what no step has sent to the ranks. Called when no step can run."""
        return ()

    def distrust(self, request_ids: Iterable[str]) -> None:
        """Reuse nothing computed so far, also by these running requests: weights may differ."""

    def forget_memory(self) -> None:
        """Drop all references to memory that the ranks have released; no request runs."""

    def leave(self, finish: Callable[[], None], run: Run) -> None:
        """Run what other engines still need before an orderly shutdown. `finish` waits for the
        steps in flight."""

    def close(self) -> None:
        """Release all resources. May be called twice."""
