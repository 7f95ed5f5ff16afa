"""Worker: the protocol in order on a tiny model; plans become tokens; shutdown releases
everything."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import pytest
import torch

from dovetail.errors import ConfigError, RequestError
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.data.step import BlockOrders, NewRow, RowStep, StepPlan
from dovetail.interfaces.executor import BlockLoad
from dovetail.interfaces.kv_connector import TransferSpec
from dovetail.interfaces.worker import Worker
from dovetail_testing.contract import default_options, requires
from dovetail_testing.memory_connector import MEMORY_CONNECTOR
from dovetail_testing.scripted_steps import Driver, DriveRequest, collect
from dovetail_testing.tiny.transformer import VOCAB, tiny_layout, tiny_run

Pairs = tuple[tuple[int, int], ...]
Move = Callable[[StepPlan, Pairs], StepPlan]
REPLAY = "dovetail_testing.models:ReplayModel"
REQUESTS = (
    DriveRequest(request_id="a", prompt_ids=(5, 6, 7, 8, 9)),
    DriveRequest(request_id="b", prompt_ids=(9,), sampling=SamplingParams(), seed=7, joins_at=1),
    DriveRequest(request_id="c", prompt_ids=tuple(range(20)), joins_at=2),
)


def device_of(plugin: Any) -> str:
    """Return a device type that the worker serves here; skips when there is none."""
    devices: Sequence[str] = plugin.info.devices or ("cpu",)
    usable = [d for d in devices if d != "cuda" or torch.cuda.is_available()]
    if not usable:
        pytest.skip(f"not run here: needs one of {', '.join(devices)}")
    return usable[0]


def started(plugin: Any, **changes: Any) -> Worker:
    """Return a worker that has loaded a test model."""
    worker: Worker = plugin(default_options(plugin), tiny_run(device=device_of(plugin), **changes))
    worker.load()
    return worker


def run(worker: Worker, requests: Sequence[DriveRequest], **ways: Any) -> dict[str, list[int]]:
    """Return each request's tokens; no fault may occur."""
    layout = tiny_layout(worker.kv_layers())
    plans = Driver(layout).plans(requests, **ways)
    outputs = collect((plan, worker.step(plan)) for plan in plans)
    assert not any(output.faults for output in outputs.values())
    return {name: output.token_ids for name, output in outputs.items()}


def drafted(worker: Worker, ask: DriveRequest, drafts: tuple[int, ...]) -> list[int]:
    """Return a request's draws with its prompt, with drafts after that, and in a last step."""
    plans = list(Driver(tiny_layout(worker.kv_layers())).plans([ask]))
    # All blocks in the first step: the steps after it are made here.
    blocks = zip(*(step.new_blocks for plan in plans for step in plan.rows), strict=True)
    row_blocks = tuple(tuple(b for step in group for b in step) for group in blocks)
    first = msgspec.structs.replace(plans[0].rows[0], new_blocks=row_blocks)
    tokens = list(worker.step(msgspec.structs.replace(plans[0], rows=(first,))).rows[0].token_ids)
    for guesses in (drafts, ()):
        step = RowStep(
            row=first.row,
            start=len(ask.prompt_ids) + len(tokens) - 1,
            num_tokens=1 + len(guesses),
            samples=True,
            new_blocks=((),) * len(row_blocks),
            drafts=guesses,
        )
        result = worker.step(StepPlan(step_id=0, rows=(step,)))
        assert result.rows[0].fault is None
        tokens += result.rows[0].token_ids
    worker.step(plans[-1])
    return tokens


@pytest.fixture
def worker(plugin: Any) -> Iterator[Worker]:
    """Return a worker ready to step."""
    new_worker = started(plugin)
    new_worker.allocate(tiny_layout(new_worker.kv_layers()))
    yield new_worker
    new_worker.shutdown()


class TestWorker:
    """Clauses of workers."""

    kind = "worker"

    def test_says_which_devices_fit(self, plugin: Any) -> None:
        """why_not takes a device type."""
        assert plugin.info.devices
        for device in plugin.info.devices:
            assert plugin.why_not(device) == []
        assert plugin.why_not("no such device")

    def test_tells_what_the_model_caches(self, plugin: Any) -> None:
        """kv_layers follows the model; free_bytes is a count of bytes."""
        worker = started(plugin)
        assert [layer.name for layer in worker.kv_layers()] == ["a", "b"]
        assert worker.free_bytes() >= 0
        worker.shutdown()

    def test_no_memory_is_a_config_error(self, plugin: Any) -> None:
        """A layout without blocks is refused with a remedy."""
        worker = started(plugin)
        layout = tiny_layout(worker.kv_layers(), num_blocks=0)
        with pytest.raises(ConfigError) as caught:
            worker.allocate(layout)
        assert caught.value.fix
        worker.shutdown()

    def test_draws_what_was_asked(self, worker: Worker) -> None:
        """Every request gets its number of tokens, chunked or whole the same ones."""
        whole = run(worker, REQUESTS)
        assert {name: len(ids) for name, ids in whole.items()} == {"a": 6, "b": 6, "c": 6}
        assert run(worker, REQUESTS, chunk_tokens=3) == whole
        for one in REQUESTS:
            assert run(worker, [one])[one.request_id] == whole[one.request_id]

    @requires("overlapped_steps")
    def test_one_ahead_equals_in_turn(self, plugin: Any, worker: Worker) -> None:
        """Steps begun before the one before was read draw the same tokens."""
        ahead = started(plugin, async_steps=True)
        layout = tiny_layout(list(ahead.kv_layers()))
        ahead.allocate(layout)
        plans = list(Driver(layout).plans(REQUESTS))
        flights = [ahead.begin(plans[0])]
        results = []
        for plan in plans[1:]:
            flights.append(ahead.begin(plan))
            results.append(flights.pop(0).result())
        results.append(flights.pop().result())
        outputs = collect(zip(plans, results, strict=True))
        assert {name: o.token_ids for name, o in outputs.items()} == run(worker, REQUESTS)
        ahead.shutdown()

    def test_faults_are_reported_not_raised(self, plugin: Any) -> None:
        """A row whose logits are NaN ends without affecting others."""
        scripts = [{"tokens": [7, 8, 9]}, {"tokens": [4, 5], "nan_at": 1}]
        worker = started(plugin, model=REPLAY, hf_config={"replay": scripts, "cue_base": 90})
        layout = tiny_layout(worker.kv_layers())
        worker.allocate(layout)
        asks = [
            DriveRequest(request_id="good", prompt_ids=(90,), num_tokens=3),
            DriveRequest(request_id="bad", prompt_ids=(91,), num_tokens=3),
        ]
        outputs = collect((plan, worker.step(plan)) for plan in Driver(layout).plans(asks))
        assert outputs["good"].token_ids == [7, 8, 9] and not outputs["good"].faults
        assert outputs["bad"].token_ids == [4] and outputs["bad"].faults
        worker.shutdown()

    def test_recomputed_row_goes_on(self, worker: Worker) -> None:
        """A preempted request, given again with the tokens drawn so far, draws the same ones on."""
        seeded = SamplingParams(temperature=1.0)
        prompt = (5, 6, 7, 8, 9)
        whole = DriveRequest(request_id="r", prompt_ids=prompt, sampling=seeded, seed=3)
        drawn = run(worker, [whole])["r"]
        layout = tiny_layout(worker.kv_layers())
        again = DriveRequest(
            request_id="r", prompt_ids=(*prompt, *drawn[:4]), num_tokens=2, sampling=seeded, seed=3
        )
        tokens: list[int] = []
        for plan in Driver(layout).plans([again]):
            rows = [msgspec.structs.replace(row, num_prompt_tokens=5) for row in plan.new_rows]
            result = worker.step(msgspec.structs.replace(plan, new_rows=tuple(rows)))
            tokens += [token_id for row in result.rows for token_id in row.token_ids]
        assert tokens == drawn[4:]

    def test_drafts_change_no_token(self, worker: Worker) -> None:
        """A row samples one token more than accepted drafts, the same as in single steps."""
        prompt = tuple(range(3, 12))
        for sampling in (SamplingParams(temperature=0.0), SamplingParams(temperature=1.0)):
            ask = DriveRequest(request_id="r", prompt_ids=prompt, sampling=sampling, seed=3)
            drawn = run(worker, [ask])["r"]
            wrong = [(token_id + 1) % VOCAB for token_id in drawn]
            for drafts, num_true in (((*drawn[1:3], wrong[3], 5), 2), ((wrong[1],), 0)):
                assert drafted(worker, ask, drafts) == drawn[: num_true + 3]

    @requires("swap")
    def test_swapped_blocks_come_back(self, plugin: Any) -> None:
        """A row whose blocks went to the host, and came back as others, draws the same ones on."""
        worker = started(plugin)

        def leave(plan: StepPlan, pairs: Pairs) -> StepPlan:
            return msgspec.structs.replace(plan, swapped_out=pairs)

        def come(plan: StepPlan, pairs: Pairs) -> StepPlan:
            return msgspec.structs.replace(plan, swapped_in=pairs)

        self.assert_blocks_come_back(worker, leave, come)

    @requires("kv_connector")
    def test_saved_blocks_come_back(self, plugin: Any) -> None:
        """A row whose blocks went to a connector's store, and came back as others, continues with
        the same tokens; blocks missing in the store are refused."""
        spec = TransferSpec(connector=MEMORY_CONNECTOR, identity="")
        worker = started(plugin, transfer=spec)
        keys = tuple(bytes((number,)) * 20 for number in range(64))

        def leave(plan: StepPlan, pairs: Pairs) -> StepPlan:
            saved = tuple((block, keys[place]) for block, place in pairs)
            return msgspec.structs.replace(plan, block_orders=BlockOrders(saved=saved))

        def come(plan: StepPlan, pairs: Pairs) -> StepPlan:
            worker.prepare(BlockLoad(first=100, keys=keys[: len(pairs)]))
            loaded = tuple((100 + place, block) for place, block in pairs)
            orders = BlockOrders(loaded=loaded, released=(100,), dropped=keys[:1])
            return msgspec.structs.replace(plan, block_orders=orders)

        with pytest.raises(RequestError):
            worker.prepare(BlockLoad(first=7, keys=keys[:1]))
        self.assert_blocks_come_back(worker, leave, come)

    @staticmethod
    def assert_blocks_come_back(worker: Worker, leave: Move, come: Move) -> None:
        """Assert that a row continues after `leave` has saved its blocks, pairs (block, place), and
        `come` has brought them back, pairs (place, block)."""
        layout = msgspec.structs.replace(tiny_layout(worker.kv_layers()), num_host_blocks=32)
        worker.allocate(layout)
        ask = DriveRequest(request_id="r", prompt_ids=tuple(range(20)))
        wanted = run(worker, [ask])["r"]
        plans = list(Driver(layout).plans([ask]))[:2]
        drawn = [token for plan in plans for token in worker.step(plan).rows[0].token_ids]
        groups = range(len(layout.groups))
        blocks = [[b for plan in plans for b in plan.rows[0].new_blocks[g]] for g in groups]
        places = list(enumerate((g, i) for g in groups for i in range(len(blocks[g]))))
        # Another request takes the same blocks meanwhile.
        first, *rest = Driver(layout).plans([DriveRequest(request_id="o", prompt_ids=(1,) * 30)])
        out = tuple((blocks[g][i], host) for host, (g, i) in places)
        worker.step(leave(msgspec.structs.replace(first, freed_rows=(0,)), out))
        for plan in rest:
            worker.step(plan)
        count = -(-(len(ask.prompt_ids) + len(wanted)) // layout.block_tokens)
        tables = tuple(tuple(range(1 + g * count, 1 + (g + 1) * count)) for g in groups)
        back = tuple((host, tables[g][i]) for host, (g, i) in places)
        tokens = (*ask.prompt_ids, *drawn)
        again = NewRow(
            row=3,
            request_id="r",
            token_ids=tokens,
            num_prompt_tokens=len(ask.prompt_ids),
            num_computed_tokens=len(tokens) - 1,
            blocks=tables,
            sampling=ask.sampling,
            seed=ask.seed,
        )
        for start in range(len(tokens) - 1, len(ask.prompt_ids) + len(wanted) - 1):
            none = ((),) * len(groups)
            step = RowStep(row=3, start=start, num_tokens=1, samples=True, new_blocks=none)
            plan = StepPlan(step_id=start, rows=(step,))
            if start < len(tokens):
                plan = come(StepPlan(step_id=start, rows=(step,), new_rows=(again,)), back)
            drawn += worker.step(plan).rows[0].token_ids
        assert drawn == wanted
        worker.shutdown()

    @requires("sleep")
    def test_sleeps_and_wakes_up(self, plugin: Any, worker: Worker) -> None:
        """After either sleep the same tokens are drawn, whichever part woke up first."""
        wanted = run(worker, REQUESTS)
        for level, tags in ((1, ("weights", "kv_cache")), (2, ("kv_cache", "weights"))):
            worker.sleep(level)
            for tag in tags:
                worker.wake_up((tag,))
            assert run(worker, REQUESTS) == wanted

    def test_two_in_one_process(self, plugin: Any, worker: Worker) -> None:
        """A second worker changes nothing for the first."""
        before = run(worker, REQUESTS)
        second = started(plugin)
        second.allocate(tiny_layout(list(second.kv_layers())))
        assert run(second, REQUESTS) == before
        second.shutdown()
        assert run(worker, REQUESTS) == before

    def test_shutdown_twice(self, plugin: Any) -> None:
        """shutdown may come early and twice."""
        worker = started(plugin)
        worker.shutdown()
        worker.shutdown()
