"""The continuous scheduler: its own choices one by one, then 100,000 simulated steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from dovetail.engine.kv.kv_cache import KVCacheManager
from dovetail.engine.request import NO_ROW, RUNNING, WAITING, Request
from dovetail.errors import BrokenPlugin, RequestError
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.data.step import RowResult, StepPlan, StepResult
from dovetail.interfaces.scheduling_policy import SchedulingPolicy
from dovetail_plugins.schedulers.continuous import ContinuousOptions, ContinuousScheduler
from dovetail_plugins.scheduling_policies.fcfs import Fcfs
from dovetail_plugins.scheduling_policies.priority import PriorityFirst
from dovetail_testing.simulate import SimSettings, simulate
from support.samples import sample_of

NUM_SIMULATED_STEPS = sample_of(100_000, 12_000)


class Rig:
    """A scheduler over real block accounting, and results made by hand."""

    def __init__(
        self,
        policy: SchedulingPolicy | None = None,
        options: ContinuousOptions | None = None,
        **settings: Any,
    ) -> None:
        sim = SimSettings(**settings)
        self.cache = KVCacheManager(sim.layout(), sim.cache(), b"rig")
        self.scheduler = ContinuousScheduler(
            options or ContinuousOptions(), sim.schedule(), self.cache, policy or Fcfs(None)
        )
        self.max_model_tokens = sim.max_model_tokens
        self.num_added = 0

    def add(
        self,
        name: str,
        num_tokens: int,
        *,
        priority: int = 0,
        first: int | None = None,
        **sampling: Any,
    ) -> Request:
        self.num_added += 1
        start = self.num_added * 1_000 if first is None else first
        request = Request(
            request_id=name,
            prompt_ids=range(start, start + num_tokens),
            sampling=SamplingParams(**sampling),
            seed=0,
            max_model_tokens=self.max_model_tokens,
            priority=priority,
            arrival_s=float(self.num_added),
        )
        self.scheduler.add(request)
        return request

    def update(
        self, plan: StepPlan, faults: Sequence[int] = (), num_accepted: int = 0
    ) -> list[str]:
        """Every row draws 5; `num_accepted` drafts come true, whatever they are."""
        rows = tuple(
            RowResult(
                row=step.row,
                token_ids=(5,) * (1 + min(num_accepted, len(step.drafts))) if step.samples else (),
                fault="NaN logits" if step.row in faults else None,
            )
            for step in plan.rows
        )
        changed = self.scheduler.update(plan, StepResult(step_id=plan.step_id, rows=rows))
        return [request.request_id for request in changed]

    def step(self) -> StepPlan:
        plan = self.scheduler.plan()
        self.update(plan)
        self.cache.check_invariants()
        return plan


def tokens(plan: StepPlan) -> list[int]:
    return [step.num_tokens for step in plan.rows]


def test_prompts_are_cut_to_the_budget_and_decodes_go_on() -> None:
    rig = Rig(max_step_tokens=10)
    a = rig.add("a", 4)
    rig.add("b", 15)
    assert tokens(rig.step()) == [4, 6]
    plan = rig.step()
    assert tokens(plan) == [1, 9]
    assert [step.samples for step in plan.rows] == [True, True]
    assert tokens(rig.step()) == [1, 1]
    assert (a.num_output_tokens, a.status, a.row) == (3, RUNNING, 0)


def test_a_long_prompt_in_front_leaves_a_token_to_each_decode_behind() -> None:
    rig = Rig(PriorityFirst(None), max_step_tokens=10, num_blocks=60)
    rig.add("b", 3, priority=1)
    rig.add("c", 3, priority=1)
    rig.step()
    rig.add("a", 40, priority=0)
    assert tokens(rig.step()) == [1, 1, 8]
    plan = rig.step()
    assert [(step.row, step.num_tokens) for step in plan.rows] == [(2, 8), (0, 1), (1, 1)]


def test_long_prefills_are_capped() -> None:
    rig = Rig(max_step_tokens=20, long_prefill_tokens=6)
    rig.add("a", 10)
    rig.add("b", 10)
    assert tokens(rig.step()) == [6, 6]
    assert tokens(rig.step()) == [4, 4]


def test_so_many_prompts_are_in_parts_and_no_more() -> None:
    for max_partial, first in ((None, [6, 6, 6]), (2, [6, 6]), (1, [6])):
        rig = Rig(max_step_tokens=20, long_prefill_tokens=6, max_partial=max_partial)
        for name in "abc":
            rig.add(name, 10)
        assert tokens(rig.step()) == first


def test_a_prompt_that_one_step_finishes_needs_no_turn() -> None:
    rig = Rig(max_step_tokens=20, long_prefill_tokens=6, max_partial=1)
    rig.add("a", 10)
    rig.add("short", 5)
    rig.add("b", 10)
    assert tokens(rig.step()) == [6, 5]
    assert tokens(rig.step()) == [4, 1, 6]  # a is whole now, so b may begin


def test_short_prompts_overtake_a_long_one_that_waits_for_its_turn() -> None:
    turns = {"max_partial": 2, "max_long_partial": 1, "long_prompt_tokens": 6}
    rig = Rig(max_step_tokens=20, long_prefill_tokens=6, **turns)
    requests = {name: rig.add(name, n) for name, n in (("a", 14), ("b", 14), ("c", 4), ("d", 3))}
    assert tokens(rig.step()) == [6, 4, 3]
    assert requests["b"].status == WAITING
    assert tokens(rig.step()) == [6, 1, 1]
    assert tokens(rig.step()) == [2, 1, 1, 6]
    assert requests["b"].status == RUNNING


def test_without_chunks_a_prompt_waits_until_it_fits_whole() -> None:
    rig = Rig(max_step_tokens=10, uses_chunked_prefill=False)
    rig.add("a", 6)
    rig.add("b", 6)
    rig.add("c", 2)
    assert tokens(rig.step()) == [6]  # c does not overtake b
    assert tokens(rig.step()) == [1, 6, 2]
    with pytest.raises(RequestError, match="11 tokens; a step takes 10") as caught:
        rig.add("d", 11)
    assert "--enable-chunked-prefill" in str(caught.value)


def test_without_chunks_a_recompute_beyond_the_budget_is_split() -> None:
    rig = Rig(max_step_tokens=10, uses_chunked_prefill=False, num_blocks=8)
    rig.add("a", 8, max_tokens=12)
    b = rig.add("b", 8, max_tokens=12)
    for _ in range(60):
        rig.step()
    assert b.num_preemptions > 0
    assert b.finish_reason == "length"
    assert rig.cache.num_free_blocks == rig.cache.num_blocks


def test_a_cached_prefix_is_not_computed_again() -> None:
    rig = Rig(max_step_tokens=24)
    rig.add("a", 12, first=0, max_tokens=1)
    rig.step()
    b = rig.add("b", 12, first=0)
    plan = rig.step()
    assert (plan.rows[0].start, plan.rows[0].num_tokens, b.num_cached_tokens) == (8, 4, 8)
    assert plan.new_rows[0].num_computed_tokens == 8
    assert len(plan.new_rows[0].blocks[0]) == 3
    assert plan.rows[0].new_blocks == ((),)


def test_prompt_logprobs_compute_every_position() -> None:
    rig = Rig(max_step_tokens=24)
    rig.add("a", 12, first=0, max_tokens=1)
    rig.step()
    rig.add("b", 12, first=0, prompt_logprobs=1)
    assert rig.step().rows[0].start == 0


def test_the_largest_key_yields_and_comes_back_in_front() -> None:
    rig = Rig(
        PriorityFirst(None),
        ContinuousOptions(growth_blocks=0),
        num_blocks=9,
        uses_prefix_cache=False,
    )
    first = rig.add("first", 12, priority=2, max_tokens=20)
    second = rig.add("second", 12, priority=1, max_tokens=20)
    rig.add("third", 4, priority=3)
    while first.num_preemptions == 0:
        plan = rig.step()
    assert (first.status, first.row, first.num_computed_tokens) == (WAITING, NO_ROW, 0)
    assert second.num_preemptions == 0
    assert plan.new_rows == ()  # nobody is admitted in a step that preempted
    assert plan.freed_rows == (1,)
    while not second.is_finished:
        rig.step()
    plan = rig.step()
    assert plan.new_rows[0].request_id == "first"
    assert plan.new_rows[0].token_ids == tuple(first.token_ids[:-1])


def test_admission_leaves_room_to_grow() -> None:
    rig = Rig(num_blocks=8, uses_prefix_cache=False)
    rig.add("a", 12)
    rig.add("b", 16)
    assert len(rig.step().rows) == 1  # 3 + 4 blocks of 7 would leave none to a
    eager = Rig(options=ContinuousOptions(growth_blocks=0), num_blocks=8, uses_prefix_cache=False)
    eager.add("a", 12)
    eager.add("b", 12)
    assert len(eager.step().rows) == 2


@pytest.mark.parametrize(
    ("num_tokens", "text"),
    [
        (0, "no tokens"),
        (64, "64 tokens; this model's maximum context length is"),
        (70, "--max-model-len"),
    ],
)
def test_prompts_that_never_fit_are_refused(num_tokens: int, text: str) -> None:
    rig = Rig()
    with pytest.raises(RequestError) as caught:
        rig.add("a", num_tokens)
    assert text in str(caught.value)
    assert rig.scheduler.counts() == (0, 0)


def test_a_prompt_beyond_the_cache_is_refused_and_growth_beyond_it_ends() -> None:
    rig = Rig(num_blocks=6)
    with pytest.raises(RequestError, match="21 tokens; the KV cache holds 20"):
        rig.add("a", 21)
    b = rig.add("b", 18)
    for _ in range(5):
        rig.step()
    assert b.finish_reason == "error"
    assert b.num_tokens == 21
    assert "20 tokens" in str(b.error)
    assert rig.cache.num_free_blocks == rig.cache.num_blocks


def test_an_id_under_way_is_refused() -> None:
    rig = Rig()
    rig.add("a", 3)
    with pytest.raises(RequestError, match="under way"):
        rig.add("a", 3)


@pytest.mark.parametrize("key", [(float("nan"),), [1.0], ("a",), ZeroDivisionError()])
def test_a_policy_without_a_proper_key_harms_one_request_only(key: Any) -> None:
    class Odd(Fcfs):
        def key(self, request: Any) -> Any:
            if request.request_id != "odd":
                return super().key(request)
            if isinstance(key, Exception):
                raise key
            return key

    rig = Rig(Odd(None))
    rig.add("a", 3)
    with pytest.raises((BrokenPlugin, TypeError, ZeroDivisionError)):
        rig.add("odd", 3)
    assert rig.scheduler.counts() == (0, 1)
    assert rig.scheduler.abort(["odd"]) == []
    rig.add("b", 3)
    assert len(rig.step().rows) == 2


def test_one_ahead_plans_positions_not_known_yet() -> None:
    rig = Rig(async_steps=True)
    a = rig.add("a", 4, max_tokens=3)
    plans = [rig.scheduler.plan(), rig.scheduler.plan()]
    assert (a.num_tokens, a.num_inflight, a.num_computed_tokens) == (4, 2, 5)
    assert [(p.rows[0].start, p.rows[0].num_tokens) for p in plans] == [(0, 4), (4, 1)]
    assert rig.update(plans[0]) == ["a"]
    last = rig.scheduler.plan()
    rig.update(plans[1])
    assert rig.scheduler.plan().rows == ()  # what is under way ends it: nothing to plan
    rig.update(last)
    assert (a.finish_reason, a.num_output_tokens, a.num_inflight) == ("length", 3, 0)


def test_the_step_after_a_stop_is_ignored() -> None:
    rig = Rig(async_steps=True)
    a = rig.add("a", 4, stop_token_ids=(5,))
    first, second = rig.scheduler.plan(), rig.scheduler.plan()
    assert rig.update(first) == ["a"]
    b = rig.add("b", 4)
    third = rig.scheduler.plan()
    assert (third.freed_rows, third.new_rows[0].row) == ((0,), 0)
    assert rig.update(second) == []
    assert (a.finish_reason, a.num_output_tokens, b.num_output_tokens) == ("stop", 1, 0)
    assert rig.update(third) == ["b"]


def test_a_request_preempted_with_a_token_under_way_keeps_it() -> None:
    rig = Rig(
        options=ContinuousOptions(growth_blocks=0),
        async_steps=True,
        num_blocks=9,
        uses_prefix_cache=False,
    )
    rig.add("a", 12)
    b = rig.add("b", 12)
    flights = [rig.scheduler.plan()]
    while b.num_preemptions == 0:
        flights.append(rig.scheduler.plan())
        num_inflight = b.num_inflight
        rig.update(flights.pop(0))
    assert num_inflight == 1
    assert (b.status, b.num_inflight) == (WAITING, 0)
    assert b.output_ids == [5] * b.num_output_tokens


@pytest.mark.parametrize("stage", ["waiting", "planned", "running", "preempted"])
def test_abort_at_any_stage_gives_everything_back(stage: str) -> None:
    rig = Rig(options=ContinuousOptions(growth_blocks=0), num_blocks=9, uses_prefix_cache=False)
    rig.add("a", 12)
    b = rig.add("b", 12)
    plan = None
    if stage == "planned":
        plan = rig.scheduler.plan()
    elif stage == "running":
        rig.step()
    elif stage == "preempted":
        while not b.num_preemptions:
            rig.step()
    assert rig.scheduler.abort(["b", "nobody"]) == [b]
    assert (b.finish_reason, b.row) == ("abort", NO_ROW)
    assert rig.scheduler.abort(["b"]) == []
    if plan is not None:
        assert rig.update(plan) == ["a"]
    rig.scheduler.abort(["a"])
    assert rig.scheduler.counts() == (0, 0)
    assert rig.cache.num_free_blocks == rig.cache.num_blocks
    assert rig.scheduler.plan().rows == ()


def test_a_fault_ends_one_request_and_its_blocks_leave_the_cache() -> None:
    rig = Rig(max_step_tokens=40)
    a = rig.add("a", 12, first=0)
    b = rig.add("b", 12)
    rig.step()
    assert sorted(rig.update(rig.scheduler.plan(), faults=(a.row,))) == ["a", "b"]
    assert (a.finish_reason, a.error, b.finish_reason) == ("error", "NaN logits", None)
    again = rig.add("again", 12, first=0)
    assert rig.cache.find_prefix(again) == 0


def test_a_result_that_does_not_answer_the_plan_is_refused() -> None:
    rig = Rig()
    rig.add("a", 4)
    plan = rig.scheduler.plan()
    with pytest.raises(BrokenPlugin, match="does not answer"):
        rig.scheduler.update(plan, StepResult(step_id=plan.step_id, rows=()))


def test_a_row_that_should_have_drawn_and_did_not_ends() -> None:
    rig = Rig()
    a = rig.add("a", 4)
    plan = rig.scheduler.plan()
    rig.scheduler.update(plan, StepResult(step_id=plan.step_id, rows=(RowResult(row=0),)))
    assert (a.finish_reason, a.error) == ("error", "the worker drew no token for this row.")


def test_drafts_are_computed_and_what_came_true_counts() -> None:
    rig = Rig()
    a = rig.add("a", 6)
    rig.step()
    a.draft_ids = (5, 5, 9)
    plan = rig.scheduler.plan()
    (step,) = plan.rows
    assert (step.start, step.num_tokens, step.drafts, step.samples) == (6, 4, (5, 5, 9), True)
    assert step.new_blocks == ((3,),) and a.draft_ids == ()
    rig.update(plan, num_accepted=2)
    assert (a.num_tokens, a.num_computed_tokens, a.num_inflight) == (10, 9, 0)
    assert (a.num_draft_tokens, a.num_accepted_tokens) == (3, 2)
    a.draft_ids = (9, 9, 9)
    plan = rig.scheduler.plan()
    rig.update(plan)
    assert (a.num_tokens, a.num_computed_tokens) == (11, 10)
    assert rig.scheduler.plan().rows[0].new_blocks == ((),)  # blocks of drafts are kept


def test_rejected_drafts_are_in_no_cached_prefix() -> None:
    rig = Rig()
    a = rig.add("a", 6)
    rig.step()
    a.draft_ids = (9, 9, 9, 9, 9)
    rig.update(rig.scheduler.plan())
    twin = rig.add("twin", 6, first=1_000)
    twin.token_ids += [5, 5, 5]
    # Eight tokens are known, but in the eighth one's place a draft was computed.
    assert (a.num_tokens, rig.cache.find_prefix(twin)) == (8, 4)
    rig.scheduler.abort(["twin"])
    rig.step()
    assert rig.cache.find_prefix(twin) == 8


@pytest.mark.parametrize(
    ("max_step_tokens", "max_tokens", "taken"), [(24, 20, 5), (24, 4, 2), (5, 20, 3), (24, 2, 0)]
)
def test_drafts_keep_the_budget_and_the_end(
    max_step_tokens: int, max_tokens: int, taken: int
) -> None:
    rig = Rig(max_step_tokens=max_step_tokens)
    a = rig.add("a", 2, max_tokens=max_tokens)
    rig.add("b", 2)  # always gets its token
    rig.step()
    a.draft_ids = (5, 5, 5, 5, 5)
    plan = rig.scheduler.plan()
    assert tokens(plan) == [1 + taken, 1]
    rig.update(plan, num_accepted=taken)
    assert a.num_tokens <= 2 + max_tokens


@pytest.mark.parametrize(("num_blocks", "taken"), [(11, 0), (15, 4)])
def test_drafts_make_nobody_yield(num_blocks: int, taken: int) -> None:
    """Blocks are left for the next token of everybody, or nothing is guessed."""
    options = ContinuousOptions(growth_blocks=0)
    rig = Rig(options=options, num_blocks=num_blocks, uses_prefix_cache=False)
    a, b = rig.add("a", 12), rig.add("b", 12)
    rig.step()
    rig.step()
    a.draft_ids = (5, 5, 5, 5)
    assert len(rig.step().rows[0].drafts) == taken
    assert (a.num_preemptions, b.num_preemptions) == (0, 0)


def test_a_stop_among_accepted_drafts_ends_there() -> None:
    rig = Rig()
    a = rig.add("a", 6, stop_token_ids=(5,), min_tokens=3)
    rig.step()
    a.draft_ids = (5, 5, 5, 5)
    rig.update(rig.scheduler.plan(), num_accepted=4)
    assert (a.finish_reason, a.output_ids) == ("stop", [5, 5, 5])
    assert rig.cache.num_free_blocks == rig.cache.num_blocks


def test_one_ahead_drafts_wait_for_the_newest_token() -> None:
    rig = Rig(async_steps=True)
    a = rig.add("a", 6)
    rig.add("b", 6)
    plans = [rig.scheduler.plan(), rig.scheduler.plan()]
    rig.update(plans[0])
    a.draft_ids = (5, 5)
    third = rig.scheduler.plan()
    assert [step.row for step in third.rows] == [1]  # a's newest token is still under way
    rig.update(plans[1])
    a.draft_ids = (5, 9)
    fourth = rig.scheduler.plan()
    assert fourth.rows[0].drafts == (5, 9)
    rig.update(third)
    assert [step.row for step in rig.scheduler.plan().rows] == [1]  # a's end is not known
    rig.update(fourth, num_accepted=1)
    assert (a.num_computed_tokens, a.num_tokens, a.num_inflight) == (9, 10, 0)


def test_freed_rows_wait_for_a_plan_that_runs() -> None:
    rig = Rig()
    rig.add("a", 4, max_tokens=1)
    rig.step()
    assert rig.scheduler.plan() == StepPlan(step_id=2, rows=())
    rig.add("b", 4)
    assert rig.scheduler.plan().freed_rows == (0,)


PLAIN: dict[str, Any] = {}
GROUPS = {"windows": (None, None, 9, 9, 6), "num_blocks": 90}
LONG_TURNS = {
    "max_partial": 2,
    "max_long_partial": 1,
    "long_prompt_tokens": 15,
    "long_prefill_tokens": 6,
    "num_blocks": 30,
}
WORKER_DRAFTS: dict[str, Any] = {
    **GROUPS,
    "draft_rate": 0.8,
    "drafts_on_worker": True,
    "async_steps": True,
    "num_blocks": 70,
}
TINY = {"num_blocks": 12, "max_step_tokens": 10, "long_prefill_tokens": 5}
SIMULATIONS: list[tuple[str, Callable[[Any], SchedulingPolicy], dict[str, Any]]] = [
    ("fcfs", Fcfs, PLAIN),
    ("priority", PriorityFirst, PLAIN),
    ("fcfs-ahead", Fcfs, {"async_steps": True}),
    ("priority-ahead", PriorityFirst, {"async_steps": True, "num_blocks": 30}),
    ("groups", Fcfs, GROUPS),
    ("groups-ahead", PriorityFirst, {**GROUPS, "async_steps": True}),
    ("window-only-ahead", Fcfs, {"windows": (5,), "num_blocks": 14, "async_steps": True}),
    ("whole-prompts", Fcfs, {"uses_chunked_prefill": False, "max_step_tokens": 40}),
    ("no-prefix-ahead", PriorityFirst, {"uses_prefix_cache": False, "async_steps": True}),
    ("one-in-parts", Fcfs, {"max_partial": 1, "long_prefill_tokens": 5, "num_blocks": 30}),
    ("long-turns", PriorityFirst, LONG_TURNS),
    ("long-turns-ahead", Fcfs, {**LONG_TURNS, "async_steps": True, "draft_rate": 0.3}),
    ("tiny", Fcfs, TINY),
    ("drafts", PriorityFirst, {"draft_rate": 0.8, "num_blocks": 30}),
    ("drafts-ahead", Fcfs, {"draft_rate": 0.5, "async_steps": True}),
    ("drafts-of-the-worker", Fcfs, {"draft_rate": 0.8, "num_blocks": 30, "drafts_on_worker": True}),
    ("worker-drafts-ahead", Fcfs, WORKER_DRAFTS),
    ("drafts-groups", Fcfs, {**GROUPS, "draft_rate": 0.8, "num_blocks": 70}),
    ("pinned-prefixes", Fcfs, {**TINY, "pinned_share": 0.3}),
]


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    ("name", "policy", "settings"), SIMULATIONS, ids=[name for name, _, _ in SIMULATIONS]
)
def test_simulation(
    name: str, policy: Callable[[Any], SchedulingPolicy], settings: dict[str, Any]
) -> None:
    num_steps = NUM_SIMULATED_STEPS // len(SIMULATIONS)
    # Without blocks kept for growth there are many more preemptions.
    options = ContinuousOptions(growth_blocks=0 if "ahead" in name else 1)
    sim = SimSettings(num_steps=num_steps, seed=11, **settings)
    report = simulate(ContinuousScheduler, policy(None), sim, options)
    assert report.num_steps >= num_steps
    assert report.num_arrived == report.num_refused + sum(report.finished.values())
    assert report.num_tokens > 2 * num_steps
    assert report.finished["length"] > 0
    assert report.num_preemptions > 0
    assert (report.num_hit_tokens > 0) == settings.get("uses_prefix_cache", True)
    assert (report.num_accepted_tokens > 0) == ("draft_rate" in settings)
    if policy is Fcfs:
        # At most max_live requests are in front, each of at most max_model_tokens steps.
        assert report.max_idle_steps < 600
