"""/v1/completions: prompts of every form, echo, logprobs, and streams equal to whole answers."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail_plugins.apis.completions.protocol import CompletionRequest
from dovetail_testing.fakes.async_engine import FakeAsyncEngine, Script, fake_spec
from support.serving import app_for, chat, complete, events_of, send


def joined(events: list[Any]) -> dict[int, dict[str, Any]]:
    choices: dict[int, dict[str, Any]] = {}
    for piece in (c for e in events if e != "[DONE]" for c in e["choices"]):
        known = choices.setdefault(
            piece["index"], {"text": "", "tokens": [], "offsets": [], "finish_reason": None}
        )
        known["text"] += piece["text"]
        known["finish_reason"] = piece["finish_reason"] or known["finish_reason"]
        if piece["logprobs"]:
            known["tokens"] += piece["logprobs"]["tokens"]
            known["offsets"] += piece["logprobs"]["text_offset"]
    return choices


@pytest.mark.parametrize(
    ("prompt", "num_choices"),
    [("ab", 1), (["ab", "cd"], 2), ([97, 98], 1), ([[97], [98, 99]], 2)],
)
@pytest.mark.parametrize("echo", [False, True])
def test_streamed_equals_whole(prompt: Any, num_choices: int, echo: bool) -> None:
    app, _ = app_for(lambda text, index: Script(pieces=[text, "!", str(index)]))
    fields = {"prompt": prompt, "n": 2, "echo": echo, "logprobs": 1}
    body = complete(app, **fields).json()
    assert [c["index"] for c in body["choices"]] == list(range(2 * num_choices))
    stream = joined(events_of(complete(app, stream=True, **fields)))
    for choice in body["choices"]:
        got = stream[choice["index"]]
        assert got["text"] == choice["text"]
        assert got["finish_reason"] == choice["finish_reason"] == "stop"
        assert got["tokens"] == choice["logprobs"]["tokens"]
        assert got["offsets"] == choice["logprobs"]["text_offset"]
        for offset, token in zip(got["offsets"], got["tokens"], strict=True):
            assert got["text"][offset : offset + len(token)] == token
    texts = ["ab", "cd"] if prompt == ["ab", "cd"] else None
    if texts and echo:
        assert body["choices"][2]["text"] == "cdcd!0"


def test_echo_alone_scores_a_prompt() -> None:
    app, _ = app_for()
    body = complete(app, prompt="abc", echo=True, max_tokens=0, logprobs=2).json()
    choice = body["choices"][0]
    assert choice["text"] == "abc"
    assert choice["logprobs"]["tokens"] == ["a", "b", "c"]
    assert choice["logprobs"]["token_logprobs"] == [None, -0.5, -0.5]
    assert choice["finish_reason"] == "length"


def test_usage_counts_every_prompt_once() -> None:
    app, _ = app_for(Script(pieces=["xy"]))
    usage = complete(app, prompt=["abc", "de"], n=2).json()["usage"]
    assert usage == {
        "prompt_cache_hit_tokens": 2,
        "prompt_cache_miss_tokens": 3,
        "prompt_tokens": 5,
        "completion_tokens": 8,
        "total_tokens": 13,
        "prompt_tokens_details": {"cached_tokens": 2},
        "completion_tokens_details": None,
    }
    events = events_of(
        complete(app, prompt=["abc", "de"], n=2, stream=True,
                 stream_options={"include_usage": True})
    )  # fmt: skip
    assert events[-2]["usage"] == usage
    assert events[-2]["choices"] == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"suffix": "x"}, "suffix"),
        ({"prompt": ["a"] * 1000, "n": 100}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"prompt": [0x110000]}, "prompt"),
        ({"prompt": [0x110000], "echo": True}, "prompt"),
        ({"best_of": 3, "stream": True}, "best_of"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"use_beam_search": True, "stop": "x"}, "stop"),
        ({"use_beam_search": True, "n": 11}, "best_of"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"prompt_embeds": "AAAA"}, "prompt_embeds"),
        ({"logprobs": 21}, "logprobs"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
    ],
)
def test_what_cannot_be_done_is_refused(fields: dict[str, Any], param: str) -> None:
    app, _ = app_for()
    response = complete(app, **fields)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


@pytest.mark.parametrize("prompt", ["", [], [[]], [""], [1, "a"], None, {"a": 1}, [-1], [[1], "a"]])
def test_prompts_that_are_none(prompt: Any) -> None:
    app, _ = app_for()
    assert complete(app, prompt=prompt).status_code == 400


def test_default_length_is_openais() -> None:
    app, engine = app_for()
    complete(app)
    assert engine.asked[0][1].max_tokens == 16
    complete(app, max_tokens=None)
    assert engine.asked[1][1].max_tokens == 4096 - 2


@pytest.mark.parametrize(
    ("side", "kept"), [("left", (101, 102)), ("right", (97, 98)), (None, (101, 102))]
)
def test_the_side_that_is_cut_off(side: str | None, kept: tuple[int, ...]) -> None:
    app, engine = app_for()
    fields = {"truncate_prompt_tokens": 2, "truncation_side": side}
    assert complete(app, prompt="abcdef", **fields).status_code == 200
    assert engine.asked[0][2]["prompt"] == kept
    long = "".join(chr(97 + n % 26) for n in range(100_000))
    assert complete(app, prompt=long, **fields).status_code == 200
    wanted = long[:2] if side == "right" else long[-2:]
    assert engine.asked[1][2]["prompt"] == tuple(map(ord, wanted))
    error = complete(app, truncation_side="middle").json()["error"]
    assert error["param"] == "truncation_side"


def test_logprobs_of_tokens_that_are_named() -> None:
    app, engine = app_for()
    ids = [70, 72]
    assert complete(app, logprobs=1, logprob_token_ids=ids).status_code == 200
    assert engine.asked[0][1].logprob_token_ids == (70, 72)
    answer = chat(app, logprob_token_ids=ids)
    assert answer.json()["error"]["param"] == "logprob_token_ids"
    for fields in ({}, {"top_logprobs": 0}, {"top_logprobs": 1}, {"top_logprobs": 5}):
        answer = chat(app, logprob_token_ids=ids, logprobs=True, **fields)
        assert answer.status_code == 200
        assert engine.asked[-1][1].logprob_token_ids == (70, 72)
    assert complete(app, logprob_token_ids=ids).status_code == 400


def test_truncation_and_stop() -> None:
    app, engine = app_for(Script(pieces=["a"], stop_reason="END"))
    body = complete(app, prompt="abcdef", truncate_prompt_tokens=2, stop=["END"]).json()
    assert engine.asked[0][2]["prompt"] == (101, 102)
    assert body["choices"][0]["stop_reason"] == "END"


def test_tokenize_and_back() -> None:
    app, _ = app_for(engine=FakeAsyncEngine(spec=fake_spec(max_model_tokens=77)))
    body = send(app, "POST", "/tokenize", {"prompt": "hé"}).json()
    assert body == {"count": 2, "max_model_len": 77, "tokens": [104, 233], "token_strs": None}
    text = send(app, "POST", "/detokenize", {"tokens": body["tokens"]}).json()
    assert text == {"prompt": "hé", "content": "hé"}  # vLLM's field and llama.cpp's
    chatted = send(app, "POST", "/tokenize", {"messages": [{"role": "user", "content": "x"}]})
    assert chatted.json()["count"] > 10
    assert send(app, "POST", "/tokenize", {}).status_code == 400
    assert send(app, "POST", "/detokenize", {"tokens": [1 << 30]}).status_code == 400


def test_processors_as_older_clients_name_them() -> None:
    given: list[Any] = ["one", {"qualname": "two", "args": None, "kwargs": {"a": 1}}]
    body = CompletionRequest.model_validate({"prompt": "x", "logits_processors": given})
    assert body.logits_processors == {"one": {}, "two": {"a": 1}}
    app, _ = app_for()
    for wrong in ([5], [{"args": [1], "qualname": "x"}], [{}]):
        error = complete(app, logits_processors=wrong).json()["error"]
        assert error["param"] == "logits_processors"
        assert error["message"].startswith("logits_processors: each must be a name")


def test_the_drawn_token_is_among_those_that_are_named() -> None:
    app, _ = app_for(Script(pieces=["ab"]))
    for ids in ([70, 72], [97, 70], [70]):
        fields = {"logprobs": True, "top_logprobs": len(ids), "logprob_token_ids": ids}
        for token, entry in zip("ab", chat_entries(app, fields), strict=True):
            tops = [top["token"] for top in entry["top_logprobs"]]
            assert tops.count(token) == 1, (ids, tops)
            place = tops.index(token)
            assert entry["top_logprobs"][place]["logprob"] == entry["logprob"]
            assert entry["top_logprobs"][place]["bytes"] == [ord(token)]


def chat_entries(app: Any, fields: dict[str, Any]) -> Any:
    answer = chat(app, **fields)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["logprobs"]["content"]
