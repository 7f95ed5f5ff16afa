"""Executor: steps run in order, ahead of their results if claimed; a fault is reported."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from dovetail import registry
from dovetail.errors import ConfigError, EngineDead, RequestError
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.data.spec import RankSpec, Selection
from dovetail.interfaces.data.step import StepPlan
from dovetail.interfaces.executor import Executor, WorkerCall
from dovetail_testing.contract import default_options, requires
from dovetail_testing.scripted_steps import Collector, Driver, DriveRequest
from dovetail_testing.tiny.transformer import tiny_layout, tiny_run

WORKER = Selection(kind="worker", name="tiny", target="dovetail_testing.tiny.worker:TinyWorker")
SLEEPING = Selection(
    kind="worker", name="sleeping", target="dovetail_testing.tiny.worker:SleepingWorker"
)
STAGED = Selection(kind="worker", name="stage", target="dovetail_testing.stage_worker:StageWorker")
METHODS = "dovetail_testing.tiny.worker:TinyMethods"
REPLAY = "dovetail_testing.models:ReplayModel"
DEADLINE_S = 10.0
REQUESTS = (
    DriveRequest(request_id="a", prompt_ids=(5, 6, 7, 8, 9)),
    DriveRequest(request_id="b", prompt_ids=(9,), sampling=SamplingParams(), seed=7, joins_at=1),
    DriveRequest(request_id="c", prompt_ids=tuple(range(20)), joins_at=2),
)


def started(plugin: Any, *, worker: Selection = WORKER, **changes: Any) -> Executor:
    """Return an executor that is ready to step."""
    executor: Executor = plugin(default_options(plugin), tiny_run(**changes), worker)
    executor.allocate(tiny_layout(executor.kv_layers()))
    return executor


def run(executor: Executor, *, ahead: int = 0) -> dict[str, list[int]]:
    """Return each request's tokens, with `ahead` steps submitted before a result is read."""
    collector, waiting = Collector(), deque[Any]()
    for plan in Driver(tiny_layout(executor.kv_layers())).plans(REQUESTS, chunk_tokens=7):
        waiting.append((plan, executor.submit(plan)))
        while len(waiting) > ahead:
            done, pending = waiting.popleft()
            collector.add(done, pending.result())
    for done, pending in waiting:
        collector.add(done, pending.result())
    assert not any(output.faults for output in collector.outputs.values())
    return {name: output.token_ids for name, output in collector.outputs.items()}


def crashing(plugin: Any, **changes: Any) -> Executor:
    """Return an executor whose model raises at output position 1."""
    config = {"replay": [{"tokens": [7, 8, 9], "crash_at": 1}], "cue_base": 90}
    return started(plugin, model=REPLAY, hf_config=config, **changes)


def check_calls_of_two(executor: Executor) -> None:
    """Check that two ranks are called: answers in their order, faults and late ranks by number."""
    answers = executor.collective_rpc(WorkerCall(method="place", args=("a",)))
    assert answers == [{"rank": rank, "args": ["a"]} for rank in range(2)]
    with pytest.raises(RequestError, match="rank 1: fail raised ValueError: no luck"):
        executor.collective_rpc(WorkerCall(method="fail", args=(1,)))
    with pytest.raises(RequestError, match="on rank 0, 1"):
        executor.collective_rpc(WorkerCall(method="nap", args=(0.3,), timeout_s=0.05))
    answers = executor.collective_rpc(WorkerCall(method="place"))
    assert [answer["rank"] for answer in answers] == [0, 1]


class Shared:
    """Executors that clauses share, for starting one may take seconds: with and without steps
    ahead."""

    def __init__(self) -> None:
        self._made: dict[bool, Executor] = {}

    def get(self, plugin: Any, *, async_steps: bool = False) -> Executor:
        """Return an executor ready to step, whose worker can sleep."""
        if async_steps not in self._made:
            self._made[async_steps] = started(
                plugin, worker=SLEEPING, async_steps=async_steps, worker_extension=METHODS
            )
        return self._made[async_steps]

    def close(self) -> None:
        """Shut down what was made."""
        for executor in self._made.values():
            executor.shutdown()


@pytest.fixture(scope="class")
def shared(entry: Any) -> Iterator[Shared]:
    """Return the executors of one plugin."""
    executors = Shared()
    yield executors
    executors.close()


@pytest.fixture
def executor(plugin: Any, shared: Shared) -> Executor:
    """Return an executor ready to step."""
    return shared.get(plugin)


class TestExecutor:
    """Clauses of executors, over a tiny model on the CPU."""

    kind = "executor"

    def test_runs_plans(self, executor: Executor) -> None:
        """Every request gets its tokens; the same again gives the same."""
        drawn = run(executor)
        assert {name: len(ids) for name, ids in drawn.items()} == {"a": 6, "b": 6, "c": 6}
        assert run(executor) == drawn
        executor.check()

    def test_tells_about_memory(self, executor: Executor) -> None:
        """kv_layers and free_bytes answer for the ranks."""
        assert [layer.name for layer in executor.kv_layers()] == ["a", "b"]
        assert executor.free_bytes() >= 0

    @requires("sleep")
    @pytest.mark.parametrize("async_steps", [False, True])
    def test_sleep_reaches_the_workers(
        self, plugin: Any, shared: Shared, async_steps: bool
    ) -> None:
        """Workers sleep and wake up on request; a refusal is reported, and the worker survives."""
        executor = shared.get(plugin, async_steps=async_steps)
        awake_bytes = executor.free_bytes()
        with pytest.raises(RequestError, match="nothing can be kept"):
            executor.sleep(1)
        executor.sleep(2)
        executor.wake_up(("weights",))
        assert executor.free_bytes() > awake_bytes
        executor.wake_up(("kv_cache",))
        assert executor.free_bytes() == awake_bytes
        assert len(run(executor)) == len(REQUESTS)

    @requires("several_ranks")
    def test_several_ranks_answer_as_one(self, plugin: Any, executor: Executor) -> None:
        """Two ranks get every order: the answers are the same as with one, and all of them end."""
        if "launched_ranks" in plugin.capabilities:
            pytest.skip("a launcher starts its ranks")
        run_spec = msgspec.structs.replace(
            tiny_run(worker_extension=METHODS), rank=RankSpec(world_size=2)
        )
        two_ranks = plugin(default_options(plugin), run_spec, SLEEPING)
        two_ranks.allocate(tiny_layout(two_ranks.kv_layers()))
        try:
            assert run(two_ranks, ahead=1) == run(executor)
            two_ranks.sleep(2)
            two_ranks.wake_up(("weights", "kv_cache"))
            assert len(run(two_ranks)) == len(REQUESTS)
            if "collective_rpc" in plugin.capabilities:
                check_calls_of_two(two_ranks)
                assert run(two_ranks, ahead=1) == run(executor)
        finally:
            two_ranks.shutdown()

    @requires("stages")
    def test_stages_learn_what_the_last_one_draws(self, plugin: Any) -> None:
        """Three stages have one account of blocks; the last one answers, and the others know its
        tokens before the next step of a row."""
        if "launched_ranks" in plugin.capabilities:
            pytest.skip("a launcher starts its ranks")
        rank = RankSpec(world_size=3, num_stages=3, stage_layers=(1, 1, 1), local_size=3)
        communicator = registry.choose("communicator", "gloo")
        run_spec = msgspec.structs.replace(tiny_run(), rank=rank, communicator=communicator)
        executor = plugin(default_options(plugin), run_spec, STAGED)
        try:
            layers = executor.kv_layers()
            assert len(layers) == 3, "two with a window, and one without"
            executor.allocate(tiny_layout(layers))
            ask = DriveRequest(request_id="a", prompt_ids=(5, 6, 7))
            plans = Driver(tiny_layout(layers)).plans([ask])
            drawn = [row.token_ids for plan in plans for row in executor.submit(plan).result().rows]
            assert drawn == [(length,) for length in range(3, 9)]
            executor.free_bytes()  # every stage has done its steps, or has ended in one
        finally:
            executor.shutdown()

    @requires("collective_rpc")
    @pytest.mark.parametrize("async_steps", [False, True])
    def test_methods_are_called(self, plugin: Any, shared: Shared, async_steps: bool) -> None:
        """A method gets its arguments, and its answer comes back; steps continue."""
        executor = shared.get(plugin, async_steps=async_steps)
        call = WorkerCall(method="place", args=(1, "b", [None]), kwargs={"more": {"c": b"d"}})
        (answer,) = executor.collective_rpc(call)
        assert answer == {"rank": 0, "args": [1, "b", [None]], "more": {"c": b"d"}}
        assert len(run(executor, ahead=int(async_steps))) == len(REQUESTS)

    @requires("collective_rpc")
    @pytest.mark.parametrize(
        ("call", "reason"),
        [
            (WorkerCall(method="fail", args=(0,)), "rank 0: fail raised ValueError: no luck"),
            (WorkerCall(method="lost"), "rank 0: the answer of lost cannot be sent"),
            (WorkerCall(method="place2"), 'rank 0: there is no method "place2"'),
            (WorkerCall(method="shutdown"), 'rank 0: there is no method "shutdown"'),
            (WorkerCall(method="_runner"), 'rank 0: there is no method "_runner"'),
        ],
        ids=["raises", "answers_what_cannot_be_sent", "unknown", "of_its_life", "private"],
    )
    def test_a_call_that_fails_ends_nothing(
        self, executor: Executor, call: WorkerCall, reason: str
    ) -> None:
        """A method that raises, or is not there, is a RequestError that names the rank."""
        with pytest.raises(RequestError, match=reason):
            executor.collective_rpc(call)
        executor.check()
        assert len(run(executor)) == len(REQUESTS)

    @requires("collective_rpc")
    @pytest.mark.parametrize("async_steps", [False, True])
    def test_a_call_ends_in_time(self, plugin: Any, shared: Shared, async_steps: bool) -> None:
        """A caller waits no longer than its timeout; a late answer disturbs nothing."""
        executor = shared.get(plugin, async_steps=async_steps)
        start_s = time.perf_counter()
        with pytest.raises(RequestError, match="rank 0") as caught:
            executor.collective_rpc(WorkerCall(method="nap", args=(0.4,), timeout_s=0.05))
        assert time.perf_counter() - start_s < 0.3 and caught.value.status == 504
        (answer,) = executor.collective_rpc(WorkerCall(method="place", timeout_s=DEADLINE_S))
        assert answer["rank"] == 0
        assert len(run(executor, ahead=int(async_steps))) == len(REQUESTS)

    @requires("collective_rpc")
    def test_added_methods_hide_none(self, plugin: Any) -> None:
        """An extension with a method of the worker is refused by name; nothing is left running."""
        before = threading.active_count()
        target = "dovetail_testing.tiny.worker:HidingMethods"
        with pytest.raises(ConfigError, match="TinyWorker has free_bytes already"):
            plugin(default_options(plugin), tiny_run(worker_extension=target), WORKER)
        assert threading.active_count() <= before

    @requires("async_steps")
    def test_one_ahead_equals_in_turn(
        self, plugin: Any, shared: Shared, executor: Executor
    ) -> None:
        """Plans sent before the previous result was read draw the same tokens."""
        ahead = shared.get(plugin, async_steps=True)
        assert run(ahead, ahead=1) == run(executor)

    @requires("async_steps")
    def test_submit_returns_at_once(self, plugin: Any) -> None:
        """submit does not wait for the step."""
        config = {"replay": [{"tokens": [1, 2, 3], "delay_s": 0.3}], "cue_base": 90}
        executor = started(plugin, model=REPLAY, hf_config=config, async_steps=True)
        ask = DriveRequest(request_id="a", prompt_ids=(90,), num_tokens=1)
        plan = next(Driver(tiny_layout(executor.kv_layers())).plans([ask]))
        start_s = time.perf_counter()
        pending = executor.submit(plan)
        assert time.perf_counter() - start_s < 0.2
        assert pending.result().rows[0].token_ids == (1,)
        executor.shutdown()

    @pytest.mark.parametrize("async_steps", [False, True])
    def test_a_crash_is_told(self, plugin: Any, async_steps: bool) -> None:
        """A step that raises gives EngineDead from result and check, and calls on_death."""
        if async_steps and "async_steps" not in plugin.capabilities:
            pytest.skip("does not claim async_steps")
        executor = crashing(plugin, async_steps=async_steps)
        died, reasons = threading.Event(), list[str]()

        def hear(reason: str) -> None:
            reasons.append(reason)
            died.set()

        executor.on_death(hear)
        ask = DriveRequest(request_id="a", prompt_ids=(90,), num_tokens=3)
        plans = Driver(tiny_layout(executor.kv_layers())).plans([ask])
        assert executor.submit(next(plans)).result().rows[0].token_ids == (7,)
        with pytest.raises(EngineDead):
            executor.submit(next(plans)).result()
        assert died.wait(DEADLINE_S) and reasons
        with pytest.raises(EngineDead):
            executor.check()
        executor.shutdown()

    def test_bad_models_are_config_errors(self, plugin: Any) -> None:
        """The loader's error reaches the caller, and nothing is left running."""
        before = threading.active_count()
        with pytest.raises(ConfigError):
            plugin(default_options(plugin), tiny_run(model=REPLAY, async_steps=True), WORKER)
        assert threading.active_count() <= before

    def test_shutdown_twice(self, plugin: Any) -> None:
        """shutdown leaves no thread and may be called again; a submit after it is an EngineDead,
        not a hang."""
        before = threading.active_count()
        executor = started(plugin, async_steps="async_steps" in plugin.capabilities)
        executor.shutdown()
        executor.shutdown()
        assert threading.active_count() <= before
        with pytest.raises(EngineDead):
            executor.submit(StepPlan(step_id=1, rows=())).result()

    def test_keeps_the_order(self, executor: Executor) -> None:
        """Results belong to their plans, in the order of submission."""
        pending = [executor.submit(StepPlan(step_id=number, rows=())) for number in range(8)]
        assert [step.result().step_id for step in pending] == list(range(8))
