"""/completion of llama.cpp's server: shapes, streams, settings, limits and refusals."""

from __future__ import annotations

import math
import random
from typing import Any

import httpx
import msgspec
import pytest
from fastapi import FastAPI

from dovetail.errors import RequestFault
from dovetail.interfaces.data.adapter_spec import AdapterSource
from dovetail_plugins.apis.llamacpp.limits import IndentedText
from dovetail_plugins.apis.llamacpp.protocol import biases_by_key
from dovetail_testing.fakes.adapters import fake_room
from dovetail_testing.fakes.async_engine import FakeAsyncEngine, Script, fake_spec
from support.serving import app_for, events_of, send, with_samplers

ANSWER = "def add(a, b):\n    return a + b\n"
EVERYTHING: dict[str, Any] = {
    "n_predict": 7,
    "temperature": 0.5,
    "top_k": 3,
    "top_p": 0.5,
    "min_p": 0.1,
    "seed": 9,
    "stop": ["x", ""],
    "repeat_penalty": 1.5,
    "presence_penalty": 0.25,
    "frequency_penalty": 0.75,
    "ignore_eos": True,
    "top_n_sigma": -1.0,
    "dynatemp_range": 0.0,
    "dynatemp_exponent": 1.0,
    "typical_p": 1.0,
    "repeat_last_n": 64,
    "dry_multiplier": 0.0,
    "dry_base": 1.75,
    "dry_allowed_length": 2,
    "dry_penalty_last_n": -1,
    "dry_sequence_breakers": ["\n", ":"],
    "xtc_probability": 0.0,
    "xtc_threshold": 0.1,
    "mirostat": 0,
    "mirostat_tau": 5.0,
    "mirostat_eta": 0.1,
    "grammar": "",
    "n_keep": 4,
    "n_discard": 0,
    "id_slot": -1,
    "cache_prompt": True,
    "min_keep": 0,
    "samplers": ["dry", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"],
}


def ask(app: FastAPI, path: str = "/completion", **fields: Any) -> httpx.Response:
    return send(app, "POST", path, {"prompt": "hi"} | fields)


def told(app: FastAPI, **fields: Any) -> Any:
    answer = ask(app, **fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


def refused(app: FastAPI, **fields: Any) -> dict[str, Any]:
    answer = ask(app, **fields)
    error = answer.json()["error"]
    assert set(error) == {"code", "message", "type"}
    assert error["code"] == answer.status_code >= 400
    return dict(error)


def params_of(engine: FakeAsyncEngine) -> Any:
    return engine.asked[-1][1]


def prompt_of(engine: FakeAsyncEngine) -> str:
    return engine.tokenizer.decode(engine.asked[-1][2]["prompt"])


def cut(text: str, seed: int) -> list[str]:
    chance = random.Random(seed)
    places = sorted(chance.sample(range(1, len(text)), chance.randint(0, min(20, len(text) - 1))))
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


@pytest.mark.parametrize("path", ["/completion", "/completions"])
@pytest.mark.parametrize("seed", range(4))
def test_streamed_equals_whole(seed: int, path: str) -> None:
    app, _ = app_for(Script(pieces=cut(ANSWER, seed)))
    wanted = {"n_probs": 2, "return_tokens": True, "n_predict": 100}
    whole = ask(app, path, **wanted).json()
    streamed = ask(app, path, **wanted, stream=True)
    assert streamed.headers["content-type"].startswith("text/event-stream")
    assert "[DONE]" not in streamed.text
    *pieces, last = events_of(streamed)
    assert "".join(one["content"] for one in pieces) == whole["content"] == ANSWER
    tokens = [token for one in pieces for token in one["tokens"]]
    assert tokens == whole["tokens"] == [*map(ord, ANSWER)]
    shown = [entry for one in pieces for entry in one["completion_probabilities"]]
    assert shown == whole["completion_probabilities"]
    assert [one["stop"] for one in pieces] == [False] * len(pieces) and last["stop"] is True
    assert last["content"] == "" and last["tokens"] == []
    of_a_stream = whole["generation_settings"] | {"stream": True}
    differing = {"content": "", "tokens": [], "generation_settings": of_a_stream}
    del whole["completion_probabilities"]
    assert last == whole | differing


def test_what_a_whole_answer_has() -> None:
    app, _ = app_for(Script(pieces=["Hel", "lo\n"]))
    answer = told(app)
    answer.pop("generation_settings")
    timings = answer.pop("timings")
    assert answer == {
        "index": 0, "content": "Hello\n", "tokens": [], "id_slot": 0, "stop": True, "model": "fake",
        "tokens_predicted": 6, "tokens_evaluated": 2, "prompt": "hi", "has_new_line": True,
        "truncated": False, "stop_type": "eos", "stopping_word": "", "tokens_cached": 1,
    }  # fmt: skip
    assert timings == {
        "cache_n": 1, "prompt_n": 1, "prompt_ms": 500, "prompt_per_token_ms": 500,
        "prompt_per_second": 2, "predicted_n": 6, "predicted_ms": 1000,
        "predicted_per_token_ms": 200, "predicted_per_second": 5,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("script", "kind", "word"),
    [
        (Script(finish_reason="stop"), "eos", ""),
        (Script(finish_reason="stop", stop_reason=7), "eos", ""),
        (Script(finish_reason="stop", stop_reason="STOP"), "word", "STOP"),
        (Script(finish_reason="length"), "limit", ""),
    ],
)
def test_why_an_answer_ended(script: Script, kind: str, word: str) -> None:
    app, _ = app_for(script)
    answer = told(app)
    assert (answer["stop_type"], answer["stopping_word"]) == (kind, word)


def test_an_answer_at_the_end_of_the_context_is_truncated() -> None:
    engine = FakeAsyncEngine(
        Script(pieces=["a" * 14], finish_reason="length"), spec=fake_spec(max_model_tokens=16)
    )
    app, _ = app_for(engine=engine)
    assert told(app)["truncated"] is True
    assert told(app, prompt="h")["truncated"] is False
    error = refused(app, prompt="x" * 17)
    assert error["type"] == "exceed_context_size_error" and "16" in error["message"]


def settings_of(engine: FakeAsyncEngine) -> dict[str, Any]:
    """Return what was asked of the engine, wherever the params have it."""
    params = params_of(engine)
    extra = params.extra_args
    own = extra.get("sampler_steps", {}).get("own", {}) | extra.get("windowed_penalties", {})
    return {name: own.get(name, getattr(params, name)) for name in params.__struct_fields__}


def test_settings_reach_the_engine_and_come_back() -> None:
    app, engine = app_for(engine=with_samplers())
    answer = ask(app, **EVERYTHING)
    assert answer.status_code == 200, answer.text
    asked = settings_of(engine)
    wanted = {
        "max_tokens": 7, "temperature": 0.5, "top_k": 3, "seed": 9, "top_p": 0.5, "min_p": 0.1,
        "stop": ("x",), "repetition_penalty": 1.5, "ignore_eos": True,
    }  # fmt: skip
    assert {name: asked[name] for name in wanted} == wanted
    settings = answer.json()["generation_settings"]
    changed = {"stop": ["x"], "n_keep": 0}
    for name, value in {**EVERYTHING, **changed}.items():
        if name in settings:
            assert settings[name] == value, name
    assert answer.headers["x-dovetail-ignored-fields"] == "n_keep, n_discard"


@pytest.mark.parametrize("seed", [-1, 4294967295])
def test_numbers_at_the_edges(seed: int) -> None:
    app, engine = app_for()
    answer = told(app, temperature=-1.0, top_p=0, top_k=0, seed=seed, n_predict=-1, stop=[])
    params = params_of(engine)
    assert (params.temperature, params.seed, params.stop) == (0, None, ())
    assert 0 < params.top_p < 1e-3 and params.max_tokens == 4094
    assert answer["generation_settings"]["seed"] == 4294967295
    assert answer["generation_settings"]["n_predict"] == -1


def test_no_tokens_are_generated_when_none_are_wanted() -> None:
    app, engine = app_for(Script(pieces=["a"], finish_reason="length"))
    answer = told(app, n_predict=0, return_tokens=True)
    assert params_of(engine).max_tokens == 1
    assert (answer["content"], answer["tokens"], answer["tokens_predicted"]) == ("", [], 0)
    assert (answer["stop_type"], answer["tokens_evaluated"]) == ("limit", 2)
    (only,) = events_of(ask(app, n_predict=0, stream=True))
    assert only["stop"] is True


@pytest.mark.parametrize(
    ("prompt", "read"),
    [
        ("ab", ["ab"]),
        ([97, 98], ["ab"]),
        ([97, "bc", 100], ["abcd"]),
        (["bc", 100], ["bcd"]),
        ({"prompt_string": "ab"}, ["ab"]),
        (["ab", "cd"], ["ab", "cd"]),
        (["ab"], ["ab"]),
        ([[97, 98], "cd", {"prompt_string": "ef"}], ["ab", "cd", "ef"]),
        ([[12, "x", 56], [12]], ["\x0cx8", "\x0c"]),
    ],
)
def test_shapes_of_prompts(prompt: Any, read: list[str]) -> None:
    app, _ = app_for(lambda text, _: Script(pieces=[text, "!"]))
    answer = told(app, prompt=prompt)
    found = answer if isinstance(answer, list) else [answer]
    assert isinstance(answer, list) == (len(read) > 1)
    assert [one["prompt"] for one in found] == read
    assert [one["content"] for one in found] == [f"{text}!" for text in read]
    assert [one["index"] for one in found] == list(range(len(read)))
    streamed = events_of(ask(app, prompt=prompt, stream=True))
    for index, text in enumerate(read):
        mine = [one for one in streamed if one["index"] == index]
        assert "".join(one["content"] for one in mine) == f"{text}!"
        assert [one["stop"] for one in mine] == [False] * (len(mine) - 1) + [True]


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        (None, "prompt: is missing"),
        ([], "prompt: must not be empty"),
        ("", "the prompt has no tokens"),
        ([1.5], "prompt[0]: should be text"),
        ([True], "prompt[0]: should be text"),
        (["a", []], "prompt[1]: should be text"),
        ({"text": "a"}, "prompt: should be text"),
        ([-1], "valid token ids"),
        (["a", [1 << 40]], "prompt[1]: valid token ids"),
        ({"prompt_string": "<__media__>"}, "1 markers <__media__> for 0 media"),
        ({"prompt_string": "a", "multimodal_data": ["QQ=="]}, "0 markers <__media__> for 1"),
        ({"prompt_string": "<__media__>", "multimodal_data": ["QQ=="]}, "not supported with this"),
        ({"prompt_string": "a", "multimodal_data": "QQ=="}, "should be text"),
    ],
)
def test_prompts_that_cannot_be_read(prompt: Any, words: str) -> None:
    app, engine = app_for()
    error = refused(app, prompt=prompt)
    assert words in error["message"] and error["type"] == "invalid_request_error"
    assert not engine.asked


def test_several_answers_to_each_prompt() -> None:
    app, _ = app_for(lambda text, index: Script(pieces=[text, str(index)]))
    answers = told(app, prompt=["a", "b"], n_cmpl=2)
    assert [one["content"] for one in answers] == ["a0", "a1", "b0", "b1"]
    assert [one["index"] for one in answers] == [0, 1, 2, 3]
    assert [one["tokens_predicted"] for one in answers] == [2] * 4
    error = refused(app, n_cmpl=2, n_indent=1)
    assert "n_indent" in error["message"]


@pytest.mark.parametrize(
    ("sent", "wanted"),
    [
        ([[97, 1.5]], {97: 1.5}),
        ([[97, False]], {97: -100}),
        ([["ab", -0.5]], {97: -0.5, 98: -0.5}),
        ([["7", 1]], {55: 1}),
        ({"97": 2}, {97: 2}),
        ({"ab": 2}, {97: 2, 98: 2}),
        ({"97": False}, {97: -100}),
        ([], {}),
        ({}, {}),
    ],
)
def test_biases_have_three_shapes(sent: Any, wanted: dict[int, float]) -> None:
    app, engine = app_for()
    answer = told(app, logit_bias=sent)
    assert params_of(engine).logit_bias == wanted
    shown = answer["generation_settings"]["logit_bias"]
    assert shown == [{"token": key, "bias": bias} for key, bias in wanted.items()]


@pytest.mark.parametrize("sent", [[97], [[97]], [[1.5, 1]], "a", {"97": "x"}, [[97, "x"]]])
def test_biases_of_other_shapes_are_refused(sent: Any) -> None:
    app, _ = app_for()
    assert "logit_bias" in refused(app, logit_bias=sent)["message"]


def test_a_text_of_digits_is_a_text_only_in_a_list() -> None:
    assert biases_by_key([["12", 1]]) == {"=12": 1}
    assert biases_by_key({"12": 1, "a": 2}) == {"12": 1, "=a": 2}


@pytest.mark.parametrize(
    ("samplers", "wanted"),
    [
        (
            ["top_k"],
            {"temperature": 1, "top_k": 3, "top_p": 1, "repetition_penalty": 1},
        ),
        (["penalties", "temp"], {"temperature": 0.5, "top_k": 0, "repetition_penalty": 1.5}),
        (["temperature", "top_k"], {"temperature": 0.5, "top_k": 3, "repetition_penalty": 1}),
        ("kt", {"temperature": 0.5, "top_k": 3, "top_p": 1, "min_p": 0}),
        ("edskypmxt", {"temperature": 0.5, "top_k": 3, "top_p": 0.5, "min_p": 0.1}),
        ([], {"temperature": 0.5, "top_k": 3, "top_p": 0.5, "min_p": 0.1}),
    ],
)
def test_samplers_that_are_not_named_are_off(samplers: Any, wanted: dict[str, float]) -> None:
    app, engine = app_for(engine=with_samplers())
    told(app, **EVERYTHING | {"samplers": samplers, "top_n_sigma": 0})
    asked = settings_of(engine)
    assert {name: asked[name] for name in wanted} == wanted


def test_settings_of_samplers_that_are_off_ask_for_nothing() -> None:
    app, engine = app_for(engine=with_samplers())
    asked = {"dry_multiplier": 0.8, "xtc_probability": 0.5, "typical_p": 0.9}
    told(app, samplers=["top_k", "temperature"], **asked)
    assert params_of(engine).extra_args == {}
    settings = told(app, **asked)["generation_settings"]
    assert asked.items() <= settings.items()
    assert asked.items() <= params_of(engine).extra_args.items()


@pytest.mark.parametrize("samplers", [["mirror"], ["top_k", "top_k"], ["infill"], "q"])
def test_chains_that_cannot_be_had(samplers: Any) -> None:
    app, _ = app_for(engine=with_samplers())
    assert refused(app, samplers=samplers)["message"].startswith("samplers: ")


@pytest.mark.parametrize("name", ["mirostat", "dynatemp_range", "adaptive_target", "min_keep"])
def test_what_no_processor_claims_is_refused_by_name(name: str) -> None:
    app, engine = app_for()
    error = refused(app, **{name: 2})
    assert error["message"].startswith(f"{name}: ") and error["code"] == 400
    assert not engine.asked


def test_unknown_fields_are_named_in_the_header() -> None:
    app, _ = app_for()
    answer = ask(app, color="red", t_max_prompt_ms=500)
    assert answer.headers["x-dovetail-ignored-fields"] == "color, t_max_prompt_ms"


def test_probabilities() -> None:
    app, engine = app_for(Script(pieces=["b-"]))
    first, second = told(app, n_probs=2)["completion_probabilities"]
    assert params_of(engine).logprobs == 2
    assert first == {
        "id": 98, "token": "b", "bytes": [98], "logprob": -0.5,
        "top_logprobs": [
            {"id": 97, "token": "a", "bytes": [97], "logprob": -0.5},
            {"id": 98, "token": "b", "bytes": [98], "logprob": -1.5},
        ],
    }  # fmt: skip
    assert second["logprob"] == -9999
    assert "completion_probabilities" not in told(app)
    error = refused(app, n_probs=1, post_sampling_probs=True)
    assert "post_sampling_probs" in error["message"] and "--logprobs-mode" in error["message"]
    assert "n_probs" in refused(app, n_probs=1000)["message"]


def test_probabilities_after_sampling() -> None:
    spec = fake_spec()
    run = msgspec.structs.replace(spec.run, logprobs_stage="processed")
    engine = FakeAsyncEngine(Script(pieces=["b-"]), spec=msgspec.structs.replace(spec, run=run))
    app, _ = app_for(engine=engine)
    first, second = told(app, n_probs=1, post_sampling_probs=True)["completion_probabilities"]
    assert first["prob"] == pytest.approx(math.exp(-0.5)) and "logprob" not in first
    assert [one["id"] for one in first["top_probs"]] == [97]
    assert second["prob"] == 0


def test_only_the_fields_that_are_wanted() -> None:
    app, _ = app_for()
    fields = ["content", "generation_settings/n_predict", "nothing", "timings/nothing", "content/x"]
    answer = told(app, n_predict=5, response_fields=fields)
    assert answer == {"content": "Hello, world", "generation_settings/n_predict": 5}
    *_, last = events_of(ask(app, n_predict=5, response_fields=fields, stream=True))
    assert last == {"content": "", "generation_settings/n_predict": 5}


def test_timings_and_progress_of_a_stream() -> None:
    app, _ = app_for(Script(pieces=["a", "b"]))
    first, *pieces, _ = events_of(
        ask(app, stream=True, timings_per_token=True, return_progress=True)
    )
    assert first["prompt_progress"] == {"total": 2, "cache": 1, "processed": 2, "time_ms": 500}
    assert first["content"] == "" and "prompt_progress" not in pieces[0]
    assert [one["timings"]["predicted_n"] for one in pieces] == [1, 2]
    plain = events_of(ask(app, stream=True))
    assert not any("timings" in one or "prompt_progress" in one for one in plain[:-1])


def test_the_cache_is_not_used_where_it_is_not_wanted() -> None:
    app, engine = app_for()
    for _ in range(2):
        told(app, cache_prompt=False)
    told(app)
    salts = [asked[2]["cache_salt"] for asked in engine.asked]
    assert len({*salts}) == 3 and salts[2] == ""


@pytest.mark.parametrize("seed", range(4))
def test_lines_with_too_little_indentation_end_an_answer(seed: int) -> None:
    text = "return a\n    b = 1\n\t   c\n  d = 2\n    e"
    app, engine = app_for(Script(pieces=cut(text, seed), hangs=True))
    answer = told(app, n_indent=4)
    assert answer["content"] == "return a\n    b = 1\n\t   c\n" and answer["stop_type"] == "limit"
    assert not engine.running and engine.aborted
    pieces = events_of(ask(app, n_indent=4, stream=True))
    assert "".join(one["content"] for one in pieces) == answer["content"]
    app, _ = app_for(Script(pieces=cut("a\n    b\n    ", seed)))
    whole = told(app, n_indent=4)
    assert (whole["content"], whole["stop_type"]) == ("a\n    b\n    ", "eos")


def test_blanks_are_held_until_their_line_is_known() -> None:
    text = IndentedText(min_indent=2)
    assert [text.feed(one) for one in ("  a\n", " ", " ", "b", "\n ")] == [
        "  a\n", "", "", "  b", "\n",
    ]  # fmt: skip
    assert (text.feed("c"), text.is_over, text.rest()) == ("", True, "")


def test_an_answer_that_takes_too_long_ends_after_a_line() -> None:
    app, engine = app_for(Script(pieces=["a", "b\n", "c", "d"], step_s=0.03))
    answer = told(app, t_max_predict_ms=1)
    assert (answer["content"], answer["stop_type"]) == ("ab\n", "limit")
    assert engine.aborted and not engine.running
    app, _ = app_for(Script(pieces=["a", "b", "c"], step_s=0.01))
    assert told(app, t_max_predict_ms=1)["content"] == "abc"
    app, _ = app_for(Script(pieces=["a\n", "b", "c"]))
    assert told(app, t_max_predict_ms=60_000)["content"] == "a\nbc"


def test_adapters_by_their_numbers() -> None:
    names = [AdapterSource(name=name, path=f"/adapters/{name}") for name in ("sql", "poems")]
    engine = FakeAsyncEngine(spec=fake_spec(room=fake_room(), adapters=tuple(names)))
    app, _ = app_for(engine=engine)
    listed = send(app, "GET", "/lora-adapters").json()
    assert [(one["id"], one["path"], one["scale"]) for one in listed] == [
        (0, "/adapters/sql", 0.0), (1, "/adapters/poems", 0.0),
    ]  # fmt: skip
    answer = told(app, lora=[{"id": 1, "scale": 1.0}, {"id": 0, "scale": 0}])
    assert answer["model"] == "poems" and engine.asked[-1][2]["adapter"] == "poems"
    assert answer["generation_settings"]["lora"][0] == {"id": 1, "scale": 1.0}
    told(app, lora=[])
    assert "adapter" not in engine.asked[-1][2]
    for scales in (
        [{"id": 0, "scale": 0.5}],
        [{"id": 0, "scale": 1}, {"id": 1, "scale": 1}],
        [{"id": 7, "scale": 1}],
        [{"id": 0}],
    ):
        assert "lora" in refused(app, lora=scales)["message"]
    nothing = send(app, "POST", "/lora-adapters", [{"id": 0, "scale": 0.0}])
    assert nothing.json() == {"success": True}
    answer = send(app, "POST", "/lora-adapters", [{"id": 0, "scale": 1.0}])
    assert (answer.status_code, answer.json()["error"]["type"]) == (501, "not_supported_error")


@pytest.mark.parametrize("stream", [False, True])
def test_errors_have_their_shape(stream: bool) -> None:
    app, _ = app_for(Script(pieces=["a"], raises=RequestFault("not finite")))
    answer = ask(app, stream=stream)
    error = events_of(answer)[-1]["error"] if stream else answer.json()["error"]
    assert (error["code"], error["type"]) == (500, "server_error")
    assert "not finite" in error["message"]
    assert refused(app, model="other")["type"] == "not_found_error"
    assert refused(app, n_predict="x")["message"].startswith("n_predict: ")
    with_key, _ = app_for(api_key=("secret",))
    assert refused(with_key)["type"] == "authentication_error"
    full, engine = app_for(max_queued=0)
    full.state.server.admission.num_inside = 8
    engine.counts = (8, 0)
    assert refused(full)["type"] == "unavailable_error"


def test_a_schema_or_a_grammar_needs_a_backend() -> None:
    app, _ = app_for()
    for name, value in {"grammar": 'root ::= "a"', "json_schema": {}}.items():
        assert name in refused(app, **{name: value})["message"]


@pytest.mark.parametrize("sent", [[[-5, 1]], [[1 << 40, 1]], {"99999999999": 1}, [["", 1]]])
def test_biases_of_tokens_that_do_not_exist(sent: Any) -> None:
    app, engine = app_for()
    answer = ask(app, logit_bias=sent)
    if answer.status_code == 200:  # an empty text has no tokens
        assert sent == [["", 1]] and params_of(engine).logit_bias == {}
    else:
        assert "logit_bias" in answer.json()["error"]["message"]
