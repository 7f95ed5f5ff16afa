"""Worker: the protocol in order, rows that keep to themselves, faults that end one row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from dovetail.interfaces.sampling_params import SamplingParams
from dovetail.interfaces.spec import RunSpec
from dovetail.interfaces.step import StepPlan, StepResult
from dovetail.interfaces.worker import Worker
from dovetail.testing.contract import device_of
from dovetail.testing.running import CUE, Rows, layout_for, run_spec
from dovetail.testing.tiny import KV_HEADS

PROMPTS = {0: [3, 1, 4, 1, 5], 1: [9, 2, 6], 2: [5, 3, 5, 8, 9, 7, 9, 3, 2]}
SEEDED = SamplingParams(temperature=1.0, max_tokens=32)


def started(plugin: Any, run: RunSpec) -> tuple[Worker, Rows]:
    """Return a worker through its whole start, and rows on it."""
    worker: Worker = plugin(plugin.Options(), run)
    worker.load()
    layout = layout_for(worker.kv_layers())
    worker.allocate(layout)
    return worker, Rows(worker.step, len(layout.groups))


@pytest.fixture
def rows(plugin: Any) -> Iterator[Rows]:
    """Return rows on a worker that runs the tiny transformer."""
    worker, made = started(plugin, run_spec(device_of(plugin)))
    yield made
    worker.shutdown()


class TestWorker:
    """Clauses of workers."""

    kind = "worker"

    def test_protocol(self, plugin: Any) -> None:
        """Construct, load, kv_layers, free_bytes, allocate, step, shutdown twice."""
        worker: Worker = plugin(plugin.Options(), run_spec(device_of(plugin)))
        worker.load()
        layers = worker.kv_layers()
        assert [layer.num_kv_heads for layer in layers] == [KV_HEADS, KV_HEADS]
        assert worker.free_bytes() > 0
        worker.allocate(layout_for(layers))
        worker.step(StepPlan(step_id=1, rows=()))
        worker.shutdown()
        worker.shutdown()

    def test_result_is_plain_data(self, rows: Rows) -> None:
        """A result crosses processes."""
        rows.add(0, PROMPTS[0], sampling=SamplingParams(logprobs=2, max_tokens=4))
        answer = rows.step({0: None})[0]
        packed = msgspec.msgpack.encode(StepResult(step_id=1, rows=(answer,)))
        assert msgspec.msgpack.decode(packed, type=StepResult).rows == (answer,)
        assert len(answer.logprobs) == 1

    @pytest.mark.parametrize("sampling", [SEEDED, SamplingParams(temperature=0.0)])
    def test_batch_does_not_matter(self, rows: Rows, sampling: SamplingParams) -> None:
        """Every row draws the same tokens alone and among others."""
        for row, prompt in PROMPTS.items():
            rows.add(row, prompt, sampling=sampling, seed=row)
        together = rows.generate(list(PROMPTS), 6)
        for row in PROMPTS:
            rows.free(row)
        alone = []
        for row, prompt in PROMPTS.items():
            rows.add(row, prompt, sampling=sampling, seed=row)
            alone += rows.generate([row], 6)
            rows.free(row)
        assert alone == together

    def test_chunks_do_not_matter(self, rows: Rows) -> None:
        """A prompt computed in parts draws the same tokens, and none before its end."""
        rows.add(2, PROMPTS[2], sampling=SEEDED)
        whole = rows.generate([2], 4)
        rows.free(2)
        rows.add(2, PROMPTS[2], sampling=SEEDED)
        assert rows.step({2: 4})[2].token_ids == ()
        assert rows.step({2: 3})[2].token_ids == ()
        assert rows.generate([2], 4) == whole

    def test_recomputed_row_goes_on(self, rows: Rows) -> None:
        """A preempted row, given again with its tokens, draws on as if nothing had been."""
        rows.add(1, PROMPTS[1], sampling=SEEDED, seed=7)
        whole = rows.generate([1], 8)[0]
        rows.free(1)
        rows.add(3, PROMPTS[1] + whole[:4], sampling=SEEDED, seed=7, num_prompt_tokens=3)
        assert rows.generate([3], 4)[0] == whole[4:]

    def test_nan_ends_one_row(self, plugin: Any) -> None:
        """A row whose logits are NaN reports a fault; its neighbour goes on."""
        scripts = [{"tokens": [7, 8, 9], "nan_at": 1}, {"tokens": [11, 12, 13]}]
        worker, rows = started(plugin, run_spec(device_of(plugin), scripts=scripts))
        rows.add(0, [1, CUE])
        rows.add(1, [1, CUE + 1])
        first = rows.step({0: None, 1: None})
        assert (first[0].token_ids, first[1].token_ids) == ((7,), (11,))
        second = rows.step({0: None, 1: None})
        assert second[0].fault
        assert second[0].token_ids == ()
        assert second[1].token_ids == (12,)
        rows.free(0)
        assert rows.step({1: None})[1].token_ids == (13,)
        worker.shutdown()

    def test_fits_its_own_devices(self, plugin: Any) -> None:
        """why_not accepts the devices in info and refuses another one."""
        assert all(plugin.why_not(device) == [] for device in plugin.info.devices)
        if plugin.info.devices:
            assert plugin.why_not("no_such_device")

    def test_two_workers_side_by_side(self, plugin: Any, rows: Rows) -> None:
        """A second worker in the process does not disturb the first."""
        rows.add(0, PROMPTS[0])
        before = rows.generate([0], 2)
        worker, others = started(plugin, run_spec(device_of(plugin)))
        others.add(0, PROMPTS[0])
        assert others.generate([0], 2) == before
        worker.shutdown()
        rows.generate([0], 2)
