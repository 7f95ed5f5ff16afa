"""EngineCore: runs the engine's steps. Each step plans, executes and records the results.

Owns the executor, the KV block accounting, the scheduler and all requests. It names no feature:
features are parts that follow the steps (`parts`). It handles no sockets, text or tensors, and is
used by one thread only.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from dovetail import registry
from dovetail.engine.active_request import ActiveRequest, StepInFlight
from dovetail.engine.affinity import keep_to
from dovetail.engine.building import build_cache, build_executor, plan_layout
from dovetail.engine.messages import AnyOperation, EngineCondition, EngineRequest, RequestUpdate
from dovetail.engine.parts.build import PartsBuilder
from dovetail.engine.parts.part import StepRecord
from dovetail.engine.request_tracker import RequestTracker
from dovetail.engine.start_watch import Report, StartWatch
from dovetail.engine.step_stats import StepCounter
from dovetail.errors import EngineDead
from dovetail.interfaces.data.spec import EngineSpec
from dovetail.interfaces.data.step import StepPlan
from dovetail.interfaces.kv_policy import KVPolicy
from dovetail.interfaces.scheduler import Scheduler
from dovetail.interfaces.scheduling_policy import SchedulingPolicy
from dovetail.interfaces.stats import StepStats
from dovetail.registry.blame import blaming

logger = logging.getLogger(__name__)

# How long a scheduler may plan nothing while requests wait and none runs.
STALL_LIMIT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutput:
    """The results of a step. `is_stalled`: nothing could run, so do not step again immediately."""

    updates: list[RequestUpdate]
    stats: StepStats | None = None
    is_stalled: bool = False


class EngineCore:
    """One engine. `num_steps` counts the steps recorded so far, `active` are the requests with the
    scheduler. While it `is_held`, a part wants no request to get a step."""

    def __init__(self, spec: EngineSpec, report: Report | None = None) -> None:
        """Load the model, size and create the KV cache.

        Raises: ConfigError if the spec asks for something impossible.
        """
        self.spec = spec
        self.num_steps = 0
        self.active: dict[str, ActiveRequest] = {}
        self.is_held = False
        self._num_resets = 0
        self._depth = spec.schedule.plans_in_flight
        self._pending_steps: deque[StepInFlight] = deque()
        self._stalled_since_s = 0.0
        self._is_busy = False
        keep_to(spec.run.processors)
        watch = StartWatch(report)
        # Build what needs no weights first, so that a wrong option fails before they are loaded.
        builder = PartsBuilder(spec)
        policy: SchedulingPolicy = registry.make(spec.policy)
        self._executor = build_executor(spec)
        with blaming("starting the engine"), ExitStack() as undo:
            undo.callback(self._executor.shutdown)
            watch.lap("load model")
            kv_policy: KVPolicy = registry.make(spec.kv_policy)
            self.layout = self._executor.agreed(plan_layout(spec, self._executor, kv_policy))
            self._executor.allocate(self.layout)
            watch.lap("create KV cache and warm up")
            self.cache = build_cache(spec, self._executor, self.layout, kv_policy)
            self._counter = StepCounter(self.cache, engine=spec.engine)
            self._parts = builder.build(
                self._executor, self.layout, self.cache, self, self._counter
            )
            self._scheduler: Scheduler = registry.make(
                spec.scheduler, spec.schedule, self.cache, policy
            )
            undo.pop_all()
        self._requests = RequestTracker(
            self.active, self._parts, self._scheduler, self.cache, self._counter, spec.run
        )

    @property
    def has_work(self) -> bool:
        """Return whether there is work or output for a step, or other engines need a step."""
        own = self._requests.has_updates if self.is_held else self._requests.has_work
        return own or self.is_stepping or any(part.has_work for part in self._parts)

    @property
    def is_stepping(self) -> bool:
        """Return whether a step is in flight."""
        return bool(self._pending_steps)

    @property
    def is_empty(self) -> bool:
        """Return whether there are no requests, nor updates to return."""
        return not (self._requests.has_work or self.is_stepping)

    @property
    def idle_wake_s(self) -> float:
        """Return how long the engine may wait for messages while it has no work."""
        return min(part.idle_wake_s for part in self._parts)

    def counts(self) -> tuple[int, int]:
        """Return (running, waiting), with those that the scheduler does not have yet."""
        num_running, num_waiting = self._scheduler.counts()
        return num_running, num_waiting + len(self._requests.admission)

    def stats(self) -> StepStats:
        """Return the engine's statistics between two steps."""
        return self._counter.take(self.counts(), self._parts)

    def add(self, message: EngineRequest) -> None:
        """Queue a request. If it cannot run, the next step reports an error for it.

        A request waits until what it needs is loaded; others overtake it.
        """
        self._requests.add(message)

    def abort(self, request_ids: Sequence[str]) -> None:
        """Abort these requests; unknown ids are ignored. The next step reports those aborted."""
        self._requests.abort(request_ids)

    def abort_all(self) -> None:
        """Abort every request. The next steps report them."""
        self.abort((*self.active, *self._requests.admission))

    def perform(self, operation: AnyOperation) -> Any:
        """Return an operation's result or its future. Raises: RequestError, ConfigError"""
        results = (part.perform(operation) for part in self._parts)
        return next(result for result in results if result is not NotImplemented)

    def poll(self) -> None:
        """Have the parts complete what operations have begun, if that is possible now."""
        for part in self._parts:
            part.poll()

    def condition(self) -> EngineCondition:
        """Return what operations have made of the engine."""
        fields: dict[str, Any] = {}
        repeats: list[AnyOperation] = []
        for part in reversed(self._parts):  # sleep is last
            part.describe(fields, repeats)
        return EngineCondition(num_resets=self._num_resets, repeats=tuple(repeats), **fields)

    def step(self) -> StepOutput:
        """Plan and submit a step; once enough steps are in flight, record the oldest one.

        Raises: EngineDead, or any error of a scheduler or executor. The engine is lost after that.
        """
        started_s = time.monotonic()
        for part in self._parts:
            part.begin_step()
        self._requests.admission.advance()
        if not self.is_held and (plan := self._scheduler.plan()).rows:
            self._submit(plan, started_s)
            if len(self._pending_steps) < self._depth:
                return StepOutput(updates=self._requests.take_updates())
        if not self._pending_steps:
            return self._step_alone()
        return self._record(self._pending_steps.popleft(), started_s)

    def _submit(self, plan: StepPlan, now_s: float) -> None:
        """Submit a step, and record which requests get a row in it. Mutates: self"""
        self._requests.note_start(plan, now_s)
        for part in self._parts:
            plan = part.complete(plan)
        active = self.active if self.spec.times_steps else {}
        self._pending_steps.append(
            StepInFlight(plan, active, self._executor, is_busy=self._is_busy)
        )
        self._is_busy = True

    def _record(self, step: StepInFlight, started_s: float) -> StepOutput:
        """Wait for the oldest step and record its results. Mutates: self"""
        plan, result = step.plan, step.result()
        self._is_busy = bool(self.active)
        changed = self._scheduler.update(plan, result)
        record = StepRecord(
            plan=plan,
            result=result,
            changed=changed,
            took_s=time.monotonic() - started_s,
            num_unfinished=sum(self._scheduler.counts()),
        )
        for part in self._parts:
            part.note(record)
        self._requests.update(changed)
        self.num_steps += 1
        if self.spec.checks_invariants:
            self.cache.check_invariants()
        for part in self._parts:
            part.publish()
        self._stalled_since_s = 0.0
        stats = self._counter.take(
            self.counts(),
            self._parts,
            step_tokens=plan.num_tokens,
            result=result,
            step_s=time.monotonic() - started_s,
            wait_s=step.wait_s,
            is_busy=step.is_busy,
        )
        return StepOutput(updates=self._requests.take_updates(), stats=stats)

    def _run(self, plans: Iterable[StepPlan]) -> None:
        """Run plans without rows, one after the other. Raises: EngineDead"""
        for plan in plans:
            self._executor.submit(plan).result()

    def _run_leftovers(self) -> None:
        """Send the ranks what no step has sent them. Raises: EngineDead"""
        for part in self._parts:
            self._run(part.leftover_plans())

    def _step_alone(self) -> StepOutput:
        """Run what other engines or the parts need, when no request can run. Mutates: self"""
        owed = [plan for part in self._parts for plan in part.owed_plans()]
        if owed:
            self._run(owed)
            return StepOutput(updates=self._requests.take_updates())
        self._is_busy = False
        self._run_leftovers()
        self._end_if_stalled(time.monotonic())
        return StepOutput(
            updates=self._requests.take_updates(),
            stats=None if self.active else self.stats(),  # the last, after an abort
            is_stalled=bool(self.active or self._requests.admission),
        )

    def _end_if_stalled(self, now_s: float) -> None:
        """End all requests if none could run for too long. Mutates: self"""
        active = self.active
        if not active or self.is_held:
            self._stalled_since_s = 0.0
        elif not self._stalled_since_s:
            self._stalled_since_s = now_s
        elif now_s - self._stalled_since_s > STALL_LIMIT_S:
            for request_id in list(active):
                fault = "the scheduler found no step in which this request could run."
                active[request_id].request.finish("error", fault)
                self.abort((request_id,))

    def preempt_all(self) -> None:
        """Have all requests computed again from their start. Raises: RequestError"""
        self._scheduler.preempt_all()

    def forget_memory(self) -> None:
        """Drop all references to memory that the ranks have released."""
        self._forget_prefixes()
        for part in self._parts:
            part.forget_memory()
        for part in self._parts:
            part.publish()

    def reset_prefix_cache(self) -> None:
        """Invalidate every cached prefix, on the device and in external stores, since the weights
        may have changed. Running requests keep their blocks, which no other request will find."""
        self._forget_prefixes()
        for active in self.active.values():
            if any(self.cache.blocks_of(active.request)) or self.cache.find_swapped(active.request):
                active.request.share_nothing()
        for part in self._parts:
            part.distrust(self.active)
        for part in self._parts:
            part.publish()

    def _forget_prefixes(self) -> None:
        self.cache.forget_all()
        self._num_resets += 1

    def check_idle(self) -> None:
        """Check the invariants of an engine without requests. Raises: AssertionError."""
        if self.is_empty:
            cache = self.cache
            cache.check_invariants()
            num_lost = cache.num_blocks - cache.num_free_blocks - cache.num_pinned_blocks
            assert not num_lost, f"{num_lost} KV blocks are lost"

    def check_executor(self) -> None:
        """Raise EngineDead if a worker has died."""
        self._executor.check()

    def on_death(self, callback: Callable[[str], None]) -> None:
        """Register a callback for a worker's unexpected death. It is called from any thread."""
        self._executor.on_death(callback)

    def leave(self) -> None:
        """Run the steps that other engines still need, before an orderly shutdown."""
        for part in self._parts:
            part.leave(self._finish_pending, self._run)

    def _finish_pending(self) -> None:
        """Wait for the steps in flight, whose results are dropped. Raises: EngineDead"""
        while self._pending_steps:
            self._pending_steps.popleft().result()

    def shutdown(self) -> None:
        """End the workers and release the memory. May be called twice."""
        self._pending_steps.clear()
        try:
            self._run_leftovers()
        except EngineDead as error:
            logger.debug("the last KV blocks are not written: %s", error)
        for part in self._parts:
            part.close()
        self._executor.shutdown()
