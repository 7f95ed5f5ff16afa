"""FakeScheduler and FakePolicy: the least that an engine can run with. See `fake_engine`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dovetail.errors import RequestError
from dovetail.interfaces.data.schedule_spec import ScheduleSpec
from dovetail.interfaces.data.step import NewRow, RowStep, StepPlan, StepResult
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.scheduler import KVCache, RequestState, Scheduler
from dovetail.interfaces.scheduling_policy import RequestView, SchedulingPolicy
from dovetail_testing.fakes.objects import view_of


class FakePolicy(SchedulingPolicy):
    """First come, first served; a priority of 666 makes it raise."""

    info = Info(summary="test policy: first come, first served")

    def key(self, request: RequestView) -> tuple[float, ...]:
        """Return the arrival time."""
        if request.priority == 666:
            raise ValueError("this policy cannot count to 666")
        return (request.arrival_s,)


class FakeScheduler(Scheduler):
    """In order of arrival, with room reserved for the whole request: it never preempts."""

    info = Info(summary="test scheduler: reserves whole requests")
    capabilities = frozenset({"chunked_prefill", "async_steps"})

    def __init__(
        self, options: Any, spec: ScheduleSpec, cache: KVCache, policy: SchedulingPolicy
    ) -> None:
        self._spec = spec
        self._cache = cache
        self._policy = policy
        self._waiting: list[RequestState] = []
        self._running: list[RequestState] = []
        self._free_rows = list(range(spec.max_rows))
        self._freed_rows: list[int] = []
        self._pending_steps: dict[int, list[RequestState]] = {}
        self._num_plans = 0

    def add(self, request: RequestState) -> None:
        """Queue a new request."""
        if request.num_tokens == 0:
            raise RequestError("there is nothing to compute.", where="prompt", code="no_tokens")
        self._policy.key(view_of(request, max_tokens=self._spec.max_model_tokens))
        self._waiting.append(request)

    def _reserved(self, request: RequestState) -> int:
        limit = request.num_prompt_tokens + (request.sampling.max_tokens or 0)
        num_tokens = min(limit, self._spec.max_model_tokens)
        return self._cache.blocks_for(num_tokens, num_tokens)

    def plan(self) -> StepPlan:
        """Return the next step."""
        self._num_plans += 1
        budget = self._spec.max_step_tokens
        new_rows: list[NewRow] = []
        rows: list[RowStep] = []
        planned: list[RequestState] = []
        for request in self._running:
            budget -= self._continue(request, budget, rows, planned)
        while budget > 0 and self._can_admit():
            request = self._admit(new_rows)
            budget -= self._continue(request, budget, rows, planned)
        if not rows:
            return StepPlan(step_id=self._num_plans, rows=())
        self._pending_steps[self._num_plans] = planned
        freed, self._freed_rows = tuple(self._freed_rows), []
        return StepPlan(
            step_id=self._num_plans, rows=tuple(rows), new_rows=tuple(new_rows), freed_rows=freed
        )

    def _can_admit(self) -> bool:
        if not self._waiting or not self._free_rows:
            return False
        taken = sum(map(self._reserved, self._running))
        return taken + self._reserved(self._waiting[0]) <= self._cache.num_blocks

    def _admit(self, new_rows: list[NewRow]) -> RequestState:
        request = self._waiting.pop(0)
        num_cached = self._cache.find_prefix(request)
        blocks = self._cache.allocate(request, request.num_tokens, cached_tokens=num_cached)
        assert blocks is not None, "reserved blocks are missing"
        self._running.append(request)
        request.row = self._free_rows.pop(0)
        request.num_computed_tokens = request.num_cached_tokens = num_cached
        new_rows.append(_new_row(request, blocks))
        return request

    def _continue(
        self,
        request: RequestState,
        budget: int,
        rows: list[RowStep],
        planned: list[RequestState],
    ) -> int:
        """Return how many tokens the request computes now. Mutates: rows, planned, request"""
        num_known = request.num_tokens + request.num_inflight
        count = min(budget, num_known - request.num_computed_tokens)
        if count <= 0 or num_known >= self._end_of(request):
            return 0
        rows.append(self._step_of(request, count, num_known))
        planned.append(request)
        return count

    def _end_of(self, request: RequestState) -> int:
        limit = request.num_prompt_tokens + (request.sampling.max_tokens or 1 << 30)
        return min(limit, self._spec.max_model_tokens)

    def _step_of(self, request: RequestState, count: int, num_known: int) -> RowStep:
        start = request.num_computed_tokens
        new_blocks = self._cache.allocate(request, start + count)
        assert new_blocks is not None, "reserved blocks are missing"
        request.num_computed_tokens = start + count
        samples = start + count == num_known
        request.num_inflight += samples
        return RowStep(
            row=request.row, start=start, num_tokens=count, samples=samples, new_blocks=new_blocks
        )

    def update(self, plan: StepPlan, result: StepResult) -> Sequence[RequestState]:
        """Record a result."""
        changed = []
        requests = self._pending_steps.pop(plan.step_id)
        for request, step, row in zip(requests, plan.rows, result.rows, strict=True):
            request.num_inflight -= step.samples
            if request.is_finished:
                continue
            request.append(row)
            if row.fault is None:
                end = min(step.start + step.num_tokens, request.num_tokens)
                self._cache.commit(request, end)
            if request.is_finished:
                self._drop(request, forget=row.fault is not None)
            if row.token_ids or request.is_finished:
                changed.append(request)
        return changed

    def _drop(self, request: RequestState, *, forget: bool = False) -> None:
        if request in self._running:
            self._running.remove(request)
            self._cache.free(request, forget=forget)
            self._freed_rows.append(request.row)
            self._free_rows.append(request.row)
        else:
            self._waiting.remove(request)

    def abort(self, request_ids: Sequence[str], reason: str = "abort") -> Sequence[RequestState]:
        """End these requests now."""
        wanted = set(request_ids)
        ended = [r for r in (*self._running, *self._waiting) if r.request_id in wanted]
        for request in ended:
            request.finish(reason)
            self._drop(request)
        return ended

    def counts(self) -> tuple[int, int]:
        """Return (running, waiting)."""
        return len(self._running), len(self._waiting)


def _new_row(request: RequestState, blocks: tuple[tuple[int, ...], ...]) -> NewRow:
    return NewRow(
        row=request.row,
        request_id=request.request_id,
        token_ids=tuple(request.token_ids),
        num_prompt_tokens=request.num_prompt_tokens,
        num_computed_tokens=request.num_computed_tokens,
        blocks=blocks,
        sampling=request.sampling,
        seed=request.seed,
    )
