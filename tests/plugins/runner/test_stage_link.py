"""Two stages give what one runner gives, plain and by graphs, with tokens learnt one step late."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import torch

from dovetail.errors import BrokenPlugin
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.data.spec import RankSpec
from dovetail.interfaces.data.step import KVLayout, RowResult, StepPlan, StepResult
from dovetail.runner.device import DeviceCalls, HostDevice
from dovetail.runner.endings import stage_link
from dovetail.runner.model_runner import ModelRunner
from dovetail_plugins.ranks.stage_caches import StageCaches
from dovetail_testing.scripted_steps import Driver, DriveRequest, collect
from dovetail_testing.tiny.transformer import WINDOW_TOKENS, tiny_layout, tiny_run
from support import fake_device
from support.fake_device import FakeDevice
from support.inside import batch_of, layout_of

CPU = torch.device("cpu")
ASKS = [
    DriveRequest(
        request_id=str(i),
        prompt_ids=tuple(range(5 + i, 8 + 4 * i)),
        sampling=SamplingParams(temperature=0.8 * (i % 2), logprobs=1, repetition_penalty=1.2),
        seed=i,
        num_tokens=4 + i,
        joins_at=i,
    )
    for i in range(5)
]


class Link:
    """What one stage sends and the next receives, in one process."""

    def __init__(self) -> None:
        self.sent: deque[torch.Tensor] = deque()

    def send(self, x: torch.Tensor) -> None:
        self.sent.append(x.clone())

    def receive(self, x: torch.Tensor) -> torch.Tensor:
        return x.copy_(self.sent.popleft())


@pytest.fixture(autouse=True)
def link(monkeypatch: pytest.MonkeyPatch) -> Link:
    made = Link()
    monkeypatch.setattr(stage_link, "stage_before", lambda: made)
    monkeypatch.setattr(stage_link, "stage_after", lambda: made)
    return made


def loaded(calls: DeviceCalls, stage: int = 0, num_stages: int = 1, **changes: Any) -> ModelRunner:
    rank = RankSpec(
        rank=stage,
        world_size=num_stages,
        stage=stage,
        num_stages=num_stages,
        stage_layers=(1,) * num_stages if num_stages > 1 else (),
    )
    plain = tiny_run(attention=fake_device.CAPTURABLE, hf_config={"window": WINDOW_TOKENS})
    sizes = (1, 2, 4) if isinstance(calls, FakeDevice) else ()
    run = msgspec.structs.replace(plain, rank=rank, graph_sizes=sizes, **changes)
    runner = ModelRunner(run, CPU, calls)
    runner.load()
    return runner


def allocated(runner: ModelRunner, layout: KVLayout) -> ModelRunner:
    runner.allocate(layout)
    runner.warm_up()
    return runner


class Stages:
    """Two stages, the second of which draws."""

    def __init__(self, calls: type[DeviceCalls]) -> None:
        self.devices = [calls(), calls()]
        runners = [loaded(device, stage, 2) for stage, device in enumerate(self.devices)]
        caches = StageCaches(2, 1)
        common = caches.common_layers([runner.kv_layers() for runner in runners])
        self.layout = tiny_layout(list(common), num_blocks=256)
        layouts = caches.own_layouts(self.layout)
        self.first, self.last = map(allocated, runners, layouts)

    def step(self, plan: StepPlan) -> StepResult:
        """Run a step on both; the first learns of the tokens."""
        assert self.first.step(plan).rows == ()
        result = self.last.step(plan)
        self.first.learn(result)
        return result


@pytest.fixture(scope="module")
def wanted() -> dict[str, Any]:
    """Return what one runner with both layers answers."""
    runner = loaded(HostDevice())
    allocated(runner, tiny_layout(list(runner.kv_layers()), num_blocks=256))
    plans = Driver(layout_of(runner)).plans(ASKS, chunk_tokens=7)
    return collect((plan, runner.step(plan)) for plan in plans)


@pytest.mark.parametrize("calls", [HostDevice, FakeDevice])
def test_two_stages_draw_what_one_does(
    calls: type[DeviceCalls], wanted: dict[str, Any], link: Link
) -> None:
    stages = Stages(calls)
    assert [layer.name for layer in stages.first.kv_layers()] == ["a"]
    assert [layer.name for layer in stages.last.kv_layers()] == ["b"]
    plans = Driver(stages.layout).plans(ASKS, chunk_tokens=7)
    found = collect((plan, stages.step(plan)) for plan in plans)
    assert {name: one.token_ids for name, one in found.items()} == {
        name: one.token_ids for name, one in wanted.items()
    }
    assert not link.sent
    for device in stages.devices:
        assert not isinstance(device, FakeDevice) or device.num_replays >= 3


def test_what_comes_late_for_a_row_of_another_request_is_dropped() -> None:
    """A request is aborted while its step is under way, and its row is taken at once."""
    stages = Stages(HostDevice)
    first, second = (
        next(Driver(stages.layout).plans([replace(ASKS[i], joins_at=0)])) for i in range(2)
    )
    result = stages.first.step(first) and stages.last.step(first)
    taken = msgspec.structs.replace(second, step_id=99, freed_rows=(0,))
    stages.first.step(taken)
    known = batch_of(stages.first).lengths[0]
    stages.first.learn(result)
    assert batch_of(stages.first).lengths[0] == known
    later = stages.last.step(taken)
    stages.first.learn(later)
    assert batch_of(stages.first).lengths[0] == known + 1


def test_a_token_and_forced_ones_behind_it_are_learnt() -> None:
    stages = Stages(HostDevice)
    plan = next(Driver(stages.layout).plans([ASKS[0]]))
    stages.first.step(plan)
    known = int(batch_of(stages.first).lengths[0])
    told = StepResult(step_id=plan.step_id, rows=(RowResult(row=0, token_ids=(7, 8, 9)),))
    stages.first.learn(told)
    assert batch_of(stages.first).tokens[0, known : known + 3].tolist() == [7, 8, 9]


def test_a_model_without_a_stage_is_told() -> None:
    run = msgspec.structs.replace(
        tiny_run(model="dovetail_testing.models:RandomLogitsModel", vocab_size=64),
        rank=RankSpec(world_size=2, num_stages=2, stage_layers=(1, 1)),
    )
    with pytest.raises(BrokenPlugin, match="claims pipeline_parallel and has no Stage"):
        ModelRunner(run, CPU).load()
