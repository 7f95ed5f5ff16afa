"""SyncEngine and what gathers its outputs."""

from __future__ import annotations

from dovetail.engine.client.offline.sync_engine import SyncEngine
from dovetail.engine.client.results.collector import RequestCollector
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.llm.llm import LLM
from dovetail_testing.fakes.engine import EOS, fake_spec
from support.inside import core_of


def test_submit_step_gather() -> None:
    engine = SyncEngine(fake_spec(options={"script": "grüße"}))
    prepared = engine.prepare("hi", SamplingParams(max_tokens=20, logprobs=1))
    collector = RequestCollector(prepared, "hi")
    key = engine.submit(prepared)
    while engine.has_work:
        for owner, output in engine.step().outputs:
            assert owner == key
            collector.add(output)
    result = collector.result()
    completion = result.outputs[0]
    assert (completion.text, completion.finish_reason) == ("grüße", "stop")
    assert completion.token_ids == (*"grüße".encode(), EOS)
    assert completion.cumulative_logprob == -0.5 * len(completion.token_ids)
    assert result.error is None and result.metrics is not None


def test_generate_takes_texts_ids_and_params_of_each() -> None:
    with LLM.from_spec(fake_spec()) as llm:
        params = [SamplingParams(max_tokens=i + 1, seed=i, n=2) for i in range(3)]
        results = llm.generate(["a", list(b"b"), "c"], params, use_tqdm=False)
        assert [len(r.outputs[1].token_ids) for r in results] == [1, 2, 3]
        assert [r.prompt for r in results] == ["a", None, "c"]
        again = llm.generate("c", params[2], use_tqdm=False)
        assert again[0].outputs == results[2].outputs
        assert llm.generate(list(b"c"), params[2], use_tqdm=False)[0].outputs == again[0].outputs


def test_one_fault_ends_one_result() -> None:
    with LLM.from_spec(fake_spec()) as llm:
        bad, good = llm.generate(["a FAULT", "fine"], SamplingParams(max_tokens=5), use_tqdm=False)
        assert bad.error is not None and "NaN" in bad.error
        assert bad.outputs[0].finish_reason == "error"
        assert good.error is None and good.outputs[0].finish_reason == "length"


def test_stop_strings_end_the_engine_request_too() -> None:
    with LLM.from_spec(fake_spec(options={"script": "abcdefgh"})) as llm:
        (result,) = llm.generate("x", SamplingParams(stop=("cd",)), use_tqdm=False)
        assert (result.outputs[0].text, result.outputs[0].stop_reason) == ("ab", "cd")
        assert not core_of(llm).has_work
        core_of(llm).check_idle()


def test_default_params_are_overlaid() -> None:
    with LLM.from_spec(fake_spec(default_sampling={"temperature": 0.5, "top_k": 3})) as llm:
        params = llm.default_params(top_k=9)
        assert (params.temperature, params.top_k) == (0.5, 9)
