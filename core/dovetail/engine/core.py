"""EngineCore: the step. Plan what runs next, let the executor run it, record what came.

Owns the executor, the KV block accounting, the scheduler and all requests of the engine. Knows no
sockets, no text and no tensors; one thread calls it.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from dovetail import registry
from dovetail.engine.adapters import AdapterHolder, serve_adapters
from dovetail.engine.admission import Admission
from dovetail.engine.affinity import keep_to
from dovetail.engine.drafting import Drafting
from dovetail.engine.faults import as_refusal, refused
from dovetail.engine.kv import kv_groups
from dovetail.engine.messages import EngineRequest, RequestUpdate, Timings
from dovetail.engine.request import Request
from dovetail.engine.sleep_mode import SleepMode
from dovetail.engine.start_watch import Report, StartWatch
from dovetail.engine.step_stats import StepCounter
from dovetail.engine.steps_together import StepsTogether
from dovetail.engine.virtual_tokens import verify_room
from dovetail.errors import EngineDead, RequestError
from dovetail.interfaces.drafter import Drafter
from dovetail.interfaces.executor import Executor, PendingStep, WorkerCall
from dovetail.interfaces.kv_policy import KVPolicy, KVRoom
from dovetail.interfaces.scheduler import Scheduler
from dovetail.interfaces.scheduling_policy import SchedulingPolicy
from dovetail.interfaces.spec import EngineSpec
from dovetail.interfaces.stats import StepStats
from dovetail.interfaces.step import NO_SLOT, KVLayout, StepPlan, StepResult

logger = logging.getLogger(__name__)

# A scheduler that plans nothing though requests wait and nothing runs has this long to think.
STALL_LIMIT_S = 10.0
IDLE_WAKE_S = 0.5
IDLE_WAKE_TOGETHER_S = 0.002
LEAVE_LIMIT_S = 2.0
"""How long an engine that ends steps along with others that share its experts."""

STEP_ALONG = -2
"""The number of steps without requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutput:
    """The results of a step. `is_stalled`: nothing could run, so calling again at once is
    useless."""

    updates: list[RequestUpdate]
    stats: StepStats | None = None
    is_stalled: bool = False


class _Live:
    """A request that is not finished, what it holds, and when it first took a row."""

    __slots__ = ("execute_s", "forward_s", "has_token", "holder", "request", "scheduled_s")

    def __init__(self, request: Request, holder: AdapterHolder | None) -> None:
        self.request = request
        self.holder = holder
        self.scheduled_s = 0.0
        self.forward_s = 0.0
        self.execute_s = 0.0
        self.has_token = False


class _PendingStep:
    """A step handed over; its result brings its participants' times."""

    __slots__ = ("_participants", "_pending", "_submitted_s", "is_busy", "plan", "wait_s")

    def __init__(
        self, plan: StepPlan, participants: tuple[_Live, ...], executor: Executor, *, is_busy: bool
    ) -> None:
        self.plan = plan
        self.is_busy = is_busy
        self.wait_s = 0.0
        self._participants = participants
        self._submitted_s = time.monotonic()
        self._pending: PendingStep = executor.submit(plan)

    def result(self) -> StepResult:
        """Wait for the step's result. Mutates: the participants' times"""
        asked_s = time.monotonic()
        result = self._pending.result()
        now_s = time.monotonic()
        self.wait_s = now_s - asked_s
        execute_s = now_s - self._submitted_s
        for live in self._participants:
            live.forward_s += result.forward_s
            live.execute_s += execute_s
        return result


class EngineCore:
    """One engine. `num_steps` counts the results recorded."""

    def __init__(self, spec: EngineSpec, report: Report | None = None) -> None:
        """Load the model, size and create the KV cache.

        Raises: ConfigError when the spec asks for something that is not possible.
        """
        self.spec = spec
        self.num_steps = 0
        keep_to(spec.run.processors)
        watch = StartWatch(report)
        self._together = _steps_together(spec)
        # What needs no weights is made first: a wrong option need not wait for them.
        policy: SchedulingPolicy = registry.make(spec.policy)
        drafter = _build_drafter(spec)
        self._executor = _build_executor(spec)
        try:
            watch.lap("load model")
            kv_policy: KVPolicy = registry.make(spec.kv_policy)
            self.layout = self._executor.agreed(_plan_layout(spec, self._executor, kv_policy))
            self._executor.allocate(self.layout)
            watch.lap("create KV cache and warm up")
            self.adapters = serve_adapters(spec, self._executor.prepare)
            self.cache = kv_policy.accounting(self.layout, spec.cache, os.urandom(32))
            self._scheduler: Scheduler = registry.make(
                spec.scheduler, spec.schedule, self.cache, policy
            )
            self.sleep_mode = SleepMode(
                self._executor, self._forget_memory, can_sleep=spec.can_sleep
            )
            self._counter = StepCounter(
                self.cache, lambda: self.sleep_mode.level, self.adapters, engine=spec.engine
            )
            self._drafting: Drafting | None = None
            if spec.drafting is not None:
                self._drafting = Drafting(spec.drafting, drafter, spec.run.model, self._counter)
        except BaseException:
            self._executor.shutdown()
            raise
        self._depth = spec.schedule.plans_in_flight
        self._pending_steps: deque[_PendingStep] = deque()
        self._live: dict[str, _Live] = {}
        self._admission = Admission(
            self._executor.prepare, self.adapters, self._queue, self._refuse
        )
        self._updates: list[RequestUpdate] = []
        self._stalled_since_s: float | None = None
        self._is_busy = False

    @property
    def has_work(self) -> bool:
        """Return whether a step has anything to do or to tell, or other engines need one."""
        own = self._live or self._pending_steps or self._updates or self._admission
        return bool(own) or (self._together is not None and self._together.is_behind)

    @property
    def idle_wake_s(self) -> float:
        """Return how long the engine may look away while there is no work."""
        return IDLE_WAKE_S if self._together is None else IDLE_WAKE_TOGETHER_S

    def counts(self) -> tuple[int, int]:
        """Return (running, waiting)."""
        return self._scheduler.counts()

    def add(self, message: EngineRequest) -> None:
        """Queue a request. One that cannot run ends with an error, which the next step reports.

        A request with a constraint or an adapter waits until that is loaded; others pass it.
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
            adapter="" if holder is None else holder.key,
            adapter_slot=NO_SLOT if holder is None else holder.slot,
            num_virtual_tokens=0 if holder is None else holder.num_virtual_tokens,
            pooling=message.pooling,
            needs_whole_prompt=self._needs_whole_prompt(message),
        )
        try:
            verify_room(message, request.num_virtual_tokens, self.spec.run.max_model_tokens)
            self._scheduler.add(request)
        except RequestError as error:
            self._admission.release(holder)
            self._updates.append(refused(message.request_id, error))
        except Exception as error:  # a plugin's fault with this request, a policy's key for one
            logger.exception("request %s could not be queued", message.request_id)
            self._admission.release(holder)
            what = f"the request could not be queued: {type(error).__name__}: {error}"
            self._updates.append(refused(message.request_id, RequestError(what, status=500)))
        else:
            self._live[request.request_id] = _Live(request, holder)
            if self._drafting is not None:
                self._drafting.begin(request, sum(self._scheduler.counts()))

    def _needs_whole_prompt(self, message: EngineRequest) -> bool:
        """Return whether what a request is told depends on all of its prompt's steps."""
        if message.pooling is None:
            return False
        pooling = self.spec.run.pooling
        return pooling is None or message.pooling.task not in pooling.prefix_tasks

    def abort(self, request_ids: Sequence[str]) -> None:
        """End these requests; unknown ids are ignored. The next step tells of those ended."""
        for ended in self._scheduler.abort(request_ids):
            self._note(ended.request_id)
        for request_id in request_ids:
            if self._admission.abort(request_id):
                self._updates.append(RequestUpdate(request_id=request_id, finish_reason="abort"))

    def abort_all(self) -> None:
        """End every request. The next steps tell of them."""
        self.abort((*self._live, *self._admission))

    def stats(self) -> StepStats:
        """Return the engine's numbers between two steps."""
        return self._counter.take(self._scheduler.counts())

    def step(self) -> StepOutput:
        """Plan a step and hand it over, then record the oldest one when enough are under way.

        Raises: EngineDead, or what a scheduler or executor raised: then the engine is lost.
        """
        started_s = time.monotonic()
        if self.adapters is not None and self.adapters.is_loading:
            self.adapters.poll()
        if self._admission:
            self._admission.admit()
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
        if self._drafting is not None:
            self._drafting.note_time(plan, result, time.monotonic() - started_s)
            self._drafting.update(changed, sum(self._scheduler.counts()))
        for request in changed:
            self._note(request.request_id)
        self.num_steps += 1
        if self.spec.checks_invariants:
            self.cache.check_invariants()
        self._stalled_since_s = None
        stats = self._stats(step, result, time.monotonic() - started_s)
        return StepOutput(updates=self._take_updates(), stats=stats)

    def _forget_memory(self) -> None:
        """Count on nothing that the ranks kept in memory that they have released."""
        self.cache.forget_all()
        if self.adapters is not None:
            self.adapters.empty_slots()

    def reset_prefix_cache(self) -> None:
        """Make no cached prefix findable any more; requests under way keep what they have."""
        self.cache.forget_all()

    def collective_rpc(self, call: WorkerCall) -> list[Any]:
        """Have the workers of all ranks run a method, after the steps under way; return what they
        answer. Raises: RequestError"""
        return self._executor.collective_rpc(call)

    def check_idle(self) -> None:
        """Check what must hold when no request lives. Raises: AssertionError."""
        if not self.has_work:
            self.cache.check_invariants()
            num_free, num_blocks = self.cache.num_free_blocks, self.cache.num_blocks
            assert num_free == num_blocks, f"{num_blocks - num_free} KV blocks are lost"

    def check_executor(self) -> None:
        """Raise EngineDead when a worker is gone."""
        self._executor.check()

    def on_death(self, callback: Callable[[str], None]) -> None:
        """Register a callback, called from any thread, for a worker that dies unexpectedly."""
        self._executor.on_death(callback)

    def _step_along(self) -> None:
        """Run a step without requests, which another engine's tokens need. Raises: EngineDead"""
        assert self._together is not None
        self._together.begin()
        self._executor.submit(StepPlan(step_id=STEP_ALONG, rows=())).result()

    def leave(self) -> None:
        """Before an orderly end: step along until the other engines end too, or for a while; one of
        them may be in a step that needs this one's experts."""
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
                    time.sleep(IDLE_WAKE_TOGETHER_S)
        except EngineDead as error:
            logger.debug("this engine ends with another: %s", error)

    def shutdown(self) -> None:
        """End the workers and release the memory. May be called twice."""
        self._pending_steps.clear()
        self._executor.shutdown()
        if self._together is not None:
            self._together.close()

    def _submit(self, plan: StepPlan, now_s: float) -> None:
        """Hand a step over, and note which requests take a row by it. Mutates: self"""
        for row in plan.new_rows:
            live = self._live[row.request_id]
            if live.scheduled_s:
                self._counter.preemptions += 1
            else:
                live.scheduled_s = now_s
        if self.adapters is not None:
            plan = self.adapters.take_moves(plan)
        participants = self._participants(plan) if self.spec.times_steps else ()
        if self._together is not None:
            self._together.begin()
        self._pending_steps.append(
            _PendingStep(plan, participants, self._executor, is_busy=self._is_busy)
        )
        self._is_busy = True

    def _participants(self, plan: StepPlan) -> tuple[_Live, ...]:
        """Return the requests in a step just planned."""
        rows = {row.row for row in plan.rows}
        return tuple(live for live in self._live.values() if live.request.row in rows)

    def _note(self, request_id: str) -> None:
        """Take what is new about a request into the next update; forget it once it is finished."""
        live = self._live.get(request_id)
        if live is None:
            return
        request = live.request
        update = _update_of(live, time.monotonic())
        self._counter.generated_tokens += len(update.token_ids)
        if (update.token_ids or update.pooled is not None) and not live.has_token:
            live.has_token = True
            self._counter.prompt_tokens += request.num_real_prompt_tokens
        if request.is_finished:
            self._counter.finished += 1
            self._counter.faults += request.finish_reason == "error"
            del self._live[request_id]
            self._admission.release(live.holder)
            if self._drafting is not None:
                self._drafting.forget(request_id)
        self._updates.append(update)

    def _take_updates(self) -> list[RequestUpdate]:
        updates, self._updates = self._updates, []
        return updates

    def _stats(self, step: _PendingStep, result: StepResult, step_s: float) -> StepStats:
        return self._counter.take(
            self._scheduler.counts(),
            step_tokens=step.plan.num_tokens,
            result=result,
            step_s=step_s,
            wait_s=step.wait_s,
            is_busy=step.is_busy,
        )

    def _stalled(self) -> StepOutput:
        """Return an empty step; requests that have waited in vain for too long end."""
        self._is_busy = False
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
            is_stalled=bool(self._live or self._admission),
        )

    def _idle_stats(self) -> StepStats | None:
        """Return the final numbers once nothing lives (after an abort, say)."""
        if self._live:
            return None
        return self._counter.take(self._scheduler.counts())

    def _end_all(self, fault: str) -> None:
        for live in list(self._live.values()):
            live.request.finish("error", fault)
            self.abort((live.request.request_id,))


def _steps_together(spec: EngineSpec) -> StepsTogether | None:
    """Return what keeps this engine in step with those that share its experts, if any do."""
    if not spec.shares_experts:
        return None
    rank = spec.run.rank
    return StepsTogether(Path(spec.run.engines_folder), rank.data_rank, rank.data_size)


def _update_of(live: _Live, now_s: float) -> RequestUpdate:
    request = live.request
    progress = request.take_progress()
    return RequestUpdate(
        request_id=request.request_id,
        token_ids=progress.token_ids,
        logprobs=progress.logprobs,
        prompt_logprobs=progress.prompt_logprobs,
        finish_reason=request.finish_reason,
        stop_reason=request.stop_reason,
        error=request.error if request.finish_reason == "error" else None,
        error_status=request.error_status,
        num_cached_tokens=max(0, request.num_cached_tokens - request.num_virtual_tokens),
        timings=Timings(live.scheduled_s, now_s, live.forward_s, live.execute_s),
        pooled=progress.pooled,
    )


def _build_executor(spec: EngineSpec) -> Executor:
    executor_class = registry.load_selection(spec.executor)
    options = registry.build_options(spec.executor)
    executor: Executor = executor_class(options, spec.run, spec.worker)
    return executor


def _plan_layout(spec: EngineSpec, executor: Executor, policy: KVPolicy) -> KVLayout:
    """Return the KV cache's layout. Raises: ConfigError when the longest request does not fit."""
    cache, schedule = spec.cache, spec.schedule
    memory_bytes = cache.memory_bytes
    if cache.num_blocks is None and memory_bytes is None:
        memory_bytes = executor.free_bytes()
    layers = executor.kv_layers()
    if cache.keeps_windows:
        layers = [msgspec.structs.replace(layer, window_tokens=None) for layer in layers]
    room = KVRoom(
        block_tokens=cache.block_tokens,
        num_blocks=cache.num_blocks,
        memory_bytes=memory_bytes,
        host_bytes=cache.host_bytes,
    )
    layout = policy.plan(layers, room)
    step_tokens = schedule.max_step_tokens * schedule.plans_in_flight
    kv_groups.verify_fits(layout, schedule.max_model_tokens, step_tokens)
    return layout


def _build_drafter(spec: EngineSpec) -> Drafter | None:
    if spec.drafting is None:
        return None
    if spec.run.drafts is not None:
        return None  # it is made beside the model
    made: Drafter = registry.make(spec.drafting.drafter, spec.run.model, spec.drafting.max_tokens)
    return made
