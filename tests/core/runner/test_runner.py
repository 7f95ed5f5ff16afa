"""The model runner on a tiny transformer: however a request is cut or joined, it draws the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.data.step import NewRow, RowStep, StepPlan, StepResult
from dovetail.runner.model_runner import ModelRunner
from dovetail_testing.scripted_steps import DriveOutput, Driver, DriveRequest, collect
from dovetail_testing.tiny.transformer import VOCAB, WINDOW_TOKENS, tiny_layout, tiny_run
from support.inside import caches_of, layout_of

RANDOM = SamplingParams(temperature=1.0, top_p=0.9, top_k=20)


def runner(**changes: Any) -> ModelRunner:
    made = ModelRunner(tiny_run(**changes), torch.device("cpu"))
    made.load()
    made.allocate(tiny_layout(list(made.kv_layers())))
    made.warm_up()
    return made


@pytest.mark.parametrize(("least_bytes", "num_steps"), [(1 << 30, 3), (0, 2)])
def test_large_weights_are_read_once_to_warm_up(
    least_bytes: int, num_steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dovetail.runner.replay.warm_up.LARGE_BYTES", least_bytes)
    plans: list[StepPlan] = []
    step = ModelRunner.step

    def noted(self: ModelRunner, plan: StepPlan) -> StepResult:
        plans.append(plan)
        return step(self, plan)

    monkeypatch.setattr(ModelRunner, "step", noted)
    runner()
    assert len(plans) == num_steps


def request(name: str, length: int, **changes: Any) -> DriveRequest:
    ids = torch.randint(0, VOCAB, (length,), generator=torch.Generator().manual_seed(length))
    return DriveRequest(request_id=name, prompt_ids=tuple(ids.tolist()), **changes)


def mixed() -> list[DriveRequest]:
    return [
        request("a", 5),
        request("b", 17, sampling=RANDOM, seed=3),
        request("c", 30, joins_at=2, num_tokens=9),
        request("d", 1, sampling=RANDOM, seed=4, joins_at=3),
        request("e", 9, joins_at=3, sampling=SamplingParams(repetition_penalty=1.3, seed=0)),
    ]


def run(
    made: ModelRunner, requests: Sequence[DriveRequest], *, chunk_tokens: int = 1 << 20
) -> dict[str, DriveOutput]:
    driver = Driver(layout_of(made))
    plans = driver.plans(requests, chunk_tokens=chunk_tokens)
    return collect((plan, made.step(plan)) for plan in plans)


def tokens(outputs: dict[str, DriveOutput]) -> dict[str, list[int]]:
    assert not any(output.faults for output in outputs.values())
    return {name: output.token_ids for name, output in outputs.items()}


@pytest.fixture(params=[None, WINDOW_TOKENS], ids=["full", "window"])
def made(request: pytest.FixtureRequest) -> ModelRunner:
    return runner(hf_config={"window": request.param})


def test_draws_what_the_whole_model_says(made: ModelRunner) -> None:
    """Greedy decoding equals one forward over prompt and output together."""
    one = request("a", 20, num_tokens=8)
    drawn = tokens(run(made, [one]))["a"]
    assert len(drawn) == 8
    follow = replace(one, prompt_ids=one.prompt_ids + tuple(drawn[:-1]), num_tokens=1)
    wants = SamplingParams(temperature=0.0, prompt_logprobs=1)
    told = run(made, [replace(follow, sampling=wants)])["a"].prompt_logprobs
    assert [t.top_ids[0] for t in told[19:]] == drawn[:-1]


@pytest.mark.parametrize("chunk_tokens", [1, 3, 7, 16])
def test_chunked_equals_whole(made: ModelRunner, chunk_tokens: int) -> None:
    whole = tokens(run(made, mixed()))
    assert tokens(run(made, mixed(), chunk_tokens=chunk_tokens)) == whole


def test_batched_equals_alone(made: ModelRunner) -> None:
    together = tokens(run(made, mixed()))
    for one in mixed():
        assert (
            tokens(run(made, [replace(one, joins_at=0)]))[one.request_id]
            == (together[one.request_id])
        )


def test_seeds_tell_requests_apart(made: ModelRunner) -> None:
    sampling = SamplingParams(temperature=1.5)
    twins = [request(str(i), 6, sampling=sampling, seed=i // 2, num_tokens=12) for i in range(4)]
    drawn = tokens(run(made, twins))
    assert drawn["0"] == drawn["1"] != drawn["2"] == drawn["3"]


def test_resumes_after_preemption(made: ModelRunner) -> None:
    """A row filled again with prompt and drawn tokens goes on as if nothing had happened."""
    one = request("a", 11, sampling=replace_sampling(RANDOM, frequency_penalty=0.7), seed=9)
    drawn = tokens(run(made, [replace(one, num_tokens=10)]))["a"]
    # Groups share tensors, so each needs block ids of its own.
    blocks = tuple(tuple(range(1 + 10 * g, 9 + 10 * g)) for g in range(len(layout_of(made).groups)))
    row = NewRow(
        row=2,
        request_id="a",
        token_ids=one.prompt_ids + tuple(drawn[:4]),
        num_prompt_tokens=11,
        num_computed_tokens=0,
        blocks=blocks,
        sampling=one.sampling,
        seed=9,
    )
    empty = tuple(() for _ in layout_of(made).groups)
    again = []
    for start, count in ((0, 15), *((p, 1) for p in range(15, 20))):
        step = RowStep(row=2, start=start, num_tokens=count, samples=True, new_blocks=empty)
        fresh = (row,) if start == 0 else ()
        again += made.step(StepPlan(step_id=1, rows=(step,), new_rows=fresh)).rows[0].token_ids
    assert again == drawn[4:]


def replace_sampling(params: SamplingParams, **changes: Any) -> SamplingParams:
    fields = {name: getattr(params, name) for name in params.__struct_fields__}
    return SamplingParams(**(fields | changes))


def test_unused_blocks_do_not_matter(made: ModelRunner) -> None:
    clean = tokens(run(made, mixed()))
    for cache in caches_of(made).values():
        cache.fill_(float("nan"))
    assert tokens(run(made, mixed())) == clean


def test_prompt_logprobs_are_those_of_the_model(made: ModelRunner) -> None:
    sampling = SamplingParams(temperature=0.0, prompt_logprobs=2, logprobs=0)
    one = request("a", 13, sampling=sampling)
    whole = run(made, [one, request("b", 4)])["a"]
    chunked = run(made, [one], chunk_tokens=5)["a"]
    assert [t.token_id for t in whole.prompt_logprobs] == list(one.prompt_ids[1:])
    assert len(whole.logprobs) == 6 and all(not t.top_ids for t in whole.logprobs)
    for left, right in zip(whole.prompt_logprobs, chunked.prompt_logprobs, strict=True):
        assert left.top_ids == right.top_ids and left.rank == right.rank
        assert left.logprob == pytest.approx(right.logprob, abs=1e-4)
        assert left.logprob <= left.top_logprobs[0] <= 0.0


def test_rows_without_prompt_logprobs_have_none(made: ModelRunner) -> None:
    assert run(made, [request("a", 6)])["a"].prompt_logprobs == []


def test_a_plan_for_unknown_tokens_is_refused() -> None:
    made = runner()
    step = RowStep(row=0, start=0, num_tokens=3, samples=True, new_blocks=((0,),))
    with pytest.raises(AssertionError, match="does not have"):
        made.step(StepPlan(step_id=1, rows=(step,)))


def test_empty_plan_gives_empty_result() -> None:
    result = runner().step(StepPlan(step_id=7, rows=()))
    assert result.step_id == 7 and result.rows == ()


def test_longest_request_and_one_ahead() -> None:
    """A row filled to the context's end may still draw one token that is thrown away."""
    made = runner(max_model_tokens=24)
    assert len(tokens(run(made, [request("a", 20, num_tokens=5)]))["a"]) == 5


REPLAY = "dovetail_testing.models:ReplayModel"


def replaying(scripts: list[dict[str, Any]], **changes: Any) -> ModelRunner:
    config = {"replay": scripts, "cue_base": 90}
    return runner(model=REPLAY, hf_config=config, **changes)


def test_replay_follows_the_cue() -> None:
    made = replaying([{"tokens": [7, 8, 9]}, {"tokens": [4, 5]}])
    asks = [
        DriveRequest(request_id="first", prompt_ids=(1, 90, 2), num_tokens=5),
        DriveRequest(request_id="second", prompt_ids=(1, 90, 91, 3), num_tokens=4),
        DriveRequest(request_id="none", prompt_ids=(1,), num_tokens=4),
    ]
    told = {"first": [7, 8, 9, 0, 0], "second": [4, 5, 0, 0], "none": [7, 8, 9, 0]}
    assert tokens(run(made, asks)) == told
    assert tokens(run(made, asks, chunk_tokens=1)) == told


@pytest.mark.parametrize("bad_at", [0, 2])
def test_nan_ends_one_row(bad_at: int) -> None:
    made = replaying([{"tokens": [7, 8, 9, 10]}, {"tokens": [4, 5, 6], "nan_at": bad_at}])
    good = DriveRequest(request_id="good", prompt_ids=(1, 90), num_tokens=4)
    bad = DriveRequest(request_id="bad", prompt_ids=(1, 91), num_tokens=4)
    outputs = run(made, [good, bad, replace(good, request_id="warm", sampling=RANDOM)])
    assert outputs["good"].token_ids == outputs["warm"].token_ids == [7, 8, 9, 10]
    assert outputs["bad"].token_ids == [4, 5, 6][:bad_at]
    # Once failed a row stays so: later steps planned ahead of the result are void too.
    assert len(outputs["bad"].faults) == 4 - bad_at
    assert "not finite" in outputs["bad"].faults[0]
    assert run(made, [good])["good"].faults == []


def test_nan_in_prompt_logprobs_is_a_fault() -> None:
    made = runner()
    made.model.head.weight.data.fill_(float("nan"))
    wants = SamplingParams(temperature=0.0, prompt_logprobs=1)
    output = run(made, [request("a", 6, sampling=wants, num_tokens=1)])["a"]
    assert "not finite" in output.faults[0] and output.prompt_logprobs == []


def test_ids_outside_the_vocabulary_cost_one_row(made: ModelRunner) -> None:
    clean = tokens(run(made, [request("a", 5)]))["a"]
    bad = DriveRequest(request_id="bad", prompt_ids=(3, VOCAB, 4))
    outputs = run(made, [bad, request("a", 5)])
    assert outputs["a"].token_ids == clean
    assert outputs["bad"].token_ids == [] and f"token id {VOCAB}" in outputs["bad"].faults[0]


def test_random_logits_do_not_depend_on_the_batch() -> None:
    made = runner(model="dovetail_testing.models:RandomLogitsModel", hf_config={"logits": "random"})
    asks = [request(str(n), n, sampling=RANDOM, seed=n) for n in (3, 4, 5)]
    together = tokens(run(made, asks))
    assert all(tokens(run(made, [one]))[one.request_id] == together[one.request_id] for one in asks)
