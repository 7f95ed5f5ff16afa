"""ContinuousScheduler: continuous batching by a token budget, with preemption.

Every step gives `max_step_tokens` tokens to running requests in policy order, then to waiting ones.
Prefill, chunked prefill, decode, prefix hits and recompute are the same arithmetic: a request wants
the tokens from `num_computed_tokens` up to the last known or pending one, plus drafts of what
follows if there is room. When blocks run out, the running request with the largest key is
preempted: its cached tokens go to host blocks while some are free (if they fill a block or more),
and otherwise are computed again. The number of chunked prompts may be limited, and of long ones
further: then shorter ones overtake those that wait for their turn.
Source: Yu et al., Orca (OSDI 2022); Kwon et al., PagedAttention (SOSP 2023); Agrawal et al.,
Sarathi-Serve (OSDI 2024).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from time import monotonic

from dovetail.engine.request import NO_ROW, RUNNING, WAITING
from dovetail.errors import BrokenPlugin, RequestError
from dovetail.interfaces.data.schedule_spec import ScheduleSpec
from dovetail.interfaces.data.step import RowResult, RowStep, StepPlan, StepResult
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.scheduler import KVCache, RequestState, Scheduler
from dovetail.interfaces.scheduling_policy import SchedulingPolicy
from dovetail_plugins.schedulers._capacity import Capacity
from dovetail_plugins.schedulers._jobs import (
    Blocks,
    ScheduledRequest,
    StepBudget,
    new_row,
    order_of,
    remove,
)
from dovetail_plugins.schedulers._lines import keys_of
from dovetail_plugins.schedulers._turns import PartialPrefills


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinuousOptions:
    """Options of the continuous scheduler."""

    growth_blocks: int = field(
        default=1,
        metadata={
            "help": "KV blocks per running request and KV group that stay free when another "
            "request is admitted; more of them means fewer preemptions"
        },
    )
    asked_requests: int = field(
        default=64,
        metadata={
            "help": "waiting requests whose key is asked again per step at most, for a scheduling "
            "policy whose keys move: a sixteenth of them by turns, and those that may start; more "
            "means newer keys, and longer steps while many wait",
            "ge": 2,
        },
    )


class ContinuousScheduler(Scheduler):
    """Plans steps and records their results.

    Without chunked prefill a prompt above the step budget is refused when it arrives; only a
    recompute that has outgrown the budget is split all the same, since it could never run whole.
    A request that outgrows the whole cache ends with an error.
    """

    info = Info(
        summary="continuous batching by a token budget, chunked prefill, preemption by recompute "
        "or swap",
        source="https://www.usenix.org/conference/osdi22/presentation/yu",
    )
    capabilities = frozenset(
        {
            *("chunked_prefill", "preemption", "async_steps", "priority", "drafts", "swap"),
            *("pipeline", "worker_drafts"),
        }
    )
    Options = ContinuousOptions

    def __init__(
        self,
        options: ContinuousOptions,
        spec: ScheduleSpec,
        cache: KVCache,
        policy: SchedulingPolicy,
    ) -> None:
        self._options = options
        self._spec = spec
        self._cache = cache
        self._keys = keys_of(policy, cache)
        self._jobs: dict[str, ScheduledRequest] = {}
        self._waiting = self._keys.queue(options.asked_requests)
        self._running: list[ScheduledRequest] = []
        self._free_rows = list(range(spec.max_rows))
        self._freed_rows: list[int] = []
        self._swapped_out: dict[int, int] = {}
        self._pending_steps: dict[int, list[tuple[ScheduledRequest, int]]] = {}
        self._blocked: tuple[ScheduledRequest, int] | None = None
        self._num_arrived = 0
        self._num_planned = 0
        self._uncommitted_tokens = spec.max_step_tokens * spec.plans_in_flight
        self._blocks_per_row = cache.num_growing
        self._no_blocks: Blocks = ((),) * cache.num_groups
        self._capacity = Capacity(spec, cache, self._uncommitted_tokens)

    def add(self, request: RequestState) -> None:
        """Queue a new request. Raises: RequestError when it can never fit."""
        if request.request_id in self._jobs:
            raise RequestError("a request with this id is under way.", where=request.request_id)
        self._capacity.verify(request)
        self._num_arrived += 1
        now_s = monotonic()
        job = ScheduledRequest(
            request, self._num_arrived, self._capacity.max_tokens(request), now_s
        )
        job.order = self._keys.order(job, now_s)
        request.status = WAITING
        self._waiting.add(job)
        self._jobs[request.request_id] = job

    def plan(self) -> StepPlan:
        """Return the next step; without rows when nothing can run now."""
        tally = StepBudget(self._spec.max_step_tokens, self._rows_per_plan())
        if self._keys.move:
            self._keys.renew(self._running)
        num_reserved = self._make_way() if self._keys.counts else 0
        tally.tokens_left -= num_reserved
        self._continue_running(tally)
        tally.tokens_left += num_reserved
        if not tally.has_preempted:
            self._admit_waiting(tally)
        return self._seal(tally)

    def _make_way(self) -> int:
        """Preempt the running job with the largest key if the first waiting one is to have its
        place; return the tokens of this step that are reserved for that one.

        Mutates: queues, cache
        """
        if not (self._waiting and self._running):
            return 0
        job, victim = self._waiting[0], self._running[-1]
        request, spec = job.request, self._spec
        if request.num_inflight > 0 or not self._keys.makes_way(job, victim):
            return 0
        if PartialPrefills(spec, (one.request for one in self._running)).must_wait(request):
            return 0
        num_cached = self._cache.find_prefix(request)
        if not (self._free_rows and self._has_room(request, num_cached)):
            self._preempt(victim)
        room = min(spec.max_step_tokens // 2, spec.max_step_tokens - len(self._running))
        return max(0, min(self._capped(request.num_tokens - num_cached), room))

    def _rows_per_plan(self) -> int:
        """Return how many rows a plan has at most: in a pipeline an even share of the requests,
        since only different ones keep all of its stages busy."""
        if self._spec.num_stages == 1:
            return self._spec.max_rows
        num_requests = len(self._running) + min(len(self._waiting), len(self._free_rows))
        return max(1, -(-num_requests // self._spec.plans_in_flight))

    def _continue_running(self, tally: StepBudget) -> None:
        """Give running jobs their next tokens, smallest key first."""
        running = self._running
        index = 0
        while index < len(running) and tally.has_room:
            job = running[index]
            index += 1
            num_tokens = self._next_tokens(job, tally.tokens_left, len(running) - index)
            if num_tokens <= 0:
                continue
            drafts: tuple[int, ...] = ()
            if job.request.draft_ids:
                if job.request.num_inflight > 0:
                    continue  # drafts follow the newest token, so that one is waited for
                drafts = self._take_drafts(job, tally.tokens_left - (len(running) - index))
                num_tokens += len(drafts)
            num_drafts = self._wanted_drafts(job, job.request.num_computed_tokens, num_tokens)
            new_blocks = self._make_room(job, num_tokens + num_drafts, tally)
            if new_blocks is not None:
                tally.take(job, num_tokens, new_blocks, drafts, num_drafts)

    def _next_tokens(self, job: ScheduledRequest, tokens_left: int, num_behind: int) -> int:
        """Return how many tokens a running job computes now, drafts aside.

        None while drafts are pending: it is not yet known how many are accepted, or what the worker
        will guess. Also none while a token is pending that only the last stage of a pipeline will
        know.
        """
        request = job.request
        is_alone = request.num_wanted_drafts > 0 or not self._spec.chains_steps
        if request.num_inflight > 0 and is_alone:
            return 0
        num_known = request.num_tokens + request.num_inflight
        if num_known >= job.max_tokens:
            return 0  # the pending token ends it
        num_wanted = num_known - request.num_computed_tokens
        if num_wanted <= 1:
            return num_wanted
        # A long prompt leaves one token for every later row, so that no decode stalls.
        num_tokens = min(self._capped(num_wanted), max(1, tokens_left - num_behind))
        return request.reach(request.num_computed_tokens, num_tokens)

    def _take_drafts(self, job: ScheduledRequest, tokens_left: int) -> tuple[int, ...]:
        """Return the job's drafts that this step verifies, as many as there is room for.

        None during prefill or recompute, and none if their blocks could be missing for the next
        token of a running job: drafts never cause preemption.
        Mutates: request.draft_ids, taken or void
        """
        request = job.request
        drafts, request.draft_ids = request.draft_ids, ()
        if request.num_computed_tokens + 1 < request.num_tokens:
            return ()
        # If all come true one more is drawn, and that must not be beyond the job's end.
        drafts = drafts[: max(0, min(tokens_left, job.max_tokens - request.num_tokens) - 1)]
        num_blocks = self._blocks_per_row * (len(self._running) + len(drafts))
        return drafts if num_blocks <= self._cache.num_free_blocks else ()

    def _wanted_drafts(self, job: ScheduledRequest, start: int, num_tokens: int) -> int:
        """Return how many drafts the worker is to make after the token that this step samples: as
        many as fit into the step that verifies them, and into free blocks.

        The job needs room for `num_tokens` tokens from `start` on. None if nothing is sampled.
        """
        request, limit = job.request, self._spec.max_step_tokens
        end = start + num_tokens
        if not request.num_wanted_drafts or end < request.num_tokens or request.pooling is not None:
            return 0
        room = min(job.max_tokens - 1 - end, limit - num_tokens, limit - 1)
        num_drafts = max(0, min(request.num_wanted_drafts, room))
        num_blocks = self._cache.blocks_for(num_tokens + num_drafts, self._uncommitted_tokens)
        num_blocks += self._blocks_per_row * (1 + len(self._running))
        return num_drafts if num_blocks <= self._cache.num_free_blocks else 0

    def _first_tokens(self, num_wanted: int, tokens_left: int) -> int:
        """Return how many tokens a job computes in its first step; 0 when it must wait."""
        spec = self._spec
        is_whole = not spec.uses_chunked_prefill and num_wanted <= spec.max_step_tokens
        if is_whole and num_wanted > tokens_left:
            return 0
        return min(self._capped(num_wanted), tokens_left)

    def _capped(self, num_wanted: int) -> int:
        """Return a chunk no longer than the limit for long prompts."""
        limit = self._spec.long_prefill_tokens if self._spec.uses_chunked_prefill else 0
        return min(num_wanted, limit) if limit > 0 else num_wanted

    def _make_room(
        self, job: ScheduledRequest, num_tokens: int, tally: StepBudget
    ) -> Blocks | None:
        """Return the job's new blocks; jobs with the largest keys yield until there are enough.

        None when the job itself had the largest key and had to yield.
        """
        request = job.request
        end = request.num_computed_tokens + num_tokens
        while (new_blocks := self._cache.allocate(request, end)) is None:
            victim = self._running[-1]
            self._preempt(victim)
            tally.has_preempted = True
            if victim is job:
                return None
        return new_blocks

    def _preempt(self, job: ScheduledRequest) -> None:
        """Take row and blocks from a running job and queue it again in front, by its key."""
        if not self._swap_out(job.request):
            self._cache.free(job.request)
        self._leave(job)
        job.epoch += 1
        job.request.num_computed_tokens = 0
        job.request.num_preemptions += 1
        job.request.draft_ids = ()
        job.request.status = WAITING
        if self._keys.move:
            job.order = self._keys.order_again(job, monotonic())
        self._waiting.add(job)

    def _swap_out(self, request: RequestState) -> bool:
        """Return whether the request's cached tokens go to the host. Mutates: the cache, self

        Not for one that needs its whole prompt: it is computed again as a whole.
        """
        if request.needs_whole_prompt:
            return False
        copies = self._cache.swap_out(request, request.num_computed_tokens)
        if copies is None:
            return False
        # A plan without rows may be dropped, so the copies wait for one that has some.
        self._swapped_out.update((host, block) for block, host in copies)
        return True

    def _admit_waiting(self, tally: StepBudget) -> None:
        """Start waiting jobs in strict order until one does not fit; long ones wait their turn."""
        if not (self._waiting and self._free_rows and tally.has_room):
            return
        if self._keys.move:
            limits_long = self._spec.max_long_partial is not None  # then others may overtake
            self._waiting.renew(len(self._waiting if limits_long else self._free_rows))
        turns = PartialPrefills(self._spec, (job.request for job in self._running))
        index = 0
        while index < len(self._waiting) and self._free_rows and tally.has_room:
            if turns.must_wait(self._waiting[index].request):
                index += 1
            elif not self._admit(index, tally, turns):
                return

    def _admit(self, index: int, tally: StepBudget, turns: PartialPrefills) -> bool:
        """Return whether a waiting job could start. Mutates: queues, tally, cache, turns"""
        job = self._waiting[index]
        request = job.request
        # A job preempted with a pending token waits for it: its new row must know all tokens.
        if request.num_inflight > 0 or self._is_blocked(job):
            return False
        num_cached = self._cache.find_prefix(request)
        num_known = max(num_cached, self._cache.find_swapped(request))
        num_tokens = self._first_tokens(request.num_tokens - num_known, tally.tokens_left)
        num_tokens = request.reach(num_known, num_tokens)
        is_part = num_known + num_tokens < request.num_tokens
        if num_tokens == 0 or (is_part and not turns.has_room):
            return False
        blocks, num_drafts = None, 0
        if self._has_room(request, num_cached):
            end = num_known + num_tokens
            num_drafts = self._wanted_drafts(job, num_cached, end - num_cached)
            blocks = self._first_blocks(request, end + num_drafts, num_cached, tally)
        if blocks is None:
            self._blocked = (job, self._cache.num_free_blocks)
            return False
        self._waiting.remove(job)
        if is_part:
            turns.take(request)
        self._start(job, num_known)
        tally.new_rows.append(new_row(request, blocks))
        tally.take(job, num_tokens, self._no_blocks, num_drafts=num_drafts)
        return True

    def _first_blocks(
        self, request: RequestState, end: int, num_cached: int, tally: StepBudget
    ) -> Blocks | None:
        """Return a waiting request's blocks up to position `end`, None when there are too few.

        Mutates: the cache, and the tally if host blocks hold more than the prefix index.
        """
        if self._cache.find_swapped(request) <= num_cached:
            return self._cache.allocate(request, end, cached_tokens=num_cached)
        found = self._cache.swap_in(request, end, cached_tokens=num_cached)
        if found is None:
            return None
        blocks, copies = found
        tally.swapped_in.extend(copies)
        return blocks

    def _is_blocked(self, job: ScheduledRequest) -> bool:
        """Return whether nothing was freed since this job did not fit (looking again is dear)."""
        if self._blocked is None or not self._running:
            return False
        blocked_job, num_free = self._blocked
        return blocked_job is job and self._cache.num_free_blocks <= num_free

    def _has_room(self, request: RequestState, num_cached: int) -> bool:
        """Return whether all known tokens fit and running jobs can still grow.

        Admitting less would soon preempt what was just admitted.
        """
        num_running = len(self._running)
        if num_running == 0:
            return True
        num_missing = request.num_tokens - num_cached
        num_needed = self._cache.blocks_for(num_missing, self._uncommitted_tokens)
        num_reserved = self._options.growth_blocks * self._blocks_per_row * num_running
        return num_needed + num_reserved <= self._cache.num_free_blocks

    def _start(self, job: ScheduledRequest, num_known: int) -> None:
        """Give a job a row and put it among the running; `num_known` tokens are cached already."""
        request = job.request
        request.row = heappop(self._free_rows)
        request.status = RUNNING
        request.num_computed_tokens = num_known
        is_new = request.num_preemptions == 0
        if is_new:
            request.num_cached_tokens = num_known
        self._keys.start(job, request.num_tokens - num_known if is_new else 0)
        insort(self._running, job, key=order_of)

    def _seal(self, tally: StepBudget) -> StepPlan:
        """Return the finished plan; freed rows wait for a plan that has rows."""
        self._num_planned += 1
        if not tally.rows:
            return StepPlan(step_id=self._num_planned, rows=())
        freed_rows = tuple(self._freed_rows)
        self._freed_rows.clear()
        swapped_out = tuple((block, host) for host, block in self._swapped_out.items())
        self._swapped_out.clear()
        self._pending_steps[self._num_planned] = tally.jobs
        return StepPlan(
            step_id=self._num_planned,
            rows=tuple(tally.rows),
            new_rows=tuple(tally.new_rows),
            freed_rows=freed_rows,
            swapped_out=swapped_out,
            swapped_in=tuple(tally.swapped_in),
        )

    def update(self, plan: StepPlan, result: StepResult) -> Sequence[RequestState]:
        """Record a result; return the requests that got tokens or ended."""
        jobs = self._pending_steps.pop(plan.step_id, [])
        if result.step_id != plan.step_id or not len(jobs) == len(plan.rows) == len(result.rows):
            raise BrokenPlugin(
                f"the result of step {result.step_id} does not answer plan {plan.step_id}.",
                where="executor",
            )
        changed = []
        for (job, epoch), step, row_result in zip(jobs, plan.rows, result.rows, strict=True):
            if not job.request.is_finished and self._record(job, epoch, step, row_result):
                changed.append(job.request)
        return changed

    def _record(self, job: ScheduledRequest, epoch: int, step: RowStep, result: RowResult) -> bool:
        """Take one row's result; return whether its request changed."""
        request = job.request
        if step.samples:
            request.num_inflight -= 1
            if not result.token_ids and result.fault is None and result.pooled is None:
                result = RowResult(row=step.row, fault="the worker drew no token for this row.")
        is_stale = epoch != job.epoch
        # The recompute reports prompt logprobs again from the start; a late piece would not fit.
        if is_stale and request.needs_whole_prompt:
            return False
        request.append(result)
        if self._keys.counts:
            self._keys.drew(job, len(result.token_ids))
        num_tokens = step.num_tokens
        if step.drafts and result.fault is None:
            num_tokens = len(result.token_ids)
            request.num_draft_tokens += len(step.drafts)
            request.num_accepted_tokens += num_tokens - 1
            if not is_stale:
                request.num_computed_tokens = step.start + num_tokens
        if not is_stale and result.fault is None:
            self._cache.commit(request, min(step.start + num_tokens, request.num_tokens))
        self._end_if_outgrown(request)
        if request.is_finished:
            self._drop(job, forget=result.fault is not None)
            return True
        return bool(result.token_ids)

    def _end_if_outgrown(self, request: RequestState) -> None:
        """End a request whose next token would not fit the cache even by itself."""
        if request.num_tokens > self._capacity.num_tokens and not request.is_finished:
            request.finish(
                "error",
                f"the KV cache holds {self._capacity.num_tokens} tokens of one request "
                f"({self._cache.num_blocks} blocks), and this one has grown beyond.",
            )

    def abort(self, request_ids: Sequence[str], reason: str = "abort") -> Sequence[RequestState]:
        """End these requests now; return those that were unfinished."""
        ended = []
        for job in filter(None, map(self._jobs.get, request_ids)):
            job.request.finish(reason)
            self._drop(job, forget=False)
            ended.append(job.request)
        return ended

    def preempt_all(self) -> None:
        """Take all rows and blocks away; nothing goes to the host. Mutates: queues, cache"""
        for job in tuple(self._running):
            self._preempt(job)
        for job in self._jobs.values():
            self._cache.free(job.request)

    def _drop(self, job: ScheduledRequest, *, forget: bool) -> None:
        """Let go of an ended job, wherever it is."""
        del self._jobs[job.request.request_id]
        self._cache.free(job.request, forget=forget)
        if job.request.row == NO_ROW:
            self._waiting.remove(job)
        else:
            self._leave(job)

    def _leave(self, job: ScheduledRequest) -> None:
        """Take a running job's row away."""
        request = job.request
        remove(self._running, job)
        self._keys.stop(job)
        self._freed_rows.append(request.row)
        heappush(self._free_rows, request.row)
        request.row = NO_ROW
        self._blocked = None

    def counts(self) -> tuple[int, int]:
        """Return (running, waiting)."""
        return len(self._running), len(self._waiting)
