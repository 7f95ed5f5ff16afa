"""Bytes to times of tokens, by numbers worked out by hand."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from dovetail_plugins.bench.answers import (
    Event,
    RequestOutcome,
    read_answer,
    sse_data,
    timed_tokens,
)
from dovetail_plugins.bench.client import Trace


def event(text: str | None = None, *, reason: str | None = None, usage: int | None = None) -> bytes:
    body: dict[str, Any] = {"choices": []}
    if text is not None or reason is not None:
        body["choices"] = [{"text": text or "", "finish_reason": reason}]
    if usage is not None:
        body["usage"] = {"prompt_tokens": 3, "completion_tokens": usage}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


def answer_of(
    *pieces: tuple[float, bytes], status: int = 200, error: str | None = None
) -> RequestOutcome:
    trace = Trace(start_s=10.0, end_s=12.0, status=status, pieces=list(pieces), error=error)
    return read_answer(trace)


def test_an_event_of_k_tokens_is_k_gaps_of_a_kth() -> None:
    answer = answer_of(
        (10.5, event("a", usage=1)),
        (10.8, event("bcd", usage=4)),
        (11.0, event("e", usage=5)),
        (11.0, event("f", reason="length", usage=6)),
        (11.5, event(usage=6) + DONE),
    )
    assert answer.error is None
    assert answer.counted_by == "running usage"
    assert answer.arrivals == ((10.5, 1), (10.8, 3), (11.0, 2))
    assert answer.ttft_s == pytest.approx(0.5)
    assert answer.itl_s() == pytest.approx([0.1, 0.1, 0.1, 0.1, 0.1])
    assert answer.tpot_s == pytest.approx(0.5 / 5)
    assert answer.e2e_s == pytest.approx(2.0)
    assert (answer.prompt_tokens, answer.output_tokens) == (3, 6)


def test_a_first_event_of_several_tokens_counts_in_no_gap() -> None:
    answer = answer_of(
        (10.5, event("abcd", usage=4)), (10.7, event("e", reason="stop", usage=5)), (10.7, DONE)
    )
    assert answer.itl_s() == pytest.approx([0.2])
    assert answer.tpot_s == pytest.approx(0.2)


def test_without_running_usage_the_total_is_spread_over_the_events() -> None:
    answer = answer_of(
        (10.1, event("a")),
        (10.2, event("b")),
        (10.4, event("c", reason="stop")),
        (10.4, event(usage=7) + DONE),
    )
    assert answer.counted_by == "final usage"
    assert answer.arrivals == ((10.1, 2), (10.2, 2), (10.4, 3))
    assert answer.itl_s() == pytest.approx([0.05, 0.05] + [0.2 / 3] * 3)


def test_without_any_usage_every_event_with_text_is_a_token() -> None:
    role = b'data: {"choices": [{"delta": {"role": "assistant", "content": ""}}]}\n\n'
    thought = b'data: {"choices": [{"delta": {"reasoning_content": "hm"}}]}\n\n'
    call = b'data: {"choices": [{"delta": {"tool_calls": [{"index": 0}]}}]}\n\n'
    end = b'data: {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]}\n\n'
    answer = answer_of((10.1, role), (10.3, thought), (10.6, call), (10.9, end))
    assert answer.counted_by == "events"
    assert answer.arrivals == ((10.3, 1), (10.6, 1))
    assert answer.finish_reason == "tool_calls"


def test_fewer_tokens_than_events() -> None:
    events = [Event(at_s=float(i), bears_text=True) for i in range(4)]
    assert timed_tokens(events, 2) == ("final usage", [(1.0, 1), (3.0, 1)])


def test_one_token_has_no_gap() -> None:
    answer = answer_of((10.5, event("a", reason="length", usage=1) + DONE))
    assert answer.itl_s() == []
    assert answer.tpot_s is None


@pytest.mark.parametrize(
    ("trace", "text"),
    [
        (answer_of((10.1, b'{"error": {"message": "too long"}}'), status=400), "400: too long"),
        (answer_of((10.1, b"plain words"), status=502), "502: plain words"),
        (answer_of(error="the connection broke"), "the connection broke"),
        (
            answer_of((10.1, event("a")), (10.2, b'data: {"error": {"message": "NaN"}}\n\n')),
            "error in the stream: NaN",
        ),
        (answer_of((10.1, event("a")), (10.2, DONE)), "without a finish_reason"),
        (answer_of((10.1, event("a"))), "without a finish_reason"),
        (answer_of((10.1, b'{"choices": []}')), "no event stream"),
        (answer_of((10.1, b"data: {oops\n\n")), "not JSON"),
    ],
)
def test_failures_say_why(trace: RequestOutcome, text: str) -> None:
    assert trace.error is not None
    assert text in trace.error
    assert trace.output_tokens == 0


def test_events_cut_anywhere_are_the_same_events() -> None:
    whole = b": a comment\r\n\r\ndata: one\ndata:two\n\nevent: x\ndata: \xe2\x82\xac\r\n\r\n"
    rng = random.Random(0)
    for _ in range(200):
        cuts = sorted(rng.sample(range(1, len(whole)), 5))
        parts = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
        pieces = [(float(number), part) for number, part in enumerate(parts)]
        assert [data for _, data in sse_data(pieces)] == ["one\ntwo", "€"]


def test_an_event_has_the_time_of_the_piece_that_ends_it() -> None:
    assert list(sse_data([(1.0, b"data: a\n"), (2.0, b"\ndata: b"), (3.0, b"\n\n")])) == [
        (2.0, "a"),
        (3.0, "b"),
    ]
