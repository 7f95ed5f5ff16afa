"""The simulation itself: a plain scheduler passes it, and each broken promise is noticed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import structs

from dovetail.engine.kv import kv_groups
from dovetail.engine.kv.block_pool import BlockPool
from dovetail.engine.kv.prefix_hash import PrefixHasher
from dovetail.engine.request import NO_ROW, RUNNING
from dovetail.errors import RequestError
from dovetail.interfaces.data.schedule_spec import ScheduleSpec
from dovetail.interfaces.data.step import NewRow, RowStep, StepPlan, StepResult
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.scheduler import KVCache, RequestState, Scheduler
from dovetail.interfaces.scheduling_policy import RequestView, SchedulingPolicy
from dovetail_testing.simulate import BrokenPromise, SimSettings, Simulation, simulate


class ByArrival(SchedulingPolicy):
    """First come, first served."""

    info = Info(summary="first come, first served")

    def key(self, request: RequestView) -> tuple[float, ...]:
        return (request.arrival_s,)


class OneByOne(Scheduler):
    """The plainest scheduler: one request at a time, from its prompt to its end."""

    info = Info(summary="one request at a time")
    capabilities = frozenset({"chunked_prefill", "priority"})

    def __init__(
        self, options: Any, spec: ScheduleSpec, cache: KVCache, policy: SchedulingPolicy
    ) -> None:
        self.spec, self.cache, self.policy = spec, cache, policy
        self.queue: list[RequestState] = []
        self.current: RequestState | None = None
        self.freed: tuple[int, ...] = ()
        self.num_steps = 0

    def add(self, request: RequestState) -> None:
        if request.num_tokens >= self.spec.max_model_tokens:
            raise RequestError("the prompt is too long.")
        self.queue.append(request)
        self.queue.sort(key=self.policy.key)

    def plan(self) -> StepPlan:
        self.num_steps += 1
        new_rows = () if self.current or not self.queue else (self.start(self.queue.pop(0)),)
        request = self.current
        if request is None:
            return StepPlan(step_id=self.num_steps, rows=())
        start = request.num_computed_tokens
        count = min(request.num_tokens - start, self.budget())
        blocks = self.cache.allocate(request, start + count)
        assert blocks is not None
        request.num_computed_tokens = start + count
        step = RowStep(
            row=0,
            start=start,
            num_tokens=count,
            samples=start + count == request.num_tokens,
            new_blocks=blocks,
        )
        freed, self.freed = self.freed, ()
        return StepPlan(step_id=self.num_steps, rows=(step,), new_rows=new_rows, freed_rows=freed)

    def budget(self) -> int:
        return self.spec.max_step_tokens

    def start(self, request: RequestState) -> NewRow:
        cached = self.cache.find_prefix(request)
        blocks = self.cache.allocate(request, cached + 1, cached_tokens=cached)
        assert blocks is not None
        self.current = request
        request.row, request.status, request.num_computed_tokens = 0, RUNNING, cached
        return NewRow(
            row=0,
            request_id=request.request_id,
            token_ids=tuple(request.token_ids),
            num_prompt_tokens=request.num_prompt_tokens,
            num_computed_tokens=cached,
            blocks=blocks,
            sampling=request.sampling,
            seed=request.seed,
        )

    def update(self, plan: StepPlan, result: StepResult) -> Sequence[RequestState]:
        request = self.current
        if request is None:
            return ()
        row = result.rows[0]
        request.append(row)
        if row.fault is None:
            self.cache.commit(request, request.num_computed_tokens)
        if not request.is_finished:
            return (request,) if row.token_ids else ()
        self.leave(request, forget=row.fault is not None)
        return (request,)

    def leave(self, request: RequestState, *, forget: bool = False) -> None:
        self.cache.free(request, forget=forget)
        request.row = NO_ROW
        self.current = None
        self.freed = (0,)

    def abort(self, request_ids: Sequence[str], reason: str = "abort") -> Sequence[RequestState]:
        ended = []
        for request in [*self.queue, *([self.current] if self.current else [])]:
            if request.request_id in request_ids:
                request.finish(reason)
                ended.append(request)
                if request is self.current:
                    self.leave(request)
        self.queue = [request for request in self.queue if not request.is_finished]
        return ended

    def counts(self) -> tuple[int, int]:
        return (1 if self.current else 0), len(self.queue)


class OverBudget(OneByOne):
    def budget(self) -> int:
        return self.spec.max_step_tokens + 1


class KeepsBlocks(OneByOne):
    def leave(self, request: RequestState, *, forget: bool = False) -> None:
        request.row, self.current, self.freed = NO_ROW, None, (0,)


class KeepsTheRow(OneByOne):
    def leave(self, request: RequestState, *, forget: bool = False) -> None:
        super().leave(request, forget=forget)
        self.freed = ()


class Forgets(OneByOne):
    def add(self, request: RequestState) -> None:
        super().add(request)
        if request.num_tokens % 7 == 0:
            self.queue.remove(request)


class CountsWrong(OneByOne):
    def counts(self) -> tuple[int, int]:
        return 0, len(self.queue) + (1 if self.current else 0)


class LastComeFirst(OneByOne):
    def add(self, request: RequestState) -> None:
        super().add(request)
        self.queue.reverse()


class Sleeps(OneByOne):
    def plan(self) -> StepPlan:
        if self.num_steps == 100:
            return StepPlan(step_id=100, rows=())
        return super().plan()


class LosesTokens(OneByOne):
    def update(self, plan: StepPlan, result: StepResult) -> Sequence[RequestState]:
        if plan.step_id > 50 and plan.rows[0].samples:
            return ()
        return super().update(plan, result)


class RepeatsTokens(OneByOne):
    def update(self, plan: StepPlan, result: StepResult) -> Sequence[RequestState]:
        if plan.step_id > 50 and plan.rows[0].samples and self.current:
            self.current.append(result.rows[0])
            if self.current.is_finished:
                self.leave(self.current)
        return super().update(plan, result)


class AbortsTheWrongOne(OneByOne):
    def abort(self, request_ids: Sequence[str], reason: str = "abort") -> Sequence[RequestState]:
        others = [request.request_id for request in self.queue[-1:]]
        return super().abort(others or request_ids, reason)


class CommitsTooMuch(OneByOne):
    def start(self, request: RequestState) -> NewRow:
        new = super().start(request)
        self.cache.allocate(request, request.num_tokens)
        # Too early: nothing of this has been computed yet.
        self.cache.commit(request, request.num_tokens)
        return structs.replace(new, blocks=self.cache.blocks_of(request))


SETTINGS = SimSettings(num_steps=400, arrival_rate=0.3)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("windows", [(None,), (None, 6)])
def test_a_plain_scheduler_passes(seed: int, windows: tuple[int | None, ...]) -> None:
    settings = SimSettings(num_steps=700, seed=seed, windows=windows, num_blocks=60)
    report = simulate(OneByOne, ByArrival(None), settings)
    assert report.num_arrived == report.num_refused + sum(report.finished.values())
    assert set(report.finished) == {"stop", "length", "abort", "error"}
    assert report.num_hit_tokens > 0
    assert report.max_idle_steps > 0


@pytest.mark.parametrize(
    ("scheduler", "text"),
    [
        (OverBudget, "tokens planned"),
        (KeepsBlocks, "keeps blocks"),
        (KeepsTheRow, "already taken"),
        (Forgets, "counts are"),
        (CountsWrong, "counts are"),
        (LastComeFirst, "overtaken"),
        (Sleeps, "nothing is planned"),
        (LosesTokens, "computes nothing"),
        (RepeatsTokens, "nobody knows"),
        (AbortsTheWrongOne, "abort of"),
    ],
)
def test_a_broken_promise_is_noticed(scheduler: type[Scheduler], text: str) -> None:
    with pytest.raises(BrokenPromise, match=text) as caught:
        simulate(scheduler, ByArrival(None), SETTINGS)
    assert "seed 0, step" in str(caught.value)


def test_a_prefix_told_before_it_is_computed_is_noticed() -> None:
    settings = SimSettings(num_steps=2_000, abort_rate=0.3, max_step_tokens=6)
    with pytest.raises(BrokenPromise, match="does not hold the tokens"):
        simulate(CommitsTooMuch, ByArrival(None), settings)


@pytest.mark.parametrize("fault", ["window", "root", "chain", "eviction"])
def test_faulty_block_accounting_is_noticed(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if fault == "window":
        right = kv_groups.window_start
        early = lambda w, n, p: min(n // p, right(w, n, p) + 1)  # noqa: E731
        monkeypatch.setattr(kv_groups, "window_start", early)
    elif fault == "root":
        monkeypatch.setattr(PrefixHasher, "root", lambda self, keys: b"one for all")
    elif fault == "chain":
        monkeypatch.setattr(PrefixHasher, "block", lambda self, parent, ids: bytes(ids))
    else:
        monkeypatch.setattr(BlockPool, "forget", lambda self, block: None)
    settings = SimSettings(num_steps=2_000, windows=(None, 9), max_step_tokens=10)
    with pytest.raises(BrokenPromise, match="does not hold the tokens"):
        simulate(OneByOne, ByArrival(None), settings)


def test_the_same_seed_is_the_same_simulation() -> None:
    first, second = (Simulation(OneByOne, ByArrival(None), SETTINGS).run() for _ in range(2))
    assert first == second
