"""EngineCore: runs the engine's steps. Each step plans, executes and records the results.

Owns the executor, the KV block accounting, the scheduler and all requests. It handles no sockets,
text or tensors, and is used by one thread only.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from dovetail import registry
from dovetail.engine.adapters import AdapterHolder, serve_adapters
from dovetail.engine.admission import Admission
from dovetail.engine.affinity import keep_to
from dovetail.engine.building import (
    build_cache,
    build_drafter,
    build_executor,
    open_events,
    plan_layout,
    steps_together,
)
from dovetail.engine.drafting import drafting_of
from dovetail.engine.elsewhere import Elsewhere
from dovetail.engine.encodings import Encodings
from dovetail.engine.faults import as_refusal, refused
from dovetail.engine.live import Live, StepInFlight, crowd_of, update_of
from dovetail.engine.messages import EngineRequest, RequestUpdate
from dovetail.engine.request import Request
from dovetail.engine.sleep_mode import SleepMode
from dovetail.engine.start_watch import Report, StartWatch
from dovetail.engine.step_stats import StepCounter
from dovetail.engine.virtual_tokens import verify_room
from dovetail.errors import EngineDead, RequestError
from dovetail.interfaces.data.spec import EngineSpec
from dovetail.interfaces.data.step import NO_SLOT, StepPlan, StepResult
from dovetail.interfaces.executor import WorkerCall
from dovetail.interfaces.kv_policy import KVPolicy
from dovetail.interfaces.scheduler import Scheduler
from dovetail.interfaces.scheduling_policy import SchedulingPolicy
from dovetail.interfaces.stats import StepStats
from dovetail.registry.blame import blaming, described

logger = logging.getLogger(__name__)

# How long a scheduler may plan nothing while requests wait and none runs.
STALL_LIMIT_S = 10.0
IDLE_WAKE_S = 2.0
"""Longest wait for messages without work. API processes ping the engine every second."""
LEAVE_LIMIT_S = 2.0
"""How long an engine that shuts down keeps stepping for the engines that share its experts."""

STEP_ALONG, ORDERS_ALONE = -2, -3
"""Step ids of steps without requests: for other engines, and to write out KV blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutput:
    """The results of a step. `is_stalled`: nothing could run, so do not step again immediately."""

    updates: list[RequestUpdate]
    stats: StepStats | None = None
    is_stalled: bool = False


class EngineCore:
    """One engine. `num_steps` counts the steps recorded so far."""

    def __init__(self, spec: EngineSpec, report: Report | None = None) -> None:
        """Load the model, size and create the KV cache.

        Raises: ConfigError if the spec asks for something impossible.
        """
        self.spec = spec
        self.num_steps = 0
        keep_to(spec.run.processors)
        watch = StartWatch(report)
        self._together = steps_together(spec)
        # Build what needs no weights first, so that a wrong option fails before they are loaded.
        policy: SchedulingPolicy = registry.make(spec.policy)
        drafter = build_drafter(spec)
        self._executor = build_executor(spec)
        with blaming("starting the engine"), ExitStack() as undo:
            undo.callback(self._executor.shutdown)
            watch.lap("load model")
            kv_policy: KVPolicy = registry.make(spec.kv_policy)
            self.layout = self._executor.agreed(plan_layout(spec, self._executor, kv_policy))
            self._executor.allocate(self.layout)
            watch.lap("create KV cache and warm up")
            self.adapters = serve_adapters(spec, self._executor.prepare)
            self.cache, self._elsewhere = build_cache(spec, self._executor, self.layout, kv_policy)
            self._events = open_events(spec, self.layout, self.cache)
            self._scheduler: Scheduler = registry.make(
                spec.scheduler, spec.schedule, self.cache, policy
            )
            self.sleep_mode = SleepMode(
                self._executor, self._forget_memory, can_sleep=spec.can_sleep
            )
            self._counter = StepCounter(
                self.cache, lambda: self.sleep_mode.level, self.adapters, engine=spec.engine
            )
            self._counter.elsewhere = self._elsewhere
            self._drafting = drafting_of(spec, drafter, self._counter)
            undo.pop_all()
        self._encodings = Encodings.within(spec.schedule, lambda: crowd_of(self._live))
        self._depth = spec.schedule.plans_in_flight
        self._pending_steps: deque[StepInFlight] = deque()
        self._live: dict[str, Live] = {}
        self._num_with_parts = 0
        self._admission = Admission(
            self._executor.prepare, self.adapters, self._queue, self._refuse
        )
        self._arriving: dict[str, Live] = {}
        self._updates: list[RequestUpdate] = []
        self._stalled_since_s: float | None = None
        self._is_busy = False

    @property
    def has_work(self) -> bool:
        """Return whether there is work or output for a step, or other engines need a step."""
        own = self._live or self._pending_steps or self._updates or self._waits
        if self._elsewhere is not None and self._elsewhere.has_orders:
            return True
        return bool(own) or (self._together is not None and self._together.is_behind)

    @property
    def _waits(self) -> bool:
        """Return whether any request waits for something to be loaded."""
        return bool(self._admission or self._arriving)

    @property
    def idle_wake_s(self) -> float:
        """Return how long the engine may wait for messages while it has no work."""
        return IDLE_WAKE_S if self._together is None else self._together.look_again_s

    def counts(self) -> tuple[int, int]:
        """Return (running, waiting)."""
        return self._scheduler.counts()

    def add(self, message: EngineRequest) -> None:
        """Queue a request. If it cannot run, the next step reports an error for it.

        A request with a constraint or an adapter waits until that is loaded; others overtake it.
        """
        refusal = self.sleep_mode.refusal()
        if refusal is not None:
            self._updates.append(refused(message.request_id, refusal))
            return
        try:
            self._admission.add(message)
        except RequestError as error:
            self._updates.append(refused(message.request_id, error))

    def _refuse(self, request_id: str, error: BaseException) -> None:
        self._updates.append(refused(request_id, as_refusal(error)))

    def _queue(self, message: EngineRequest, holder: AdapterHolder | None) -> None:
        request = Request(
            request_id=message.request_id,
            prompt_ids=message.prompt_ids,
            sampling=message.sampling,
            seed=message.seed,
            max_model_tokens=self.spec.run.max_model_tokens,
            priority=message.priority,
            arrival_s=message.arrival_s,
            cache_salt=message.cache_salt,
            adapter=self._adapter_key(holder),
            adapter_slot=NO_SLOT if holder is None else holder.slot,
            num_virtual_tokens=0 if holder is None else holder.num_virtual_tokens,
            pooling=message.pooling,
            needs_whole_prompt=self._needs_whole_prompt(message),
            parts=message.parts,
            encodings=self._encodings,
        )
        try:
            verify_room(message, request.num_virtual_tokens, self.spec.run.max_model_tokens)
        except RequestError as error:
            self._admission.release(holder)
            self._updates.append(refused(message.request_id, error))
            return
        live = Live(request, holder, message.kv_transfer, message.pin_s)
        is_known = request.request_id in self._live or request.request_id in self._arriving
        elsewhere = None if is_known else self._elsewhere
        if elsewhere is not None and elsewhere.begin(request, live.transfer):
            self._arriving[request.request_id] = live
        else:
            self._schedule(live)

    def _schedule(self, live: Live) -> None:
        """Queue a request that has everything it needs. Mutates: self"""
        request = live.request
        try:
            self._scheduler.add(request)
        except RequestError as error:
            self._let_go(live)
            self._updates.append(refused(request.request_id, error))
        except Exception as error:  # a plugin failed on this request, for example the policy's key
            logger.exception("request %s could not be queued", request.request_id)
            self._let_go(live)
            fault = RequestError(f"it could not be queued: {described(error)}", status=500)
            self._updates.append(refused(request.request_id, fault))
        else:
            self._live[request.request_id] = live
            self._num_with_parts += bool(live.request.parts)
            if self._drafting is not None:
                self._drafting.begin(request, sum(self._scheduler.counts()))

    def _adapter_key(self, holder: AdapterHolder | None) -> str:
        """Return the adapter's part of the prefix-hash key. If blocks outlive this engine, it is a
        digest of the adapter's files."""
        if holder is None or self.adapters is None:
            return ""
        return holder.key if self._elsewhere is None else self.adapters.content_key(holder.key)

    def _let_go(self, live: Live) -> None:
        """Free what an unqueued request holds. Mutates: the adapters, the cache"""
        self._admission.release(live.holder)
        if self._elsewhere is not None and live.request.request_id not in self._live:
            self.cache.free(live.request)

    def _admit(self) -> None:
        """Queue the requests that have finished loading: constraints, adapters, and external KV
        blocks (arrived or given up). Mutates: self"""
        if self._admission:
            self._admission.admit()
        if self._elsewhere is None or not self._elsewhere:
            return
        for request_id, error in self._elsewhere.arrived():
            live = self._arriving.pop(request_id)
            if error is None:
                self._schedule(live)
            else:
                self._let_go(live)
                self._refuse(request_id, error)

    def _needs_whole_prompt(self, message: EngineRequest) -> bool:
        """Return whether the result of a request depends on every step of its prompt."""
        if message.pooling is None:
            return False
        pooling = self.spec.run.pooling
        return pooling is None or message.pooling.task not in pooling.prefix_tasks

    def abort(self, request_ids: Sequence[str]) -> None:
        """Abort these requests; unknown ids are ignored. The next step reports those aborted."""
        for ended in self._scheduler.abort(request_ids):
            self._note(ended.request_id)
        for request_id in request_ids:
            is_arriving = self._arriving.pop(request_id, None)
            if is_arriving is not None and self._elsewhere is not None:
                self._elsewhere.abort(request_id)
                self._let_go(is_arriving)
            if self._admission.abort(request_id) or is_arriving is not None:
                self._updates.append(RequestUpdate(request_id=request_id, finish_reason="abort"))

    def abort_all(self) -> None:
        """Abort every request. The next steps report them."""
        self.abort((*self._live, *self._arriving, *self._admission))

    def stats(self) -> StepStats:
        """Return the engine's statistics between two steps."""
        return self._counter.take(self._scheduler.counts())

    def step(self) -> StepOutput:
        """Plan and submit a step; once enough steps are in flight, record the oldest one.

        Raises: EngineDead, or any error of a scheduler or executor. The engine is lost after that.
        """
        started_s = time.monotonic()
        if self.adapters is not None and self.adapters.is_loading:
            self.adapters.poll()
        self._admit()
        self._encodings.begin_step()
        plan = self._scheduler.plan()
        if plan.rows:
            self._submit(plan, started_s)
            if len(self._pending_steps) < self._depth:
                return StepOutput(updates=self._take_updates())
        if not self._pending_steps:
            if self._together is not None and self._together.is_behind:
                self._step_along()
                return StepOutput(updates=self._take_updates())
            return self._stalled()
        step = self._pending_steps.popleft()
        plan, result = step.plan, step.result()
        self._is_busy = bool(self._live)
        changed = self._scheduler.update(plan, result)
        took_s = time.monotonic() - started_s
        self._encodings.pace.note(plan, took_s)
        if self._drafting is not None:
            self._drafting.note_time(plan, result, took_s)
            self._drafting.update(changed, sum(self._scheduler.counts()))
        for request in changed:
            self._note(request.request_id)
        self.num_steps += 1
        if self.spec.checks_invariants:
            self.cache.check_invariants()
        if self._events is not None:
            self._events.publish()
        self._stalled_since_s = None
        stats = self._stats(step, result, time.monotonic() - started_s)
        return StepOutput(updates=self._take_updates(), stats=stats)

    def _forget_memory(self) -> None:
        """Drop all references to memory that the ranks have released."""
        self.cache.forget_all()
        self._encodings.forget_all()
        if self.adapters is not None:
            self.adapters.empty_slots()
        if self._events is not None:
            self._events.publish()

    def reset_prefix_cache(self) -> None:
        """Invalidate every cached prefix, on the device and in external stores, since the weights
        may have changed. Running requests keep their blocks."""
        self.cache.forget_all()
        if self._elsewhere is not None:
            self._elsewhere.distrust(self._live)
            self.cache.rekey(os.urandom(32))
        if self._events is not None:
            self._events.publish()

    def collective_rpc(self, call: WorkerCall) -> list[Any]:
        """Run a method on the workers of all ranks, after the steps in flight; return their
        answers. Raises: RequestError"""
        return self._executor.collective_rpc(call)

    def check_idle(self) -> None:
        """Check the invariants of an engine without requests. Raises: AssertionError."""
        if not self.has_work:
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

    def _step_along(self) -> None:
        """Run a step without requests, for another engine's tokens. Raises: EngineDead"""
        assert self._together is not None
        self._together.begin()
        self._executor.submit(StepPlan(step_id=STEP_ALONG, rows=())).result()

    def leave(self) -> None:
        """Keep stepping before an orderly shutdown until the other engines end too, or a time
        limit. One of them may be in a step that needs this engine's experts."""
        together = self._together
        if together is None:
            return
        together.leave()
        deadline_s = time.monotonic() + LEAVE_LIMIT_S
        try:
            while self._pending_steps:
                self._pending_steps.popleft().result()
            while not together.is_over and time.monotonic() < deadline_s:
                if together.is_behind:
                    self._step_along()
                else:
                    time.sleep(together.look_again_s)
        except EngineDead as error:
            logger.debug("this engine ends with another: %s", error)

    def shutdown(self) -> None:
        """End the workers and release the memory. May be called twice."""
        self._pending_steps.clear()
        self._close_elsewhere()
        self._executor.shutdown()
        if self._together is not None:
            self._together.close()

    def _close_elsewhere(self) -> None:
        """Have the ranks write the last blocks, then close the store and the block events."""
        if self._elsewhere is not None:
            try:
                self._bring_orders(self._elsewhere)
            except EngineDead as error:
                logger.debug("the last KV blocks are not written: %s", error)
            self._elsewhere.close()
        if self._events is not None:
            self._events.close()

    def _bring_orders(self, elsewhere: Elsewhere) -> None:
        """Send pending external-store orders, in a step without rows. Raises: EngineDead"""
        if elsewhere.collect():
            plan = elsewhere.add_orders(StepPlan(step_id=ORDERS_ALONE, rows=()))
            self._executor.submit(plan).result()

    def _submit(self, plan: StepPlan, now_s: float) -> None:
        """Submit a step, and record which requests get a row in it. Mutates: self"""
        for row in plan.new_rows:
            live = self._live[row.request_id]
            if live.scheduled_s:
                self._counter.preemptions += 1
            else:
                live.scheduled_s = now_s
        if self.adapters is not None:
            plan = self.adapters.take_moves(plan)
        plan = self._with_encodings(plan)
        if self._elsewhere is not None:
            plan = self._elsewhere.add_orders(plan)
        participants = self._participants(plan) if self.spec.times_steps else ()
        if self._together is not None:
            self._together.begin()
        self._pending_steps.append(
            StepInFlight(plan, participants, self._executor, is_busy=self._is_busy)
        )
        self._is_busy = True

    def _with_encodings(self, plan: StepPlan) -> StepPlan:
        """Return the plan with the encodings that its rows need. Mutates: self"""
        if not self._num_with_parts and not self._encodings.has_dropped:
            return plan
        requests = {live.request.row: live.request for live in self._live.values()}
        return self._encodings.take(plan, [requests[row.row] for row in plan.rows])

    def _participants(self, plan: StepPlan) -> tuple[Live, ...]:
        """Return the live requests in a step that was just planned."""
        rows = {row.row for row in plan.rows}
        return tuple(live for live in self._live.values() if live.request.row in rows)

    def _note(self, request_id: str) -> None:
        """Add a request's progress to the next update; forget the request once it is finished."""
        live = self._live.get(request_id)
        if live is None:
            return
        request = live.request
        update = update_of(live, time.monotonic(), self._elsewhere)
        self._counter.generated_tokens += len(update.token_ids)
        if (update.token_ids or update.pooled is not None) and not live.has_token:
            live.has_token = True
            self._counter.prompt_tokens += request.num_real_prompt_tokens
        if request.is_finished:
            self._counter.finished += 1
            self._counter.faults += request.finish_reason == "error"
            if live.pin_s and request.finish_reason != "error":
                self.cache.pin(request, live.pin_s)
            del self._live[request_id]
            if request.parts:
                self._num_with_parts -= 1
                self._encodings.release(request)
            self._admission.release(live.holder)
            if self._drafting is not None:
                self._drafting.forget(request_id)
        self._updates.append(update)

    def _take_updates(self) -> list[RequestUpdate]:
        updates, self._updates = self._updates, []
        return updates

    def _stats(self, step: StepInFlight, result: StepResult, step_s: float) -> StepStats:
        return self._counter.take(
            self._scheduler.counts(),
            step_tokens=step.plan.num_tokens,
            result=result,
            step_s=step_s,
            wait_s=step.wait_s,
            is_busy=step.is_busy,
        )

    def _stalled(self) -> StepOutput:
        """Return an empty step. If requests have been stalled for too long, end them."""
        self._is_busy = False
        if self._elsewhere is not None:
            self._bring_orders(self._elsewhere)
        now_s = time.monotonic()
        if not self._live:
            self._stalled_since_s = None
        elif self._stalled_since_s is None:
            self._stalled_since_s = now_s
        elif now_s - self._stalled_since_s > STALL_LIMIT_S:
            self._end_all("the scheduler found no step in which this request could run.")
        return StepOutput(
            updates=self._take_updates(),
            stats=self._idle_stats(),
            is_stalled=bool(self._live or self._waits),
        )

    def _idle_stats(self) -> StepStats | None:
        """Return the final statistics once no request is left (after an abort, for example)."""
        if self._live:
            return None
        return self._counter.take(self._scheduler.counts())

    def _end_all(self, fault: str) -> None:
        for live in list(self._live.values()):
            live.request.finish("error", fault)
            self.abort((live.request.request_id,))
