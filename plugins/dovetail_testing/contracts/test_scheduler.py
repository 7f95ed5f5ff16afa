"""Scheduler: simulated without a model; every promise is checked after every step.

The simulation is `dovetail_testing.simulate`, over the real block accounting.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dovetail import registry
from dovetail.engine.request import NO_ROW, Request
from dovetail.errors import RequestError
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.data.step import RowResult, StepPlan, StepResult
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.scheduler import RequestState
from dovetail.interfaces.scheduling_policy import RequestNow, SchedulingPolicy
from dovetail_testing.contract import requires
from dovetail_testing.simulate import SimReport, SimSettings, Simulation, simulate

PLAIN = SimSettings(num_steps=600)
ROOMY = replace(PLAIN, num_blocks=400)
TIGHT = replace(PLAIN, num_blocks=24, max_live=30, arrival_rate=0.7)


def policy(name: str = "fcfs") -> SchedulingPolicy:
    """Return a scheduling policy by name."""
    plugin = registry.load("scheduling_policy", name)
    scheduling_policy: SchedulingPolicy = plugin(plugin.Options())
    return scheduling_policy


def run(plugin: Any, settings: SimSettings, policy_name: str = "fcfs") -> SimReport:
    """Return the report of one simulation with the plugin's default options."""
    return simulate(plugin, policy(policy_name), settings)


class ByProgress(SchedulingPolicy):
    """Those first whose work is furthest (sign -1), or least so, who then preempt each other."""

    info = Info(summary="by the number of computed tokens")
    keys_move = True

    def __init__(self, sign: int) -> None:
        self._sign = sign

    def key(self, request: RequestNow) -> tuple[float, ...]:
        """Return the number of tokens that need no computation, or minus that."""
        return (float(self._sign * request.num_prefix_tokens),)


class Bench:
    """A scheduler over an empty cache, for one request at a time."""

    def __init__(self, plugin: Any) -> None:
        settings = replace(ROOMY, max_step_tokens=128, max_model_tokens=128)
        chunked = "chunked_prefill" in plugin.capabilities
        simulation = Simulation(plugin, policy(), replace(settings, uses_chunked_prefill=chunked))
        self.scheduler = simulation.scheduler
        self.cache = simulation.cache

    def answer(self, plan: StepPlan, fault: str | None = None) -> list[RequestState]:
        """Give every row a token or this fault; return the requests that changed."""
        drawn = tuple(
            RowResult(row=step.row, token_ids=(7,) if step.samples else (), fault=fault)
            for step in plan.rows
        )
        return list(self.scheduler.update(plan, StepResult(step_id=plan.step_id, rows=drawn)))

    def is_empty(self) -> None:
        """Check that no request owns anything."""
        self.cache.check_invariants()
        assert self.scheduler.counts() == (0, 0)
        assert self.cache.num_free_blocks == self.cache.num_blocks


@pytest.fixture
def bench(plugin: Any) -> Bench:
    """Return the plugin's scheduler with its default options."""
    return Bench(plugin)


def new_request(num_tokens: int) -> Request:
    """Return a request whose prompt has this many tokens."""
    return Request(
        request_id="r",
        prompt_ids=range(num_tokens),
        sampling=SamplingParams(),
        seed=0,
        max_model_tokens=128,
    )


class TestScheduler:
    """Clauses of schedulers. Unchunked prefill is set if the plugin does not claim it."""

    kind = "scheduler"

    @pytest.mark.parametrize("seed", range(3))
    def test_keeps_every_promise(self, plugin: Any, seed: int) -> None:
        """Budgets, rows, blocks, aborts and outputs hold with random requests; all drains."""
        chunked = "chunked_prefill" in plugin.capabilities
        settings = replace(ROOMY, seed=seed, uses_chunked_prefill=chunked)
        settings = settings if chunked else replace(settings, max_step_tokens=128)
        report = run(plugin, settings)
        assert sum(report.finished.values()) == report.num_arrived - report.num_refused

    @requires("chunked_prefill")
    def test_divides_long_prompts(self, plugin: Any) -> None:
        """Prompts longer than the budget are computed, in parts."""
        report = run(plugin, replace(ROOMY, max_step_tokens=8, long_prefill_tokens=4))
        assert report.finished["stop"] + report.finished["length"] > 0

    @requires("preemption")
    def test_recomputes_what_it_preempts(self, plugin: Any) -> None:
        """With few blocks requests yield, come back, and end with the same tokens."""
        report = run(plugin, TIGHT)
        assert report.num_preemptions > 0

    @requires("swap")
    @pytest.mark.parametrize("num_host_blocks", [12, 400])
    def test_swapped_blocks_are_where_they_should_be(
        self, plugin: Any, num_host_blocks: int
    ) -> None:
        """With much and with little host memory every block has the expected content."""
        report = run(plugin, replace(TIGHT, num_host_blocks=num_host_blocks))
        assert report.num_swaps > 0

    @requires("async_steps")
    def test_plans_one_ahead(self, plugin: Any) -> None:
        """Every promise holds when results come a step late."""
        report = run(plugin, replace(TIGHT, async_steps=True))
        assert report.num_tokens > 0

    @requires("async_steps")
    def test_plans_one_ahead_over_several_kv_groups(self, plugin: Any) -> None:
        """Blocks that leave a window are not reused while a step in flight reads them."""
        chunked = "chunked_prefill" in plugin.capabilities
        settings = replace(ROOMY, async_steps=True, windows=(None, 9, 6), num_blocks=120)
        run(plugin, replace(settings, max_step_tokens=128, uses_chunked_prefill=chunked))

    @requires("pipeline")
    @pytest.mark.parametrize("windows", [(None,), (None, 9, 6)])
    def test_keeps_the_stages_of_a_pipeline_busy(
        self, plugin: Any, windows: tuple[int | None, ...]
    ) -> None:
        """As many plans are in flight as there are stages, of requests whose tokens are known."""
        is_drafting = "drafts" in plugin.capabilities
        settings = replace(TIGHT, num_stages=3, draft_rate=0.5 if is_drafting else 0.0)
        if len(windows) > 1:
            settings = replace(settings, windows=windows, num_blocks=120, max_step_tokens=128)
        assert run(plugin, settings).max_plans_in_flight == 3

    @requires("drafts")
    @pytest.mark.parametrize("async_steps", [False, True])
    def test_drafts_change_no_token(self, plugin: Any, async_steps: bool) -> None:
        """Drafts keep the budget, and what did not come true is neither cached nor skipped."""
        is_ahead = async_steps and "async_steps" in plugin.capabilities
        chunked = "chunked_prefill" in plugin.capabilities
        settings = replace(ROOMY, async_steps=is_ahead, uses_chunked_prefill=chunked)
        step_tokens = ROOMY.max_step_tokens if chunked else 128
        report = run(plugin, replace(settings, draft_rate=0.8, max_step_tokens=step_tokens))
        assert report.num_draft_tokens > report.num_accepted_tokens > 0

    @requires("worker_drafts")
    @pytest.mark.parametrize("async_steps", [False, True])
    def test_drafts_of_the_worker_have_room(self, plugin: Any, async_steps: bool) -> None:
        """No more are requested than a request wants, and blocks are there before they are made."""
        is_ahead = async_steps and "async_steps" in plugin.capabilities
        settings = replace(ROOMY, async_steps=is_ahead, drafts_on_worker=True, draft_rate=0.9)
        report = run(plugin, settings)
        assert report.num_draft_tokens > report.num_accepted_tokens > 0

    @requires("priority")
    def test_follows_the_policy(self, plugin: Any) -> None:
        """The simulation checks the order of every plan under a policy with priorities."""
        report = run(plugin, TIGHT, "priority")
        assert report.num_tokens > 0

    @requires("priority")
    def test_asks_again_about_keys_that_move(self, plugin: Any) -> None:
        """The policy sees true numbers before every plan; whatever it says, requests end."""
        for sign in (1, -1):
            report = simulate(plugin, ByProgress(sign), TIGHT)
            assert sum(report.finished.values()) == report.num_arrived - report.num_refused

    def test_reuses_prefixes(self, plugin: Any) -> None:
        """Requests that begin alike find each other's blocks."""
        chunked = "chunked_prefill" in plugin.capabilities
        settings = replace(ROOMY, uses_chunked_prefill=chunked, max_step_tokens=128)
        assert run(plugin, settings).num_hit_tokens > 0

    def test_several_kv_groups(self, plugin: Any) -> None:
        """Models that mix full and sliding-window layers keep every promise."""
        chunked = "chunked_prefill" in plugin.capabilities
        settings = replace(ROOMY, windows=(None, 8), uses_chunked_prefill=chunked)
        run(plugin, replace(settings, max_step_tokens=128))

    def test_is_deterministic(self, plugin: Any) -> None:
        """The same arrivals give the same plans."""
        chunked = "chunked_prefill" in plugin.capabilities
        settings = replace(ROOMY, uses_chunked_prefill=chunked, max_step_tokens=128)
        assert run(plugin, settings) == run(plugin, settings)

    def test_plans_nothing_for_nobody(self, bench: Bench) -> None:
        """Without requests a plan has no rows, and names no freed ones either."""
        assert bench.scheduler.counts() == (0, 0)
        plan = bench.scheduler.plan()
        assert (plan.rows, plan.new_rows, plan.freed_rows) == ((), (), ())

    @pytest.mark.parametrize("num_tokens", [0, 128, 1_000])
    def test_refuses_what_never_fits(self, bench: Bench, num_tokens: int) -> None:
        """An empty prompt and one that fills the context are refused and leave no trace."""
        with pytest.raises(RequestError):
            bench.scheduler.add(new_request(num_tokens))
        assert bench.scheduler.counts() == (0, 0)
        assert bench.scheduler.plan().rows == ()

    @pytest.mark.parametrize("stage", ["waiting", "in flight", "running"])
    def test_abort_ends_at_every_stage(self, bench: Bench, stage: str) -> None:
        """An aborted request immediately owns nothing, and a later result is ignored."""
        request = new_request(20)
        bench.scheduler.add(request)
        plan = None if stage == "waiting" else bench.scheduler.plan()
        if plan is not None and stage == "running":
            bench.answer(plan)
        assert list(bench.scheduler.abort(["unknown", "r"], "stop")) == [request]
        assert list(bench.scheduler.abort(["r"])) == []
        bench.is_empty()
        if plan is not None and stage == "in flight":
            assert bench.answer(plan) == []
        assert (request.finish_reason, request.row) == ("stop", NO_ROW)
        bench.is_empty()

    @requires("preemption")
    @pytest.mark.parametrize("stage", ["waiting", "in flight", "running"])
    def test_takes_all_blocks_when_asked(self, bench: Bench, stage: str) -> None:
        """No request owns a block or a row afterwards; each is computed again, with its tokens."""
        request = new_request(20)
        bench.scheduler.add(request)
        plan = None if stage == "waiting" else bench.scheduler.plan()
        if plan is not None and stage == "running":
            bench.answer(plan)
        bench.scheduler.preempt_all()
        bench.cache.check_invariants()
        assert bench.cache.num_free_blocks == bench.cache.num_blocks
        assert (request.row, request.num_computed_tokens) == (NO_ROW, 0)
        if plan is not None and stage == "in flight":
            bench.answer(plan)
        num_tokens = request.num_tokens
        assert bench.scheduler.counts() == (0, 1)
        assert bench.answer(bench.scheduler.plan()) == [request]
        assert request.num_tokens == num_tokens + 1
        bench.scheduler.abort(["r"])
        bench.is_empty()

    def test_a_fault_ends_one_request(self, bench: Bench) -> None:
        """The request ends with the fault's text, and its blocks are not found again."""
        request = new_request(20)
        bench.scheduler.add(request)
        assert bench.answer(bench.scheduler.plan()) == [request]
        assert bench.answer(bench.scheduler.plan(), fault="NaN logits") == [request]
        assert (request.finish_reason, request.error) == ("error", "NaN logits")
        bench.is_empty()
        assert bench.cache.find_prefix(new_request(20)) == 0
