"""OutputProcessor: deltas, stops, logprobs, n, errors."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.engine.client.requests.input_processor import InputProcessor, PreparedRequest
from dovetail.engine.client.results.logprobs import LOGPROB_FLOOR, shaped
from dovetail.engine.client.results.output_processor import OutputProcessor, Processed
from dovetail.engine.client.results.outputs import CompletionDelta, RequestOutput, merge
from dovetail.engine.client.text.vocabularies import Vocabularies
from dovetail.engine.messages import RequestUpdate, Timings
from dovetail.errors import RequestError, RequestFault
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.data.step import TokenLogprobs
from dovetail_testing.fakes.engine import EOS, ByteTokenizer, fake_spec

TOKENIZER = ByteTokenizer(None, "")


class Bench:
    """One request in an OutputProcessor."""

    def __init__(self, **fields: Any) -> None:
        params = SamplingParams(**fields)
        self.prepared: PreparedRequest = InputProcessor(
            fake_spec(), Vocabularies(fake_spec(), TOKENIZER)
        ).prepare("prompt", params, "r")
        self.output = OutputProcessor()
        self.output.add(1, self.prepared)

    def feed(self, text: str | tuple[int, ...] = "", child: int = 0, **fields: Any) -> Processed:
        token_ids = tuple(text.encode()) if isinstance(text, str) else text
        request_id = self.prepared.requests[child].request_id
        return self.output.process(
            [RequestUpdate(request_id=request_id, token_ids=token_ids, **fields)]
        )


def delta(processed: Processed) -> CompletionDelta:
    ((_, output),) = processed.outputs
    return output.deltas[0]


def test_tokens_become_text_and_the_end_is_told() -> None:
    bench = Bench()
    assert delta(bench.feed("hel")).text == "hel"
    processed = bench.feed("lo", finish_reason="length")
    assert delta(processed) == CompletionDelta(
        index=0, text="lo", token_ids=tuple(b"lo"), num_chars=(1, 1), finish_reason="length"
    )
    assert processed.outputs[0][1].is_finished
    assert len(bench.output) == bench.output.num_unfinished == 0
    assert processed.stats[0].finish_reason == "length"
    assert processed.stats[0].generated_tokens == 5


def test_a_stop_string_ends_the_engines_request_and_cuts_the_tokens() -> None:
    bench = Bench(stop=("END",), logprobs=0)
    assert delta(bench.feed("a E")).text == "a "
    entries = tuple(TokenLogprobs(token_id=i, logprob=-1.0, rank=1) for i in b"ND more")
    processed = bench.feed("ND more", logprobs=entries)
    found = delta(processed)
    assert (found.text, found.finish_reason, found.stop_reason) == ("", "stop", "END")
    assert found.token_ids == tuple(b"ND")
    assert found.logprobs is not None and len(found.logprobs) == 2
    assert processed.aborts == [bench.prepared.requests[0].request_id]
    assert bench.feed("late").outputs == []


def test_a_stop_string_in_the_last_token_wins_over_length_and_aborts_nothing() -> None:
    bench = Bench(stop=("!",))
    processed = bench.feed("hi!", finish_reason="length")
    assert delta(processed).finish_reason == "stop"
    assert processed.aborts == []


def test_the_stop_string_is_shown_when_asked_for() -> None:
    bench = Bench(stop=("!",), include_stop_str_in_output=True)
    assert delta(bench.feed("hi!x")).text == "hi!"


def test_text_held_back_comes_out_at_the_end() -> None:
    bench = Bench(stop=("END",))
    assert delta(bench.feed("an EN")).text == "an "
    assert delta(bench.feed((EOS,), finish_reason="stop")).text == "EN"


@pytest.mark.parametrize(("includes", "text"), [(False, "a"), (True, "ab")])
def test_the_stop_tokens_text_is_not_shown(includes: bool, text: str) -> None:
    bench = Bench(stop_token_ids=(ord("b"),), include_stop_str_in_output=includes)
    found = delta(bench.feed("ab", finish_reason="stop", stop_reason=ord("b")))
    assert (found.text, found.stop_reason) == (text, ord("b"))
    assert found.token_ids == tuple(b"ab")


def test_n_completions_finish_together() -> None:
    bench = Bench(n=2)
    first = bench.feed("a", child=1, finish_reason="length").outputs[0][1]
    assert (first.deltas[0].index, first.is_finished) == (1, False)
    second = bench.feed("b", child=0, finish_reason="stop").outputs[0][1]
    assert (second.deltas[0].index, second.is_finished) == (0, True)


def test_one_childs_fault_ends_the_whole_request() -> None:
    bench = Bench(n=2)
    processed = bench.feed(child=0, finish_reason="error", error="NaN")
    ((key, error),) = processed.errors
    assert key == 1 and isinstance(error, RequestFault) and error.what == "NaN."
    assert processed.aborts == [bench.prepared.requests[1].request_id]
    assert processed.stats[0].finish_reason == "error"
    assert len(bench.output) == 0


def test_a_refusal_keeps_status_and_code() -> None:
    update = {"finish_reason": "error", "error": "no", "error_code": "c", "error_status": 422}
    error = Bench().feed(**update).errors[0][1]
    assert isinstance(error, RequestError)
    assert (error.status, error.code) == (422, "c")


def test_a_broken_tokenizer_stream_ends_only_its_request() -> None:
    bench = Bench()
    other = InputProcessor(fake_spec(), Vocabularies(fake_spec(), TOKENIZER)).prepare(
        "p", SamplingParams(), "s", serial=9
    )
    bench.output.add(2, other)
    updates = [
        RequestUpdate(request_id=bench.prepared.requests[0].request_id, token_ids=(-7,)),
        RequestUpdate(request_id=other.requests[0].request_id, token_ids=(65,)),
    ]
    processed = bench.output.process(updates)
    assert [key for key, _ in processed.errors] == [1]
    assert [key for key, _ in processed.outputs] == [2]


def test_logprobs_are_finite_and_none_unless_asked_for() -> None:
    entry = TokenLogprobs(
        token_id=1, logprob=float("-inf"), rank=9, top_ids=(1, 2), top_logprobs=(float("nan"), -1.0)
    )
    assert delta(Bench().feed("a", logprobs=(entry,))).logprobs is None
    found = delta(Bench(logprobs=2).feed("a", logprobs=(entry,))).logprobs
    assert found is not None
    assert (found[0].logprob, found[0].top_logprobs) == (LOGPROB_FLOOR, (LOGPROB_FLOOR, -1.0))
    fine = TokenLogprobs(token_id=1, logprob=0.0, rank=1)
    assert shaped((fine,)) == (fine,)


def test_answers_of_one_prompt_do_not_count_its_first_reading_as_cached() -> None:
    bench = Bench(n=2)
    bench.feed("a", num_cached_tokens=2)
    output = bench.feed("a", child=1, num_cached_tokens=6).outputs[0][1]
    assert output.num_cached_tokens == 2
    ends = [bench.feed(child=child, finish_reason="stop", num_cached_tokens=6 if child else 2)
            for child in (0, 1)]  # fmt: skip
    assert ends[1].stats[0].cached_tokens == 2


def test_prompt_logprobs_and_times_are_passed_on() -> None:
    entry = TokenLogprobs(token_id=1, logprob=-1.0, rank=1)
    bench = Bench(prompt_logprobs=0)
    processed = bench.feed(
        "a", prompt_logprobs=(entry,), timings=Timings(2.0, 3.0), num_cached_tokens=4
    )
    output = processed.outputs[0][1]
    assert output.prompt_logprobs == (entry,)
    assert output.num_cached_tokens == 4
    assert output.metrics is not None
    assert (output.metrics.first_scheduled_s, output.metrics.first_token_s) == (2.0, 3.0)
    stats = bench.feed("bc", finish_reason="stop", timings=Timings(2.0, 3.5)).stats[0]
    assert stats.inter_token_s == (0.25, 0.25)  # they came together
    assert stats.decode_s == 0.5


def test_drop_tells_what_to_abort_and_the_numbers() -> None:
    bench = Bench(n=2)
    bench.feed("a", child=0, finish_reason="length")
    ids, stats = bench.output.drop(1)
    assert ids == (bench.prepared.requests[1].request_id,)
    assert stats is not None and stats.generated_tokens == 1
    assert bench.output.drop(1) == ((), None)
    assert bench.feed("late", child=1).outputs == []


def test_outputs_merge_by_completion() -> None:
    def output(index: int, text: str, reason: str | None = None) -> RequestOutput:
        one = CompletionDelta(index=index, text=text, token_ids=(1,), finish_reason=reason)
        return RequestOutput(
            request_id="r", prompt_token_ids=(1,), deltas=(one,), is_finished=reason is not None
        )

    merged = merge([output(0, "a"), output(1, "x"), output(0, "b", "stop")])
    assert merged.is_finished
    assert {d.index: (d.text, d.token_ids, d.finish_reason) for d in merged.deltas} == {
        0: ("ab", (1, 1), "stop"),
        1: ("x", (1,), None),
    }
