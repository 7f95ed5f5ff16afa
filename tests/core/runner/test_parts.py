"""Parts: a run has those that it uses, and each of them follows the steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import msgspec
import pytest
import torch

from dovetail.errors import RequestError
from dovetail.interfaces.data.adapter_spec import AdapterSource
from dovetail.interfaces.data.spec import RankSpec, RunSpec
from dovetail.interfaces.data.step import NewRow, StepPlan
from dovetail.layers.context import forward_context
from dovetail.runner.device import HostDevice
from dovetail.runner.model_runner import ModelRunner
from dovetail.runner.parts import ending_of, parts_of
from dovetail.runner.rows.batch import StepInputs
from dovetail.runner.step.part import RunnerPart
from dovetail.runner.step.step_reader import BegunStep, Computed
from dovetail_testing.scripted_steps import Driver, DriveRequest
from dovetail_testing.tiny.transformer import VOCAB, tiny_layout, tiny_run

CPU = torch.device("cpu")


class Witness(RunnerPart):
    """Notes what it is called for. It allows `more` token ids."""

    def __init__(self, more: int = 0) -> None:
        self.calls: list[str] = []
        self.more = more

    def before(self, plan: StepPlan) -> None:
        self.calls.append("before")

    def free_row(self, row: int) -> None:
        self.calls.append(f"free_row {row}")

    def add_row(self, new: NewRow) -> None:
        self.calls.append(f"add_row {new.row}")

    def added_tokens(self, new: NewRow) -> int:
        return self.more

    def follow(self, plan: StepPlan) -> None:
        self.calls.append("follow")

    def idle(self, plan: StepPlan) -> None:
        self.calls.append("idle")

    def begin(self, inputs: StepInputs) -> None:
        self.calls.append("begin")

    def around(self, inputs: StepInputs) -> AbstractContextManager[None]:
        return self._within()

    @contextmanager
    def _within(self) -> Iterator[None]:
        self.calls.append("enter")
        yield
        self.calls.append("leave")

    def before_pass(self, token_ids: torch.Tensor) -> None:
        self.calls.append(f"pass {len(token_ids)}")

    def after(self, step: BegunStep, computed: Computed) -> None:
        self.calls.append(f"after {len(computed.hidden)}")

    def close(self) -> None:
        self.calls.append("close")


def runner_with(part: RunnerPart) -> ModelRunner:
    made = ModelRunner(tiny_run(), CPU)
    made.load()
    made.allocate(tiny_layout(list(made.kv_layers())))
    made.parts.append(part)
    return made


def test_a_part_follows_a_step() -> None:
    seen = Witness()
    runner = runner_with(seen)
    ask = DriveRequest(request_id="a", prompt_ids=(3, 4, 5), num_tokens=2)
    for plan in Driver(runner.allocated.layout).plans([ask]):
        runner.step(plan)
    runner.close()
    passes = [["begin", "enter", f"pass {tokens}", "leave", f"after {tokens}"] for tokens in (3, 1)]
    first, second = ["before", "add_row 0", "follow", *passes[0]], ["before", "follow", *passes[1]]
    assert seen.calls == [*first, *second, "before", "free_row 0", "follow", "idle", "close"]


def test_a_part_sees_the_pass_from_around() -> None:
    """The with blocks of several parts are one inside the other."""
    outer, inner = Witness(), Witness()
    inner.calls = outer.calls
    runner = runner_with(outer)
    runner.parts.append(inner)
    own = runner.model.forward

    def forward(token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        outer.calls.append(f"model {len(forward_context().caches)}")
        return own(token_ids, positions)

    runner.model.forward = forward  # type: ignore[method-assign]
    ask = DriveRequest(request_id="a", prompt_ids=(3, 4, 5), num_tokens=1)
    runner.step(next(Driver(runner.allocated.layout).plans([ask])))
    enter, leave = outer.calls.index("enter"), outer.calls.index("leave")
    assert outer.calls[enter : leave + 2] == [
        "enter", "enter", "pass 3", "pass 3", "model 2", "leave", "leave"
    ]  # fmt: skip


@pytest.mark.parametrize("more", [0, 3])
def test_a_part_may_add_tokens(more: int) -> None:
    runner = runner_with(Witness(more))
    ask = DriveRequest(request_id="a", prompt_ids=(3, VOCAB, 4), num_tokens=1)
    runner.model.forward = lambda ids, at: torch.zeros(  # type: ignore[method-assign]
        len(ids), runner.run.model.hidden_size
    )
    (row,) = runner.step(next(Driver(runner.allocated.layout).plans([ask]))).rows
    assert (row.fault is None) == bool(more)


def names_of(run: RunSpec) -> list[str]:
    calls: Any = HostDevice()
    parts = parts_of(run, CPU, calls, ending_of(run, CPU, calls))
    return [type(part).__name__ for part in parts]


def test_a_run_has_the_parts_that_it_uses() -> None:
    assert names_of(tiny_run()) == ["DrawingEnd", "RunnerMedia", "SwappedBlocks"]
    rank = RankSpec(world_size=2, num_stages=2, stage_layers=(1, 1))
    staged = msgspec.structs.replace(tiny_run(), rank=rank)
    assert names_of(staged) == ["HandOnEnd", "RunnerMedia", "SwappedBlocks", "StageLink"]


def test_what_no_part_prepares_is_refused() -> None:
    runner = runner_with(RunnerPart())
    with pytest.raises(RequestError, match="runs without adapters"):
        runner.prepare(AdapterSource(name="a", path="a", key="a"))
