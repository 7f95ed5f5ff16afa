"""Simulation: drives a scheduler and the real block accounting without a model.

Random arrivals whose prompts share prefixes, aborts at any moment, faults, preemptions, drafts that
come true or not, and results that come a step late in one-ahead mode. After every step all promises
of interfaces.scheduler are checked; at the end everything must drain. Knows no plugin: classes are
handed in.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import msgspec

from dovetail.engine.kv import prefix_hash
from dovetail.engine.kv.kv_groups import plan_layout
from dovetail.engine.kv.paged import Paged
from dovetail.engine.request import NO_ROW, RUNNING, Request
from dovetail.errors import RequestError
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.data.schedule_spec import ScheduleSpec
from dovetail.interfaces.data.spec import CacheSpec
from dovetail.interfaces.data.step import KVLayer, KVLayout, RowStep, StepPlan, StepResult
from dovetail.interfaces.kv_policy import KVPolicy
from dovetail.interfaces.scheduler import RequestState, Scheduler
from dovetail.interfaces.scheduling_policy import SchedulingPolicy
from dovetail_testing.paged_runner import PagedRunner, drawn_token
from dovetail_testing.watched_policy import WatchedPolicy

VOCAB_SIZE = 50
END_TOKEN = 0
PINNED_S = 60.0
MAX_DRAIN_STEPS = 50_000
OWNERS = (("", 1.0), ("ann", 1.0), ("bob", 2.0))


class BrokenPromise(AssertionError):
    """A scheduler broke one of its promises; the text names seed and step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimSettings:
    """One simulation. Rates are chances per step; `max_live` bounds unfinished requests.

    `draft_rate` is the chance that a request which just got tokens has drafts, up to
    `max_draft_tokens` of them; each may come true with the chance `draft_truth`. With
    `drafts_on_worker` it has as many as its last plan wanted of the worker.
    `windows` lists the attention kinds of the imagined model, one layer each (None: full).
    Of the requests that end, `pinned_share` keep their prefix pinned.
    """

    num_steps: int = 1_000
    seed: int = 0
    max_rows: int = 6
    max_step_tokens: int = 24
    max_model_tokens: int = 64
    uses_chunked_prefill: bool = True
    long_prefill_tokens: int = 0
    max_partial: int | None = None
    max_long_partial: int | None = None
    long_prompt_tokens: int = 0
    async_steps: bool = False
    num_stages: int = 1
    block_tokens: int = 4
    num_blocks: int = 40
    num_host_blocks: int = 0
    windows: tuple[int | None, ...] = (None,)
    uses_prefix_cache: bool = True
    arrival_rate: float = 0.4
    abort_rate: float = 0.05
    fault_rate: float = 0.002
    draft_rate: float = 0.0
    draft_truth: float = 0.7
    max_draft_tokens: int = 6
    drafts_on_worker: bool = False
    max_live: int = 24
    pinned_share: float = 0.0

    def schedule(self) -> ScheduleSpec:
        """Return the scheduler's limits."""
        return ScheduleSpec(
            max_rows=self.max_rows,
            max_step_tokens=self.max_step_tokens,
            max_model_tokens=self.max_model_tokens,
            uses_chunked_prefill=self.uses_chunked_prefill,
            long_prefill_tokens=self.long_prefill_tokens,
            async_steps=self.async_steps,
            max_partial=self.max_partial,
            max_long_partial=self.max_long_partial,
            long_prompt_tokens=self.long_prompt_tokens,
            num_stages=self.num_stages,
        )

    def cache(self) -> CacheSpec:
        """Return the block accounting's settings."""
        return CacheSpec(
            block_tokens=self.block_tokens,
            num_blocks=self.num_blocks,
            memory_bytes=None,
            memory_share=0.0,
            uses_prefix_cache=self.uses_prefix_cache,
            hash_algorithm=prefix_hash.DEFAULT,
        )

    def layout(self) -> KVLayout:
        """Return the KV layout of the imagined model."""
        layers = [
            KVLayer(
                name=f"layer.{i}", num_kv_heads=1, head_size=1, dtype="float32", window_tokens=w
            )
            for i, w in enumerate(self.windows)
        ]
        layout = plan_layout(layers, block_tokens=self.block_tokens, num_blocks=self.num_blocks)
        return msgspec.structs.replace(layout, num_host_blocks=self.num_host_blocks)


@dataclass(slots=True, kw_only=True)
class SimReport:
    """The report of a simulation. `finished` counts finish reasons; `max_idle_steps` is the longest
    time any request waited between two steps that served it, in steps. `num_swaps` preemptions were
    to the host, which gave `num_swapped_in_tokens` back; `num_recomputed_tokens` were computed
    before."""

    num_steps: int = 0
    num_arrived: int = 0
    num_refused: int = 0
    num_tokens: int = 0
    num_preemptions: int = 0
    num_swaps: int = 0
    num_swapped_in_tokens: int = 0
    num_recomputed_tokens: int = 0
    num_hit_tokens: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    max_idle_steps: int = 0
    max_plans_in_flight: int = 0
    finished: Counter[str] = field(default_factory=Counter)


class Simulation:
    """One run of `scheduler` under `policy`. Raises: BrokenPromise from `run` and `step`."""

    def __init__(
        self,
        scheduler: type[Scheduler],
        policy: SchedulingPolicy,
        settings: SimSettings,
        options: Any = None,
        kv_policy: KVPolicy | None = None,
    ) -> None:
        self.settings = settings
        self.report = SimReport()
        cache_policy = kv_policy or Paged(Paged.Options())
        self.cache = cache_policy.accounting(settings.layout(), settings.cache(), b"simulation")
        spec = settings.schedule()
        self._live: dict[str, Request] = {}
        self._policy = WatchedPolicy(policy, self.cache, self._live.__getitem__, self._now_s)
        self.scheduler = scheduler(options or scheduler.Options(), spec, self.cache, self._policy)
        self._random, self._pinning, self._owners = (Random(settings.seed) for _ in range(3))
        self._served_at: dict[str, int] = {}
        self._arrival_index: dict[str, int] = {}
        self._preemptions: dict[str, int] = {}
        self._computed: dict[str, int] = {}
        self._pending_steps: deque[tuple[StepPlan, StepResult]] = deque()
        self._arrives = True
        self._prefixes = [self._tokens(settings.max_model_tokens // 2) for _ in range(3)]
        self._runner = PagedRunner(
            settings.layout(),
            spec,
            root_of=lambda request_id: self._roots[request_id],
            faulty=lambda request_id: self._random.random() < settings.fault_rate,
            vocab_size=VOCAB_SIZE,
        )
        self._roots: dict[str, tuple[tuple[str, str], ...]] = {}

    def run(self) -> SimReport:
        """Return the report after `num_steps` steps and the drain that follows."""
        for _ in range(self.settings.num_steps):
            self.step()
        self._arrives = False
        for _ in range(MAX_DRAIN_STEPS):
            if not self._live and not self._pending_steps:
                break
            self.step()
        self._promise(not self._live, f"still unfinished after the drain: {sorted(self._live)}")
        free = self.cache.num_free_blocks + self.cache.num_pinned_blocks
        self._promise(free == self.cache.num_blocks, f"{self.cache.num_blocks - free} blocks lost")
        self.report.num_hit_tokens = self.cache.num_hit_tokens
        self.report.num_swaps = self.cache.num_swaps
        self.report.num_swapped_in_tokens = self.cache.num_swapped_in_tokens
        return self.report

    def step(self) -> None:
        """Run one step and check everything."""
        self.report.num_steps += 1
        try:
            self._add_arrivals()
            self._abort_some()
            has_rows = self._plan()
            self._abort_some()
            num_late = self.settings.schedule().plans_in_flight - 1
            self._deliver(num_late=num_late if has_rows else 0)
            self._check_state()
        except BrokenPromise:
            raise
        except AssertionError as error:
            self._promise(False, str(error))

    def _now_s(self) -> float:
        return self.report.num_steps * 0.01

    def _promise(self, is_kept: bool, text: str) -> None:
        if not is_kept:
            where = f"seed {self.settings.seed}, step {self.report.num_steps}"
            raise BrokenPromise(f"{text} ({where})")

    # ---- what happens to the scheduler

    def _tokens(self, count: int) -> list[int]:
        return [self._random.randrange(VOCAB_SIZE) for _ in range(count)]

    def _add_arrivals(self) -> None:
        """Let requests arrive, sometimes several in the same instant."""
        while (
            self._arrives
            and len(self._live) < self.settings.max_live
            and self._random.random() < self.settings.arrival_rate
        ):
            self._add(self._new_request())

    def _new_request(self) -> Request:
        random = self._random
        self.report.num_arrived += 1
        shared = random.choice(self._prefixes)[: random.randrange(self.settings.max_model_tokens)]
        return Request(
            request_id=f"r{self.report.num_arrived}",
            prompt_ids=shared + self._tokens(random.randrange(1, 12)),
            sampling=self._new_sampling(),
            seed=random.getrandbits(32),
            max_model_tokens=self.settings.max_model_tokens,
            priority=random.randrange(3),
            arrival_s=self._now_s(),
            cache_salt=random.choice(("", "", "a")),
            adapter=random.choice(("", "", "a")),
            owner=self._owners.choice(OWNERS),
        )

    def _new_sampling(self) -> SamplingParams:
        random = self._random
        max_tokens = random.choice((None, 1, random.randrange(1, 40)))
        return SamplingParams(
            max_tokens=max_tokens,
            min_tokens=random.randrange(0, max_tokens or 4),
            ignore_eos=random.random() < 0.2,
            stop_token_ids=(random.randrange(VOCAB_SIZE),) if random.random() < 0.3 else (),
            eos_token_ids=(END_TOKEN,),
            prompt_logprobs=1 if random.random() < 0.05 else None,
        )

    def _add(self, request: Request) -> None:
        counts = self.scheduler.counts()
        self._live[request.request_id] = request
        try:
            self.scheduler.add(request)
        except RequestError:
            del self._live[request.request_id]
            self.report.num_refused += 1
            self._promise(self.scheduler.counts() == counts, "a refused request left a trace")
            return
        name = request.request_id
        self._served_at[name], self._preemptions[name] = self.report.num_steps, 0
        self._arrival_index[name] = self.report.num_arrived
        self._roots[name] = request.prefix_keys

    def _abort_some(self) -> None:
        if self._live and self._random.random() < self.settings.abort_rate:
            chosen = self._random.choice(list(self._live))
            ended = self.scheduler.abort([chosen, "unknown", chosen])
            ids = [request.request_id for request in ended]
            self._promise(ids == [chosen], f"abort of {chosen} ended {ids}")
            self._note_ended(ended)

    def _plan(self) -> bool:
        """Let the scheduler plan and the runner run; return whether there was anything to run."""
        was_idle = not self._pending_steps
        offered = {name: request.draft_ids for name, request in self._live.items()}
        ran = [request for request in self._live.values() if request.row != NO_ROW]
        self._policy.begin_plan()
        plan = self.scheduler.plan()
        self._check_keys(plan, ran)
        if plan.rows:
            self._pending_steps.append((plan, self._runner.run(plan)))
            num_plans = len(self._pending_steps)
            self.report.max_plans_in_flight = max(self.report.max_plans_in_flight, num_plans)
        elif was_idle:
            self._promise(not self._live, "nothing is planned though requests could run")
        is_bare = bool(plan.rows) or not (plan.new_rows or plan.freed_rows)
        self._promise(is_bare, "a plan without rows names new or freed rows")
        self._check_order(plan)
        self._check_parts(plan)
        self.report.num_tokens += plan.num_tokens
        by_row = {request.row: request for request in self._live.values()}
        for step in plan.rows:
            request_id = by_row[step.row].request_id
            self._note_served(request_id)
            self._note_computed(request_id, step)
            request = by_row[step.row]
            is_known = request.num_inflight == step.samples
            text = f"{request_id} is in a plan before its token, or its drafts, are known"
            may_chain = self.settings.num_stages == 1 and not request.num_wanted_drafts
            self._promise(is_known or may_chain, text)
            is_wanted = step.num_drafts <= request.num_wanted_drafts
            self._promise(is_wanted, f"{request_id} gets drafts that it does not want")
            is_offered = offered[request_id][: len(step.drafts)] == step.drafts
            self._promise(is_offered, f"{request_id} has drafts that nobody proposed")
        return bool(plan.rows)

    def _note_served(self, request_id: str) -> None:
        idle_steps = self.report.num_steps - self._served_at[request_id]
        self.report.max_idle_steps = max(self.report.max_idle_steps, idle_steps)
        self._served_at[request_id] = self.report.num_steps

    def _note_computed(self, request_id: str, step: RowStep) -> None:
        """Count the tokens of a step that an earlier one computed. Drafts do not count."""
        done, end = self._computed.get(request_id, 0), step.start + step.num_tokens
        self.report.num_recomputed_tokens += max(0, min(done, end) - step.start)
        self._computed[request_id] = max(done, end - len(step.drafts))

    def _deliver(self, *, num_late: int) -> None:
        """Deliver results, except for the newest `num_late` ones, which are still pending."""
        while len(self._pending_steps) > num_late:
            plan, result = self._pending_steps.popleft()
            changed = self.scheduler.update(plan, result)
            planned = {step.row: step.num_drafts for step in plan.rows}
            for request in changed if self.settings.draft_rate else ():
                drafts = self._guesses(request)
                if self.settings.drafts_on_worker:
                    drafts = drafts[: planned.get(request.row, 0)]
                    max_drafts = self.settings.max_draft_tokens
                    request.num_wanted_drafts = self._random.randint(0, max_drafts)
                request.draft_ids = drafts
            self._note_ended([r for r in changed if r.is_finished])

    def _guesses(self, request: RequestState) -> tuple[int, ...]:
        """Return drafts of a request's next tokens, some of which will be accepted, or none."""
        random, settings = self._random, self.settings
        if request.status != RUNNING or random.random() >= settings.draft_rate:
            return ()
        first = request.num_tokens - request.num_prompt_tokens
        return tuple(
            drawn_token(request.seed, first + i, VOCAB_SIZE)
            if random.random() < settings.draft_truth
            else random.randrange(VOCAB_SIZE)
            for i in range(random.randint(1, settings.max_draft_tokens))
        )

    def _note_ended(self, ended: Sequence[RequestState]) -> None:
        for state in ended:
            request = self._live.pop(state.request_id)
            self._promise(request.row == NO_ROW, f"{request.request_id} ended and keeps its row")
            has_blocks = any(self.cache.blocks_of(request))
            self._promise(not has_blocks, f"{request.request_id} ended and keeps blocks")
            self._check_output(request)
            if self._pinning.random() < self.settings.pinned_share:
                self.cache.pin(request, PINNED_S, request.num_prompt_tokens)
            self.report.num_draft_tokens += request.num_draft_tokens
            self.report.num_accepted_tokens += request.num_accepted_tokens
            self.report.finished[request.finish_reason or "unfinished"] += 1
            del self._roots[request.request_id], self._served_at[request.request_id]
            del self._preemptions[request.request_id], self._arrival_index[request.request_id]
            self._computed.pop(request.request_id, None)
            self._policy.forget(request.request_id)

    # ---- what must hold

    def _check_order(self, plan: StepPlan) -> None:
        """No waiting request is overtaken, none preempted for a larger key, the first moves."""
        yielded = self._newly_preempted()
        if "priority" not in type(self.scheduler).capabilities or self._policy.has_lines:
            return
        running = [r for r in self._live.values() if r.row != NO_ROW]
        if running:
            first = min(running, key=self._order)
            is_served = first.num_inflight > 0 or first.row in {step.row for step in plan.rows}
            self._promise(is_served, f"{first.request_id} is first in order and is not served")
        if plan.new_rows:
            admitted = {new.request_id for new in plan.new_rows}
            latest = max(self._order(r) for r in running if r.request_id in admitted)
            waiting = [
                self._order(r)
                for r in self._live.values()
                if r.row == NO_ROW and not (self._is_long(r) and self._has_all_turns(plan))
            ]
            self._promise(not waiting or latest < min(waiting), "a waiting request was overtaken")
        if yielded and running:
            smallest = min(self._order(request, was_running=True) for request in yielded)
            largest = max(self._order(request) for request in running)
            self._promise(smallest > largest, "a request yielded to one with a larger key")

    def _check_keys(self, plan: StepPlan, ran: Sequence[Request]) -> None:
        """Keys that move are of this plan, for whoever ran before it and whoever starts in it."""
        self._promise(self._policy.fault is None, f"the policy failed: {self._policy.fault}")
        if "priority" in type(self.scheduler).capabilities:
            started = [self._live[new.request_id] for new in plan.new_rows]
            for request in (*ran, *started):
                is_new = self._policy.was_asked(request)
                self._promise(is_new, f"the policy is not asked again about {request.request_id}")

    def _parts(self, plan: StepPlan) -> list[Request]:
        """Return the requests whose prompts the plan computes only in part."""
        by_row = {request.row: request for request in self._live.values()}
        return [by_row[step.row] for step in plan.rows if not step.samples]

    def _is_long(self, request: Request) -> bool:
        return request.num_tokens > self.settings.long_prompt_tokens

    def _has_all_turns(self, plan: StepPlan) -> bool:
        """Return whether running long prompts had all turns that there are, or got the last."""
        limit = self.settings.max_long_partial
        return limit is not None and sum(map(self._is_long, self._parts(plan))) >= limit

    def _check_parts(self, plan: StepPlan) -> None:
        """No more prompts are in parts than may be, and no more long ones."""
        parts, settings = self._parts(plan), self.settings
        num_long = sum(map(self._is_long, parts))
        for count, limit in (
            (len(parts), settings.max_partial),
            (num_long, settings.max_long_partial),
        ):
            self._promise(limit is None or count <= limit, f"{count} prompts are in parts")

    def _newly_preempted(self) -> list[Request]:
        yielded = []
        for request_id, request in self._live.items():
            if request.num_preemptions != self._preemptions[request_id]:
                self._preemptions[request_id] = request.num_preemptions
                self.report.num_preemptions += 1
                yielded.append(request)
        return yielded

    def _order(
        self, request: Request, *, was_running: bool = False
    ) -> tuple[tuple[float, ...], int]:
        key = self._policy.order(request, was_running=was_running)
        return key, self._arrival_index[request.request_id]

    def _check_state(self) -> None:
        """Check counts and block accounting."""
        self.cache.check_invariants()
        rows = [request.row for request in self._live.values() if request.row != NO_ROW]
        self._promise(len(set(rows)) == len(rows), f"two requests share a row: {rows}")
        num_waiting = len(self._live) - len(rows)
        counts = self.scheduler.counts()
        message = f"counts are {counts}, but {len(rows)} run and {num_waiting} wait"
        self._promise(counts == (len(rows), num_waiting), message)
        self._promise(len(rows) <= self.settings.max_rows, f"{len(rows)} requests run")

    def _check_output(self, request: Request) -> None:
        """No drawn token is lost, repeated or out of place, whatever happened to the request."""
        drawn = [drawn_token(request.seed, i, VOCAB_SIZE) for i in range(request.num_output_tokens)]
        request_id = request.request_id
        self._promise(request.output_ids == drawn, f"{request_id} has other tokens than drawn")
        progress = request.take_progress()
        self._promise(list(progress.token_ids) == drawn, f"{request_id} reported other tokens")
        if progress.prompt_logprobs is not None:
            expected = request.token_ids[1 : request.num_prompt_tokens]
            ids = [entry.token_id for entry in progress.prompt_logprobs]
            self._promise(ids == expected, f"{request_id} lost or repeated prompt logprobs")
        if request.finish_reason in ("stop", "length"):
            self._check_end(request, drawn)

    def _check_end(self, request: Request, drawn: Sequence[int]) -> None:
        """The request ended exactly where its sampling parameters require."""
        sampling = request.sampling
        ends = set(sampling.stop_token_ids)
        if not sampling.ignore_eos:
            ends |= set(sampling.eos_token_ids)
        is_stop = [
            token_id in ends and number >= sampling.min_tokens
            for number, token_id in enumerate(drawn, start=1)
        ]
        ended_late = any(is_stop[:-1])
        by_stop = request.finish_reason == "stop"
        at_limit = request.num_tokens == request.max_tokens
        is_right = not ended_late and (is_stop[-1] if by_stop else at_limit)
        self._promise(is_right, f"{request.request_id} ended at the wrong token")


def simulate(
    scheduler: type[Scheduler],
    policy: SchedulingPolicy,
    settings: SimSettings,
    options: Any = None,
) -> SimReport:
    """Return the report of one whole simulation. Raises: BrokenPromise."""
    return Simulation(scheduler, policy, settings, options).run()
