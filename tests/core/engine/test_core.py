"""EngineCore: the step, faults, aborts, numbers."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from typing import Any

import pytest

from dovetail.engine import core as core_module
from dovetail.engine.core import EngineCore, StepOutput
from dovetail.engine.messages import CallWorkers, EngineRequest, RequestUpdate
from dovetail.errors import ConfigError, EngineDead, RequestError
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.data.step import StepPlan
from dovetail.interfaces.executor import WorkerCall
from dovetail.interfaces.stats import StepStats
from dovetail_testing.fakes.engine import EOS, fake_spec
from support.inside import executor_of, pool_of, scheduler_of


def request(request_id: str, prompt: str = "prompt", **fields: Any) -> EngineRequest:
    seed = fields.pop("seed", 0)
    priority = fields.pop("priority", 0)
    params = SamplingParams(**{"max_tokens": 8, "eos_token_ids": (EOS,)} | fields)
    return EngineRequest(
        request_id=request_id,
        prompt_ids=tuple(prompt.encode()),
        sampling=params,
        seed=seed,
        priority=priority,
    )


class Run:
    """Steps a core and keeps what came."""

    def __init__(self, **changes: Any) -> None:
        self.core = EngineCore(fake_spec(**changes))
        self.tokens: dict[str, list[int]] = {}
        self.ends: dict[str, RequestUpdate] = {}
        self.stats: list[StepStats] = []

    def step(self) -> StepOutput:
        output = self.core.step()
        for update in output.updates:
            assert update.request_id not in self.ends, "news of a finished request"
            self.tokens.setdefault(update.request_id, []).extend(update.token_ids)
            if update.finish_reason is not None:
                self.ends[update.request_id] = update
        if output.stats is not None:
            self.stats.append(output.stats)
        return output

    def finish(self) -> dict[str, list[int]]:
        while self.core.has_work:
            self.step()
        self.core.check_idle()
        return self.tokens


def alone(one: EngineRequest, **changes: Any) -> list[int]:
    run = Run(**changes)
    run.core.add(one)
    return run.finish()[one.request_id]


@pytest.mark.parametrize("async_steps", [False, True])
def test_many_requests_get_the_tokens_each_gets_alone(async_steps: bool) -> None:
    changes: dict[str, Any] = {"async_steps": async_steps, "max_rows": 5, "max_step_tokens": 16}
    requests = [
        request(f"r{i}", "p" * (1 + i * 3), seed=i, max_tokens=1 + i % 7) for i in range(16)
    ]
    run = Run(**changes)
    for one in requests:
        run.core.add(one)
    together = run.finish()
    assert together == {one.request_id: alone(one, **changes) for one in requests}
    assert all(end.finish_reason == "length" for end in run.ends.values())


def test_async_steps_submit_before_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(async_steps=True)
    events: list[str] = []
    submit = executor_of(run.core).submit

    class Watched:
        def __init__(self, plan: StepPlan) -> None:
            events.append(f"submit {plan.step_id}")
            self.step_id = plan.step_id
            self.pending = submit(plan)

        def result(self) -> Any:
            events.append(f"result {self.step_id}")
            return self.pending.result()

    monkeypatch.setattr(executor_of(run.core), "submit", Watched)
    run.core.add(request("r", max_tokens=3))
    run.finish()
    assert events[:4] == ["submit 1", "submit 2", "result 1", "submit 3"]


def test_a_row_fault_ends_one_request() -> None:
    run = Run()
    healthy = request("good", seed=3)
    run.core.add(request("bad", "a FAULT here"))
    run.core.add(healthy)
    assert run.finish()["good"] == alone(healthy)
    assert run.ends["bad"].finish_reason == "error"
    assert "NaN" in (run.ends["bad"].error or "")
    assert sum(stats.faults for stats in run.stats) == 1


def test_a_request_that_the_scheduler_refuses_keeps_status_and_code() -> None:
    run = Run()
    run.core.add(request("empty", ""))
    run.core.add(request("ok"))
    run.finish()
    end = run.ends["empty"]
    assert (end.error_status, end.error_code, end.finish_reason) == (400, "no_tokens", "error")
    assert run.ends["ok"].finish_reason == "length"


def test_a_policy_that_raises_ends_the_request_it_was_asked_about() -> None:
    run = Run()
    run.core.add(request("odd", priority=666))
    run.core.add(request("even"))
    run.finish()
    assert run.ends["odd"].error_status == 500
    assert "666" in (run.ends["odd"].error or "")
    assert run.ends["even"].finish_reason == "length"


def test_aborts_at_random_moments_leave_every_block_free() -> None:
    rng = random.Random(7)
    run = Run(async_steps=True, max_rows=4, max_step_tokens=8)
    alive: set[str] = set()
    for i in range(120):
        if rng.random() < 0.6:
            run.core.add(request(f"r{i}", "p" * rng.randint(1, 30), seed=i))
            alive.add(f"r{i}")
        if alive and rng.random() < 0.5:
            victim = rng.choice(sorted(alive))
            alive.discard(victim)
            run.core.abort([victim, "nobody"])
        if run.core.has_work:
            run.step()
    run.finish()
    assert run.core.cache.num_free_blocks == run.core.cache.num_blocks
    assert {end.finish_reason for end in run.ends.values()} == {"abort", "length"}


def test_an_abort_is_told_once_and_at_once() -> None:
    run = Run()
    run.core.add(request("r"))
    run.step()
    run.core.abort(["r"])
    run.core.abort(["r"])
    run.finish()
    assert run.ends["r"].finish_reason == "abort"


def test_a_lost_worker_ends_the_engine() -> None:
    run = Run(options={"dies_at_step": 3})
    run.core.add(request("r"))
    with pytest.raises(EngineDead, match="fake worker"):
        run.finish()


def test_stop_tokens_and_end_tokens() -> None:
    run = Run(options={"script": "abc"})
    run.core.add(request("end", max_tokens=9))
    run.core.add(request("stop", max_tokens=9, stop_token_ids=(ord("b"),)))
    run.finish()
    assert run.tokens["end"] == [*b"abc", EOS]
    assert run.ends["end"].stop_reason is None
    assert run.tokens["stop"] == list(b"ab")
    assert run.ends["stop"].stop_reason == ord("b")


def test_logprobs_and_prompt_logprobs_come_once() -> None:
    run = Run(max_step_tokens=4)
    run.core.add(request("r", "0123456789", logprobs=2, prompt_logprobs=1, max_tokens=2))
    updates = []
    while run.core.has_work:
        updates.extend(run.step().updates)
    told = [u.prompt_logprobs for u in updates if u.prompt_logprobs is not None]
    assert [[entry.token_id for entry in entries] for entries in told] == [list(b"123456789")]
    assert [len(update.logprobs) for update in updates] == [1, 1]


def test_prefix_hits_are_counted_and_told() -> None:
    run = Run()
    run.core.add(request("one", "the same long prompt"))
    run.finish()
    run.core.add(request("two", "the same long prompt"))
    run.finish()
    assert run.ends["two"].num_cached_tokens == 16
    assert sum(stats.prefix_hit_tokens for stats in run.stats) == 16
    assert run.tokens["one"] == run.tokens["two"]


def test_numbers_add_up() -> None:
    run = Run(max_step_tokens=8)
    for i in range(3):
        run.core.add(request(f"r{i}", "x" * 10, max_tokens=4))
    run.finish()
    assert sum(stats.prompt_tokens for stats in run.stats) == 30
    assert sum(stats.generated_tokens for stats in run.stats) == 12
    assert max(stats.step_tokens for stats in run.stats) <= 8
    assert max(stats.num_running for stats in run.stats) == 3
    assert run.stats[-1].num_running == 0 and run.stats[-1].kv_usage == 0.0
    assert all(stats.step_s >= stats.forward_s >= 0 for stats in run.stats)


def test_a_scheduler_that_plans_nothing_is_waited_for_and_then_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = Run()
    monkeypatch.setattr(core_module, "STALL_LIMIT_S", 0.0)
    monkeypatch.setattr(scheduler_of(run.core), "plan", lambda: StepPlan(step_id=1, rows=()))
    run.core.add(request("r"))
    assert run.step().is_stalled
    run.finish()
    assert run.ends["r"].finish_reason == "error"


def test_lost_blocks_are_noticed_when_idle() -> None:
    run = Run()
    pool_of(run.core.cache).take(1)
    with pytest.raises(AssertionError):
        run.core.check_idle()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_blocks": 1}, "KV blocks fit"),
        ({"num_blocks": 10}, "holds 37 tokens"),
        ({"options": {"start_error": "no weights"}}, "no weights"),
        ({"options": {"speed": 3}}, "speed"),
    ],
)
def test_what_cannot_be_is_a_config_error(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineCore(fake_spec(**changes))


def test_the_advised_context_length_starts_and_one_more_does_not() -> None:
    EngineCore(fake_spec(num_blocks=10, max_model_tokens=37))
    with pytest.raises(ConfigError):
        EngineCore(fake_spec(num_blocks=10, max_model_tokens=38))


def test_the_step_is_short() -> None:
    step: Callable[..., Any] = EngineCore.step
    assert len(inspect.getsource(step).splitlines()) < 40


@pytest.mark.parametrize("failing", ["read_weights", "update_weights", ""])
def test_weights_are_replaced_on_all_ranks_or_on_none(
    failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a rank cannot read, no rank uses; an engine of which only some ranks use it dies."""
    run, calls = Run(), []
    executor = executor_of(run.core)

    def called(call: WorkerCall) -> list[Any]:
        calls.append((call.method, call.kwargs.get("path")))
        if call.method == failing:
            raise RequestError("rank 1: no luck.")
        return [None]

    monkeypatch.setattr(executor, "collective_rpc", called)
    call = WorkerCall(method="update_weights", kwargs={"path": "p", "version": "v"})
    if not failing:
        run.core.perform(CallWorkers(call))
        assert run.core.condition().weights == {"path": "p", "version": "v"}
        assert calls == [("read_weights", "p"), ("update_weights", "p")]
        return
    is_read = failing == "update_weights"
    with pytest.raises(EngineDead if is_read else RequestError, match="rank 1: no luck"):
        run.core.perform(CallWorkers(call))
    assert run.core.condition().weights == {}
    assert calls[1] == (("update_weights", "p") if is_read else ("drop_weights", None))


def test_blocks_of_running_requests_are_not_found_after_a_reset() -> None:
    """Neither those they have nor those they fill later, where another has the blocks before."""
    run = Run()
    run.core.add(request("old", "a" * 40, max_tokens=30))
    run.step()
    run.core.reset_prefix_cache()
    run.finish()
    hits = []
    for name, text in (("new", []), ("more", run.tokens["old"])):
        before = run.core.cache.num_hit_tokens
        run.core.add(request(name, "a" * 40 + "".join(map(chr, text)), max_tokens=1))
        run.finish()
        hits.append(run.core.cache.num_hit_tokens - before)
    assert hits == [0, 40]
