"""A step in two halves draws what a whole step does, wherever it is divided."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from dovetail.interfaces.attention import BatchLayout
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.data.spec import HalvesSpec
from dovetail.interfaces.data.step import RowStep
from dovetail.layers.context import forward_context
from dovetail.parallel.halves import HalfBatches
from dovetail.runner.device import DeviceCalls, HostDevice
from dovetail.runner.model_runner import ModelRunner
from dovetail.runner.replay.halves import divided_inputs, divided_layout, even_cut
from dovetail.runner.rows.batch import StepInputs
from dovetail_testing.scripted_steps import Driver, DriveRequest, collect
from dovetail_testing.tiny.transformer import WINDOW_TOKENS, tiny_layout, tiny_run
from support.fake_device import FakeDevice
from support.inside import layout_of, set_halves

RANDOM = SamplingParams(temperature=1.0, top_k=20, logprobs=2, prompt_logprobs=1)
REQUESTS = [
    DriveRequest(request_id="a", prompt_ids=(3, 4, 5, 6, 7), sampling=RANDOM, num_tokens=9),
    DriveRequest(request_id="b", prompt_ids=tuple(range(8, 31)), sampling=RANDOM, seed=3),
    DriveRequest(request_id="c", prompt_ids=tuple(range(20, 41)), joins_at=2),
    DriveRequest(request_id="d", prompt_ids=(9,), sampling=RANDOM, seed=4, joins_at=3),
]


def inputs_of(counts: list[int], drafted: tuple[int, ...] = ()) -> StepInputs:
    """Return the inputs of rows that have 10 tokens each in the cache."""
    steps = [
        RowStep(
            row=row + 3,
            start=10,
            num_tokens=count,
            samples=True,
            new_blocks=(),
            drafts=(1,) * (count - 1) if row in drafted else (),
        )
        for row, count in enumerate(counts)
    ]
    rows = np.array([step.row for step in steps])
    starts = np.full(len(steps), 10)
    query_start = np.concatenate(([0], np.cumsum(counts)))
    places = np.arange(query_start[-1])
    return StepInputs(
        steps=steps,
        rows=rows,
        starts=starts,
        counts=np.array(counts),
        samples=np.ones(len(steps), dtype=bool),
        query_start=query_start,
        token_rows=np.repeat(rows, counts),
        token_ids=places + 100,
        positions=places - np.repeat(query_start[:-1], counts) + 10,
        drafted=drafted,
        adapters=places.astype(np.int32),
    )


@pytest.mark.parametrize(
    ("counts", "drafted", "cuts_rows", "cut"),
    [
        ([1] * 7, (), True, 3),
        ([8, 1, 7], (), True, 8),
        ([30, 1, 1], (), True, 16),
        ([30, 1, 1], (), False, 30),
        ([9, 1], (0,), True, 9),
        ([32], (), True, 16),
        ([32], (), False, None),
        ([1], (), True, None),
    ],
)
def test_where_a_step_is_divided(
    counts: list[int], drafted: tuple[int, ...], cuts_rows: bool, cut: int | None
) -> None:
    inputs = inputs_of(counts, drafted)
    assert even_cut(inputs, cuts_rows=cuts_rows) == cut


@pytest.mark.parametrize("cut", range(1, 12))
def test_every_token_is_in_one_half(cut: int) -> None:
    whole = inputs_of([4, 1, 7], drafted=(2,) if cut in (4, 5) else ())
    first, second = divided_inputs(whole, cut)
    for name in ("token_rows", "token_ids", "positions", "adapters"):
        joined = np.concatenate([getattr(first, name), getattr(second, name)])
        assert (joined == getattr(whole, name)).all()
    for part in (first, second):
        assert len(part.token_ids) == part.query_start[-1] == part.counts.sum()
        assert (np.repeat(part.rows, part.counts) == part.token_rows).all()
        assert all(part.steps[index].drafts for index in part.drafted)
        assert len(part.steps) == len(part.rows) and (part.counts > 0).all()
    assert len(first.drafted) + len(second.drafted) == len(whole.drafted)
    drawn = [step.row for part in (first, second) for step in part.steps if step.samples]
    assert drawn == [3, 4, 5], "a row that is cut draws once, behind its last token"


@pytest.mark.parametrize("cut", range(1, 12))
def test_layouts_say_on_the_host_what_they_say_on_the_device(cut: int) -> None:
    starts, lens = [0, 4, 5, 12], [14, 11, 17]
    whole = BatchLayout(
        query_start=torch.tensor(starts, dtype=torch.int32),
        seq_lens=torch.tensor(lens, dtype=torch.int32),
        block_table=torch.arange(12, dtype=torch.int32).view(3, 4),
        slots=torch.arange(12),
        query_start_host=list(starts),
        seq_lens_host=list(lens),
        block_tokens=8,
        max_query_tokens=7,
        max_seq_tokens=17,
        row_block_tokens=torch.tensor([8, 8, 1], dtype=torch.int32),
    )
    halves = divided_layout(whole, cut)
    for one, (low, high) in zip(halves, ((0, cut), (cut, 12)), strict=True):
        rows = [row for row in range(3) if starts[row] < high and starts[row + 1] > low]
        assert one.query_start.tolist() == one.query_start_host
        assert one.query_start_host == [
            *(max(0, starts[row] - low) for row in rows), high - low
        ]  # fmt: skip
        behind = [max(0, starts[row + 1] - high) for row in rows]
        assert one.seq_lens_host == [lens[row] - n for row, n in zip(rows, behind, strict=True)]
        assert one.seq_lens.tolist() == one.seq_lens_host
        assert one.block_table.tolist() == whole.block_table[rows].tolist()
        assert one.slots.tolist() == list(range(low, high))
        assert one.row_block_tokens is not None and len(one.row_block_tokens) == len(rows)
        assert one.max_seq_tokens == max(one.seq_lens_host)
        assert one.max_query_tokens == int(np.diff(one.query_start_host).max())
    assert (whole.seq_lens_host, whole.seq_lens.tolist()) == (lens, lens), "it stays as it was"


def made_runner(
    calls: DeviceCalls, halves: HalvesSpec | None, *, alternates: bool = False, **changes: Any
) -> ModelRunner:
    """Return a runner whose halves alternate, or are run one after the other."""
    run = msgspec.structs.replace(tiny_run(**changes), halves=halves)
    made = ModelRunner(run, torch.device("cpu"), calls)
    made.load()
    made.allocate(tiny_layout(list(made.kv_layers()), num_blocks=128))
    made.warm_up()
    set_halves(made, HalfBatches(alternates=alternates))
    return made


def answers(
    calls: DeviceCalls, halves: HalvesSpec | None, *, alternates: bool = False, **changes: Any
) -> tuple[dict[str, Any], list[bool]]:
    """Return what a runner draws, and which of its steps were divided."""
    made = made_runner(calls, halves, alternates=alternates, **changes)
    plans = list(Driver(layout_of(made)).plans(REQUESTS, chunk_tokens=13))
    results = [made.step(plan) for plan in plans]
    return collect(zip(plans, results, strict=True)), [one.is_divided for one in results]


@pytest.mark.parametrize("alternates", [False, True])
@pytest.mark.parametrize("window", [None, WINDOW_TOKENS])
@pytest.mark.parametrize("calls", [HostDevice, FakeDevice])
def test_draws_are_those_of_whole_steps(
    calls: type[DeviceCalls], window: int | None, alternates: bool
) -> None:
    """Rows are cut, begin and end in either half; with a drafter's and a window's layouts too."""
    config = {"hf_config": {"window": window}}
    wanted, whole = answers(calls(), None, **config)
    spec = HalvesSpec(decode_tokens=2, prefill_tokens=2)
    found, divided = answers(calls(), spec, alternates=alternates, **config)
    assert not any(whole) and sum(divided) >= 5
    for name, one in wanted.items():
        other = found[name]
        assert (other.token_ids, other.faults) == (one.token_ids, [])
        for here, there in zip(
            [*other.logprobs, *other.prompt_logprobs],
            [*one.logprobs, *one.prompt_logprobs],
            strict=True,
        ):
            assert here.top_ids == there.top_ids
            assert here.logprob == pytest.approx(there.logprob, abs=1e-5)


@pytest.mark.parametrize("alternates", [False, True])
@pytest.mark.parametrize("number", [0, 1])
def test_a_half_that_fails_fails_the_step(
    number: int, alternates: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a whole step does; the next one runs, and a row's own fault ends no other row."""
    made = made_runner(
        HostDevice(), HalvesSpec(decode_tokens=2, prefill_tokens=2), alternates=alternates
    )
    own, firsts = made.model.forward, list[int]()

    def forward(token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        firsts.append(forward_context().first_token)
        if bool(firsts[-1]) == bool(number):
            raise ValueError("this half fails")
        return own(token_ids, positions)

    plans = list(Driver(layout_of(made)).plans(REQUESTS[:2]))
    monkeypatch.setattr(made.model, "forward", forward)
    with pytest.raises(ValueError, match="this half fails"):
        made.step(plans[0])
    monkeypatch.setattr(
        made.model, "forward", lambda ids, at: own(ids, at).masked_fill(ids[:, None] == 30, np.nan)
    )
    results = made.step(msgspec.structs.replace(plans[0], new_rows=())).rows
    assert [bool(row.fault) for row in results] == [False, True] and results[0].token_ids


def test_thresholds_say_which_steps_are_divided() -> None:
    """Steps with a prompt and steps of answers alone have one each."""
    plans = list(Driver(tiny_layout_of()).plans(REQUESTS, chunk_tokens=13))
    for spec in (HalvesSpec(decode_tokens=3, prefill_tokens=99), HalvesSpec(
        decode_tokens=99, prefill_tokens=14
    )):  # fmt: skip
        _, divided = answers(HostDevice(), spec)
        for plan, is_divided in zip(plans, divided, strict=True):
            is_decode = all(step.num_tokens == 1 for step in plan.rows)
            least = spec.decode_tokens if is_decode else spec.prefill_tokens
            assert is_divided == (plan.num_tokens >= least)
        assert any(divided)


def tiny_layout_of() -> Any:
    made = ModelRunner(tiny_run(), torch.device("cpu"))
    made.load()
    return tiny_layout(list(made.kv_layers()), num_blocks=128)
