"""A request's own rules: where drawn tokens end it, and what it tells and when."""

from __future__ import annotations

import pytest

from dovetail.engine.request import FINISHED, WAITING, Request
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.data.step import RowResult, TokenLogprobs
from dovetail.interfaces.stop_condition import StopCondition, Watch


def make_request(max_model_tokens: int = 100, **sampling: object) -> Request:
    return Request(
        request_id="r",
        prompt_ids=(1, 2, 3),
        sampling=SamplingParams(eos_token_ids=(0,), **sampling),
        seed=0,
        max_model_tokens=max_model_tokens,
    )


def logprobs(*token_ids: int) -> tuple[TokenLogprobs, ...]:
    return tuple(TokenLogprobs(token_id=t, logprob=-1.0, rank=1) for t in token_ids)


def draw(request: Request, *token_ids: int) -> Request:
    for token_id in token_ids:
        request.append(RowResult(row=0, token_ids=(token_id,), logprobs=logprobs(token_id)))
    return request


@pytest.mark.parametrize(
    ("sampling", "tokens", "reason", "stop_reason", "kept"),
    [
        ({}, (5, 0), "stop", None, 2),
        ({"ignore_eos": True}, (5, 0), None, None, 2),
        ({"stop_token_ids": (7,)}, (5, 7), "stop", 7, 2),
        ({"stop_token_ids": (0,), "ignore_eos": True}, (5, 0), "stop", 0, 2),
        ({"min_tokens": 3}, (0, 0), None, None, 2),
        ({"min_tokens": 3}, (0, 0, 0), "stop", None, 3),
        ({"max_tokens": 2}, (5, 6), "length", None, 2),
        ({"max_tokens": 2}, (5, 0), "stop", None, 2),
        ({"max_tokens": 2}, (5, 6, 7), "length", None, 2),
    ],
)
def test_where_it_ends(
    sampling: dict[str, object],
    tokens: tuple[int, ...],
    reason: str | None,
    stop_reason: int | None,
    kept: int,
) -> None:
    request = draw(make_request(**sampling), *tokens)
    assert (request.finish_reason, request.stop_reason) == (reason, stop_reason)
    assert request.is_finished is (reason is not None)
    assert request.status == (FINISHED if reason else WAITING)
    assert request.output_ids == list(tokens[:kept])


def test_the_context_bounds_it() -> None:
    request = draw(make_request(max_model_tokens=5, max_tokens=50, min_tokens=9), 5, 6, 7)
    assert (request.finish_reason, request.num_tokens, request.max_tokens) == ("length", 5, 5)


def test_several_tokens_of_one_step_are_cut_at_the_end() -> None:
    request = make_request(stop_token_ids=(7,))
    request.append(RowResult(row=0, token_ids=(5, 7, 8), logprobs=logprobs(5, 7, 8)))
    told = request.take_progress()
    assert told.token_ids == (5, 7)
    assert [entry.token_id for entry in told.logprobs] == [5, 7]


def test_progress_is_told_once() -> None:
    request = draw(make_request(), 5, 6)
    assert request.take_progress().token_ids == (5, 6)
    assert request.take_progress().token_ids == ()
    assert draw(request, 8).take_progress().token_ids == (8,)


def test_a_fault_ends_it_with_its_text() -> None:
    request = make_request()
    request.append(RowResult(row=0, token_ids=(5,), fault="NaN logits"))
    assert (request.finish_reason, request.error) == ("error", "NaN logits")
    assert request.output_ids == []


def test_the_first_reason_stays() -> None:
    request = make_request()
    request.finish("stop", "###")
    request.finish("abort")
    request.append(RowResult(row=0, token_ids=(5,)))
    assert (request.finish_reason, request.stop_reason, request.error) == ("stop", "###", None)
    assert request.output_ids == []


def test_prompt_logprobs_come_whole_and_once_even_after_a_preemption() -> None:
    request = make_request(prompt_logprobs=1)
    request.append(RowResult(row=0, prompt_logprobs=logprobs(2)))
    assert request.take_progress().prompt_logprobs is None
    request.num_preemptions += 1
    request.append(RowResult(row=0, prompt_logprobs=logprobs(2, 3), token_ids=(5,)))
    told = request.take_progress().prompt_logprobs
    assert told is not None
    assert [entry.token_id for entry in told] == [2, 3]
    assert draw(request, 6).take_progress().prompt_logprobs is None


def test_keys_of_the_prefix_are_typed() -> None:
    request = Request(
        request_id="r",
        prompt_ids=(1,),
        sampling=SamplingParams(),
        seed=0,
        max_model_tokens=9,
        cache_salt="x",
    )
    assert request.prefix_keys == (("salt", "x"),)
    assert make_request().prefix_keys == ()


class SumsTo(StopCondition):
    """Ends an answer whose tokens sum to ten; one whose tokens sum to more raises."""

    finish_reason = "ten"
    stop_reason = "sum"

    def watch(self, params: SamplingParams) -> Watch:
        seen: list[int] = []

        def take(token_id: int) -> bool:
            seen.append(token_id)
            if sum(seen) > 10:
                raise ValueError("too much")
            return sum(seen) == 10

        return take


@pytest.mark.parametrize(
    ("sampling", "tokens", "reason", "stop_reason", "kept"),
    [
        ({}, (5, 4), None, None, 2),
        ({}, (5, 4, 1, 7), "ten", "sum", 3),
        ({"min_tokens": 3}, (5, 5, 0), "stop", None, 3),
        ({"stop_token_ids": (1,)}, (9, 1), "stop", 1, 2),
        ({"max_tokens": 2}, (9, 1), "length", None, 2),
        ({}, (9, 2, 7), "error", None, 2),
    ],
)
def test_a_stop_condition_ends_it(
    sampling: dict[str, object],
    tokens: tuple[int, ...],
    reason: str | None,
    stop_reason: int | str | None,
    kept: int,
) -> None:
    """With the tokens of several steps, or all of one step, as drafts bring them."""
    for pieces in ([(t,) for t in tokens], [tokens]):
        request = make_request(**sampling)
        condition = SumsTo(None)
        request.conditions = [(condition, condition.watch(request.sampling))]
        for piece in pieces:
            request.append(RowResult(row=0, token_ids=piece))
        assert (request.finish_reason, request.stop_reason) == (reason, stop_reason)
        assert request.output_ids == list(tokens[:kept])
        assert ("too much" in (request.error or "")) == (reason == "error")
