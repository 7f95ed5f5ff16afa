"""Captured steps and steps begun ahead give what plain steps give, and pad with nothing alive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.data.step import NewRow, StepPlan, StepResult
from dovetail.runner.device import DeviceCalls, HostDevice
from dovetail.runner.measure import GRAPH_BYTES
from dovetail.runner.model_runner import ModelRunner
from dovetail.runner.replay import graphs
from dovetail.runner.replay.graphs import captured_keys, contexts
from dovetail.runner.rows.batch import UNKNOWN, Batch
from dovetail.runner.rows.staging import Staging
from dovetail_testing.scripted_steps import DriveOutput, Driver, DriveRequest, collect
from dovetail_testing.tiny.transformer import VOCAB, WINDOW_TOKENS, tiny_layout, tiny_run
from support import fake_device
from support.fake_device import FakeDevice
from support.inside import batch_of, caches_of, graphs_of, layout_of, unread_steps_of

CPU = torch.device("cpu")
Tokens = dict[str, tuple[int, ...]]
SIZES = (1, 2, 4, 8)
KINDS = (
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=1.0, top_p=0.9, top_k=20, logprobs=1),
    SamplingParams(temperature=0.9, repetition_penalty=1.3),
)


def made(calls: DeviceCalls, *, sizes: tuple[int, ...] = SIZES, **changes: Any) -> ModelRunner:
    run = tiny_run(attention=fake_device.CAPTURABLE, hf_config={"window": WINDOW_TOKENS}, **changes)
    runner = ModelRunner(msgspec.structs.replace(run, graph_sizes=sizes), CPU, calls)
    runner.load()
    runner.allocate(tiny_layout(list(runner.kv_layers()), num_blocks=256))
    runner.warm_up()
    return runner


def asks(count: int, **changes: Any) -> list[DriveRequest]:
    draw = np.random.default_rng(count)
    return [
        DriveRequest(
            request_id=str(i),
            prompt_ids=tuple(draw.integers(0, VOCAB, 1 + 3 * i).tolist()),
            sampling=KINDS[i % len(KINDS)],
            seed=i,
            **{"num_tokens": 4 + i, **changes},
        )
        for i in range(count)
    ]


def tokens(outputs: dict[str, DriveOutput]) -> Tokens:
    """Return token ids, and those that logprobs name; numbers depend on the rows side by side."""
    assert not any(one.faults for one in outputs.values())
    return {
        name: (*one.token_ids, *(told.token_id for told in one.logprobs))
        for name, one in outputs.items()
    }


def run(runner: ModelRunner, requests: Sequence[DriveRequest], **ways: Any) -> Tokens:
    """Return what the requests draw, a result read before the next step begins."""
    plans = Driver(layout_of(runner)).plans(requests, **ways)
    return tokens(collect((plan, runner.step(plan)) for plan in plans))


def run_ahead(runner: ModelRunner, requests: Sequence[DriveRequest]) -> Tokens:
    """Return what the requests draw, each step begun before the one before is read."""
    plans = list(Driver(layout_of(runner)).plans(requests))
    told: list[tuple[StepPlan, StepResult]] = []
    before = None
    for plan in plans:
        step = runner.begin(plan)
        if before is not None:
            told.append((before[0], before[1].result()))
        before = (plan, step)
    assert before is not None
    told.append((before[0], before[1].result()))
    return tokens(collect(told))


@pytest.fixture(scope="module")
def eager() -> ModelRunner:
    return made(HostDevice(), logits_processors=(fake_device.NO_REPEAT,))


@pytest.mark.parametrize("count", range(1, 9))
def test_graphs_equal_eager(eager: ModelRunner, count: int) -> None:
    device = FakeDevice()
    runner = made(device)
    assert run(runner, asks(count)) == run(eager, asks(count))
    assert device.num_replays >= 3


def test_long_rows_run_the_graph_of_a_longer_context(
    eager: ModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "FIRST_CONTEXT_TOKENS", 16)
    device = FakeDevice()
    runner = made(device, sizes=(1, 2, 3))
    assert graphs_of(runner).num_graphs == 6
    growing = [replace(one, num_tokens=20) for one in asks(3)]
    assert run(runner, growing) == run(eager, growing)
    assert device.num_replays == 19


def test_a_late_token_does_not_reach_the_next_request() -> None:
    batch = Batch(2, 16, 1, 4)
    rows = np.array([0, 1])
    for row in (0, 1):
        batch.add_row(_new_row(row, (5, 6)))
    expected = batch.expect(rows)
    batch.free_row(0)
    batch.add_row(_new_row(0, (7, 8, 9, 10)))
    batch.fill(expected, [11, 12])
    assert batch.tokens[0, :4].tolist() == [7, 8, 9, 10]
    assert batch.output_ids(1)[:] == [12]


def _new_row(row: int, token_ids: tuple[int, ...]) -> NewRow:
    return NewRow(
        row=row,
        request_id=str(row),
        token_ids=token_ids,
        num_prompt_tokens=len(token_ids),
        num_computed_tokens=0,
        blocks=((1,),),
        sampling=SamplingParams(),
        seed=0,
    )


def test_steps_with_a_prompt_fall_back(eager: ModelRunner) -> None:
    device = FakeDevice()
    runner = made(device)
    joining = [replace(one, joins_at=2 * i) for i, one in enumerate(asks(4))]
    assert run(runner, joining, chunk_tokens=3) == run(eager, joining, chunk_tokens=3)
    plans = list(Driver(layout_of(runner)).plans(joining, chunk_tokens=3))
    alone = [p for p in plans if p.rows and all(r.num_tokens == 1 and r.samples for r in p.rows)]
    assert 0 < device.num_replays == len(alone) < len(plans)


def test_padding_leaves_live_blocks_alone() -> None:
    runner = made(FakeDevice(), sizes=(8,))
    layout = layout_of(runner)
    for cache in caches_of(runner).values():
        cache.fill_(7.0)
    plans = list(Driver(layout).plans([replace(one, num_tokens=2) for one in asks(3)]))
    for plan in plans[:2]:
        runner.step(plan)
    used = {block for plan in plans for row in plan.rows for g in row.new_blocks for block in g}
    for cache in caches_of(runner).values():
        for block in set(range(1, layout.num_blocks)) - used:
            assert bool((cache[:, block] == 7.0).all())


@pytest.mark.parametrize("sizes", [(), SIZES], ids=["eager", "graphs"])
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_ahead_equals_one_by_one(
    eager: ModelRunner, sizes: tuple[int, ...], is_async: bool
) -> None:
    """Rows come and go between a step and its reading."""
    device = FakeDevice()
    runner = made(device, sizes=sizes, async_steps=is_async)
    joining = [replace(one, joins_at=i, num_tokens=3 + i % 4) for i, one in enumerate(asks(8))]
    assert run_ahead(runner, joining) == run(eager, joining)
    assert (device.num_replays > 0) == bool(sizes)


def test_what_only_the_device_knows_is_read_in_time(eager: ModelRunner) -> None:
    """A processor that looks at drawn tokens finds them, though steps are begun ahead."""
    runner = made(FakeDevice(), async_steps=True, logits_processors=(fake_device.NO_REPEAT,))
    looking = [
        replace(one, sampling=SamplingParams(temperature=0.7, presence_penalty=0.125))
        for one in asks(3)
    ]
    mixed = [*looking[:1], *asks(4)[1:]]
    for requests in (looking, mixed):
        assert run_ahead(runner, requests) == run(eager, requests)


def test_the_host_is_ahead() -> None:
    """A step begins though the one before is unread, and reads its token on the device."""
    runner = made(FakeDevice(), async_steps=True)
    plans = list(Driver(layout_of(runner)).plans(asks(1)))
    first = runner.begin(plans[0])
    second = runner.begin(plans[1])
    assert len(unread_steps_of(runner)) == 2
    assert batch_of(runner).output_ids(0)[:] == [UNKNOWN, UNKNOWN]
    drawn = [step.result().rows[0].token_ids for step in (first, second)]
    whole = run(made(HostDevice()), asks(1))["0"]
    assert drawn == [(whole[0],), (whole[1],)]
    assert first.result().idle_s == 0.0 and second.result().forward_s > 0.0


def test_what_cannot_be_captured_runs_all_the_same(eager: ModelRunner) -> None:
    device = FakeDevice(fails_to_capture=True)
    runner = made(device)
    assert run(runner, asks(3)) == run(eager, asks(3))
    assert "capturing" in (graphs_of(runner).reason or "")
    assert device.num_replays == 0


@pytest.mark.parametrize("max_model_tokens", [128, 131, 600])
def test_the_largest_step_is_measured(max_model_tokens: int) -> None:
    """All rows and tokens are in it; afterwards the runner starts afresh."""
    run = tiny_run(attention=fake_device.CAPTURABLE, max_model_tokens=max_model_tokens)
    runner = ModelRunner(run, CPU, FakeDevice())
    runner.load()
    seen: list[int] = []

    def peak_of(function: Any) -> int:
        before = runner.model.forward
        runner.model.forward = lambda ids, at: seen.append(len(ids)) or before(ids, at)
        function()
        return 1000

    assert runner.largest_step_bytes(peak_of) == 1000
    assert seen[-1] == runner.run.max_step_tokens == 256


def test_graphs_are_measured_too() -> None:
    run = msgspec.structs.replace(tiny_run(attention=fake_device.CAPTURABLE), graph_sizes=SIZES)
    runner = ModelRunner(run, CPU, FakeDevice())
    runner.load()
    assert runner.largest_step_bytes(lambda function: (function() and 0) or 1000) == (
        2000 + len(SIZES) * GRAPH_BYTES
    )


def test_sizes_and_contexts() -> None:
    assert contexts(1000) == (1000,)
    assert contexts(131072) == (4096, 32768, 131072)
    sizes = [(3, 5000), (3, 4096), (2, 5000), (2, 4096), (1, 5000), (1, 4096)]
    assert captured_keys((1, 2, 3), 5000) == [(*size, False) for size in sizes]
    both = captured_keys((1, 2, 3), 5000, serves_adapters=True)
    assert both == [(*size, use) for size in sizes for use in (True, False)]


class _Slow(HostDevice):
    """Notes which copies are waited for."""

    def __init__(self) -> None:
        self.waited: list[int] = []
        self.num_marks = 0

    def mark(self) -> Any:
        number, self.num_marks, waited = self.num_marks, self.num_marks + 1, self.waited

        class _Mark:
            def wait(self) -> None:
                waited.append(number)

        return _Mark()


def test_a_buffer_is_not_written_while_it_is_copied() -> None:
    device = _Slow()
    staging = Staging(CPU, device)
    for step in range(4):
        arrays = [np.arange(step + 1), np.arange(3, dtype=np.int32)]
        found = staging.upload(arrays)
        assert all(np.array_equal(t.numpy(), a) for t, a in zip(found, arrays, strict=True))
        assert all(t.data_ptr() % 16 == 0 for t in found)
    assert device.waited == [0, 1]
    large = np.arange(1 << 16)
    assert np.array_equal(staging.upload([large])[0].numpy(), large)
