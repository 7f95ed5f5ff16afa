"""Policies whose keys move: what they are shown, when, what it costs, and the longest prefix."""

from __future__ import annotations

import itertools
import logging
import random
from collections.abc import Callable

import pytest

from dovetail.engine.kv.kv_cache import KVCacheManager
from dovetail.engine.request import Request
from dovetail.errors import BrokenPlugin
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.data.step import RowResult, StepPlan, StepResult
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.scheduling_policy import RequestNow, SchedulingPolicy
from dovetail_plugins.schedulers import _keys, continuous
from dovetail_plugins.schedulers.continuous import ContinuousOptions, ContinuousScheduler
from dovetail_plugins.scheduling_policies.fcfs import Fcfs
from dovetail_plugins.scheduling_policies.longest_prefix import LongestPrefix
from dovetail_testing.simulate import SimSettings, simulate


class Moving(SchedulingPolicy):
    """Keys by a function; counts questions."""

    info = Info(summary="keys by a function")
    keys_move = True

    def __init__(self, of: Callable[[RequestNow], float]) -> None:
        self._of = of
        self.asked: list[str] = []

    def key(self, request: RequestNow) -> tuple[float, ...]:
        self.asked.append(request.request_id)
        return (self._of(request),)


class Bench:
    """A scheduler over real block accounting, with a clock that stands still."""

    def __init__(
        self,
        policy: SchedulingPolicy,
        monkeypatch: pytest.MonkeyPatch,
        options: ContinuousOptions | None = None,
        **settings: int,
    ) -> None:
        made = SimSettings(**settings)
        self.now_s = 0.0
        monkeypatch.setattr(continuous, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(_keys, "monotonic", lambda: self.now_s)
        self.cache = KVCacheManager(made.layout(), made.cache(), b"bench")
        self.scheduler = ContinuousScheduler(
            options or ContinuousOptions(), made.schedule(), self.cache, policy
        )
        self.max_model_tokens = made.max_model_tokens

    def add(self, name: str, prompt_ids: range | list[int], max_tokens: int = 100) -> Request:
        request = Request(
            request_id=name,
            prompt_ids=prompt_ids,
            sampling=SamplingParams(max_tokens=max_tokens),
            seed=0,
            max_model_tokens=self.max_model_tokens,
            arrival_s=self.now_s,
        )
        self.scheduler.add(request)
        return request

    def step(self) -> list[str]:
        """Run a step; return the requests that started."""
        plan: StepPlan = self.scheduler.plan()
        rows = tuple(
            RowResult(row=row.row, token_ids=(5,) if row.samples else ()) for row in plan.rows
        )
        self.scheduler.update(plan, StepResult(step_id=plan.step_id, rows=rows))
        self.cache.check_invariants()
        return [new.request_id for new in plan.new_rows]


def test_a_policy_sees_what_has_become_of_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, tuple[float, ...]] = {}

    def look(request: RequestNow) -> float:
        seen[request.request_id] = (
            request.num_tokens,
            request.num_computed_tokens,
            request.num_prefix_tokens,
            request.num_preemptions,
            request.max_tokens,
            request.now_s,
        )
        return request.arrival_s

    bench = Bench(Moving(look), monkeypatch, max_rows=2)
    bench.add("a", range(10), max_tokens=2)
    assert seen["a"] == (10, 0, 0, 0, 12, 0)
    bench.add("b", range(12), max_tokens=20)
    bench.now_s = 1.0
    bench.add("twin", range(12), max_tokens=9)
    bench.step()
    bench.now_s = 2.0
    bench.step()
    assert seen["a"] == (11, 10, 10, 0, 12, 2.0)
    assert seen["b"] == (13, 12, 12, 0, 32, 2.0)
    assert seen["twin"] == (12, 0, 0, 0, 21, 1.0), "no row is free, so it was not asked about"
    bench.now_s = 3.0
    assert bench.step() == ["twin"]
    assert seen["twin"] == (12, 0, 8, 0, 21, 3.0), "whole blocks but for the last token"


def test_the_victim_is_chosen_by_numbers_of_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Moving(lambda request: -request.num_computed_tokens)
    bench = Bench(policy, monkeypatch, ContinuousOptions(growth_blocks=0), num_blocks=9)
    long, short = bench.add("long", range(15)), bench.add("short", range(100, 111))
    while not long.num_preemptions + short.num_preemptions:
        bench.step()
    assert (long.num_preemptions, short.num_preemptions) == (0, 1)
    other = Bench(Fcfs(None), monkeypatch, ContinuousOptions(growth_blocks=0), num_blocks=9)
    short, long = other.add("short", range(100, 111)), other.add("long", range(15))
    while not long.num_preemptions + short.num_preemptions:
        other.step()
    assert (long.num_preemptions, short.num_preemptions) == (1, 0)


def test_a_plan_asks_about_so_many_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Moving(lambda request: float(request.request_id))
    options = ContinuousOptions(asked_requests=10)
    bench = Bench(policy, monkeypatch, options, max_rows=2, num_blocks=400, max_step_tokens=8)
    for number in range(100):
        bench.add(str(number), range(number * 100, number * 100 + 3))
    policy.asked.clear()
    bench.step()
    assert policy.asked == ["0", "1"], "only who starts"
    policy.asked.clear()
    bench.step()
    assert sorted(policy.asked) == ["0", "1"], "all rows are taken: only who runs"


def test_a_plan_does_not_ask_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = itertools.count()
    policy = Moving(lambda request: float(next(numbers)))
    options = ContinuousOptions(asked_requests=10)
    bench = Bench(policy, monkeypatch, options, max_rows=1, num_blocks=400)
    for number in range(100):
        bench.add(str(number), range(number * 100, number * 100 + 3))
    policy.asked.clear()
    assert bench.step() == ["10"]
    assert policy.asked == [str(number) for number in range(10)]


def test_no_key_of_a_long_queue_is_old(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = "50"
    policy = Moving(lambda request: -1.0 if request.request_id == chosen else 0.0)
    options = ContinuousOptions(asked_requests=80)
    # A row is free, but the first of the queue is longer than what is left of the blocks.
    bench = Bench(policy, monkeypatch, options, max_rows=2, num_blocks=20, max_model_tokens=90)
    for number in range(101):
        bench.add(str(number), range(number * 100, number * 100 + 40))
    assert bench.step() == ["50"]
    chosen = "90"
    policy.asked.clear()
    for _ in range(20):
        bench.step()
    assert len(set(policy.asked)) == 101
    assert bench.scheduler._waiting[0].request.request_id == "90"


def test_static_keys_are_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Moving(lambda request: request.arrival_s)
    policy.keys_move = False  # type: ignore[misc]
    bench = Bench(policy, monkeypatch, ContinuousOptions(growth_blocks=0), num_blocks=9)
    requests = [bench.add(str(number), range(number * 100, number * 100 + 12)) for number in (1, 2)]
    for _ in range(40):
        bench.step()
    assert sum(request.num_preemptions for request in requests) > 0
    assert policy.asked == ["1", "2"]


@pytest.mark.parametrize("growth_blocks", [0, 1])
@pytest.mark.parametrize("step_tokens", [2, 8])
def test_requests_do_not_preempt_each_other_for_ever(
    growth_blocks: int, step_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is preempted starts again when there is room for it, so somebody draws tokens."""
    chance = random.Random(3)
    options = ContinuousOptions(growth_blocks=growth_blocks)
    policy = Moving(lambda request: chance.random())
    bench = Bench(policy, monkeypatch, options, num_blocks=12, max_step_tokens=step_tokens)
    requests = [
        bench.add(str(number), range(number * 100, number * 100 + 12), max_tokens=24)
        for number in range(4)
    ]
    for _ in range(200):
        bench.step()
    assert all(request.is_finished for request in requests)
    assert sum(request.num_preemptions for request in requests) > 0


def test_a_policy_that_fails_later_ends_no_request(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(Moving(lambda request: 1.0 / (request.num_tokens - 5)), monkeypatch)
    with pytest.raises(ZeroDivisionError):
        bench.add("refused", range(5))
    first, other = bench.add("a", range(4), 5), bench.add("b", range(20, 24), 5)
    with caplog.at_level(logging.ERROR):
        for _ in range(8):
            bench.step()
    assert first.is_finished and other.is_finished
    assert [record.message.split(",")[0] for record in caplog.records] == [
        "the scheduling policy failed on request a"
    ]


@pytest.mark.parametrize("key", [[1.0], (float("nan"),)])
def test_a_key_that_is_no_key_is_refused(key: object, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Moving(lambda request: 0.0)
    bench = Bench(policy, monkeypatch)
    monkeypatch.setattr(policy, "key", lambda request: key)
    with pytest.raises(BrokenPlugin, match="finite numbers"):
        bench.add("a", range(4))


# ---- longest prefix


def test_the_longest_cached_prefix_starts_first(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = LongestPrefix(LongestPrefix.Options())
    bench = Bench(policy, monkeypatch, max_rows=1, num_blocks=60)
    bench.add("first", range(20), max_tokens=1)
    bench.step()
    bench.add("other", range(500, 520), max_tokens=1)
    bench.add("half", [*range(8), *range(900, 912)], max_tokens=1)
    bench.add("same", range(20), max_tokens=1)
    assert [bench.step() for _ in range(3)] == [["same"], ["half"], ["other"]]


def test_a_prefix_that_is_computed_while_others_wait_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy = LongestPrefix(LongestPrefix.Options())
    bench = Bench(policy, monkeypatch, max_rows=1, num_blocks=60)
    bench.add("a1", range(20), max_tokens=1)
    bench.add("b1", range(500, 520), max_tokens=1)
    bench.add("a2", range(20), max_tokens=1)
    bench.add("b2", range(500, 520), max_tokens=1)
    assert [bench.step() for _ in range(4)] == [["a1"], ["a2"], ["b1"], ["b2"]]


def test_nobody_waits_longer_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """One request is overtaken by an endless stream of others with a cached prefix."""
    policy = LongestPrefix(LongestPrefix.Options(max_wait_s=5.0))
    bench = Bench(policy, monkeypatch, max_rows=1, num_blocks=60)
    bench.add("popular-0", range(20), max_tokens=1)
    bench.step()
    bench.add("lonely", range(500, 520), max_tokens=1)
    started: dict[str, float] = {}
    for number in range(1, 30):
        bench.add(f"popular-{number}", range(20), max_tokens=1)
        started |= dict.fromkeys(bench.step(), bench.now_s)
        bench.now_s += 0.5
    assert 5.0 < started["lonely"] <= 6.0
    assert started["popular-3"] < 5.0


def _share_of_hits(policy: SchedulingPolicy, monkeypatch: pytest.MonkeyPatch) -> float:
    """Return the hit rate of 12 long prefixes in random order, of which three fit the cache."""
    bench = Bench(
        policy, monkeypatch, max_rows=2, num_blocks=60, max_model_tokens=90, max_step_tokens=64
    )
    order = [family for family in range(12) for _ in range(8)]
    random.Random(7).shuffle(order)
    for number, family in enumerate(order):
        prompt = [*range(family * 1_000, family * 1_000 + 60), 50_000 + number]
        bench.add(str(number), prompt, max_tokens=4)
    while sum(bench.scheduler.counts()):
        bench.step()
    return bench.cache.num_hit_tokens / bench.cache.num_queried_tokens


def test_more_of_the_prompts_is_found_than_by_arrival(monkeypatch: pytest.MonkeyPatch) -> None:
    by_arrival = _share_of_hits(Fcfs(None), monkeypatch)
    by_prefix = _share_of_hits(LongestPrefix(LongestPrefix.Options()), monkeypatch)
    assert by_prefix > 0.8
    assert by_arrival < 0.5 * by_prefix


@pytest.mark.parametrize("max_wait_s", [0.05, 10.0])
@pytest.mark.parametrize("async_steps", [False, True])
def test_simulation(max_wait_s: float, async_steps: bool) -> None:
    settings = SimSettings(
        num_steps=2_000, seed=3, async_steps=async_steps, num_blocks=30, draft_rate=0.3,
        num_host_blocks=20,
    )  # fmt: skip
    policy = LongestPrefix(LongestPrefix.Options(max_wait_s=max_wait_s))
    report = simulate(ContinuousScheduler, policy, settings, ContinuousOptions(growth_blocks=0))
    assert report.num_arrived == report.num_refused + sum(report.finished.values())
    assert min(report.num_preemptions, report.num_hit_tokens, report.num_swaps) > 0
