"""Fields that no body declares: what would change the answer is refused, what asks for nothing
passes, and only what nobody knows is answered with a header."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.server.generate.body.undeclared_fields import (
    MISPLACED_FIELDS,
    UNSUPPORTED_FIELDS,
    WITHOUT_EFFECT,
    fault_of,
)
from support.serving import USER, app_for, chat, complete, send

ASKS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": USER},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": USER, "max_tokens": 5},
}


@pytest.mark.parametrize("path", ASKS)
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("typical_p", 0.5), ("mirostat", 2), ("dry_multiplier", 0.8), ("xtc_probability", 0.5),
        ("no_repeat_ngram_size", 3), ("repeat_penalty", 1.1), ("max_new_tokens", 5),
        ("num_predict", 5), ("do_sample", False), ("random_seed", 7), ("samplers", ["top_k"]),
        ("options", {"num_ctx": 5}), ("lora_request", {"name": "x"}), ("images", ["x"]),
        ("think", False), ("stop_words", ["x"]), ("web_search_options", {}),
        ("vllm_xargs", {"x": 1}), ("max_completion_tokenz", None), ("num_beams", True),
    ],
)  # fmt: skip
def test_what_would_change_the_answer_is_refused(path: str, field: str, value: Any) -> None:
    app, engine = app_for()
    answer = send(app, "POST", path, ASKS[path] | {field: value})
    if field == "max_completion_tokenz":  # nobody's: the header tells it
        assert answer.headers["x-dovetail-ignored-fields"] == field
        return
    assert answer.status_code == 400, answer.text
    assert field in answer.text
    assert not engine.asked


@pytest.mark.parametrize(
    "fields",
    [
        {"typical_p": 1}, {"typical_p": 1.0, "tfs_z": 1, "top_a": 0, "mirostat": 0},
        {"dry_multiplier": 0, "dry_base": 1.75, "xtc_probability": 0, "xtc_threshold": 0.1},
        {"repeat_penalty": 1.0, "repeat_last_n": 64}, {"do_sample": True}, {"num_beams": 1},
        {"modalities": ["text"]}, {"verbosity": "medium"}, {"n_predict": -1}, {"images": []},
        {"use_beam_search": False}, {"best_of": 1}, {"stop_words": []}, {"options": {}},
    ],
)  # fmt: skip
def test_values_that_ask_for_nothing_pass(fields: dict[str, Any]) -> None:
    app, _ = app_for()
    assert chat(app, **fields).status_code == 200
    assert complete(app, **fields).status_code == 200


def test_a_switch_is_not_the_number_one() -> None:
    assert fault_of("num_beams", True) is not None
    assert fault_of("num_beams", 1) is None
    assert fault_of("do_sample", 1) is not None


def test_a_field_stands_in_one_table() -> None:
    tables = (set(WITHOUT_EFFECT), set(UNSUPPORTED_FIELDS), set(MISPLACED_FIELDS))
    assert sum(map(len, tables)) == len(set().union(*tables))


def test_where_no_answer_is_made_nothing_can_change_it() -> None:
    app, _ = app_for()
    asked = {"prompt": "hi", "max_tokens": 5, "typical_p": 0.5}
    assert send(app, "POST", "/tokenize", asked).status_code == 200
    asked = {"messages": USER, "max_tokens": 5, "stop_sequences": ["x"]}
    assert send(app, "POST", "/v1/messages/count_tokens", asked).status_code == 200


def test_documents_that_no_template_reads_are_refused() -> None:
    app, _ = app_for()
    answer = chat(app, documents=[{"title": "a", "text": "b"}])
    assert answer.json()["error"]["param"] == "documents"
    assert chat(app, documents=[]).status_code == 200


@pytest.mark.parametrize("path", ASKS)
def test_hints_never_refuse(path: str) -> None:
    app, _ = app_for()
    hints = {"verbosity": "low", "prediction": {"type": "content", "content": "x"}}
    answer = send(app, "POST", path, ASKS[path] | hints)
    assert answer.status_code == 200, answer.text
    assert set(hints) <= set(answer.headers["x-dovetail-ignored-fields"].split(", "))


def test_a_responses_verbosity_is_named() -> None:
    app, _ = app_for()
    answer = send(app, "POST", "/v1/responses", {"input": "x", "text": {"verbosity": "low"}})
    assert answer.headers["x-dovetail-ignored-fields"] == "text.verbosity"


def test_what_an_answer_has_not_is_null() -> None:
    app, _ = app_for()
    reply = chat(app).json()
    message = reply["choices"][0]["message"]
    for name in ("refusal", "tool_calls", "reasoning", "reasoning_content"):
        assert message[name] is None
    assert reply["choices"][0]["logprobs"] is None and reply["choices"][0]["token_ids"] is None
    assert reply["usage"]["prompt_tokens_details"] is None
    assert reply["prompt_logprobs"] is None and reply["prompt_token_ids"] is None
    reply = chat(app, logprobs=True).json()
    assert reply["choices"][0]["logprobs"]["refusal"] is None
    reply = complete(app).json()
    for name in ("logprobs", "token_ids", "prompt_logprobs", "prompt_token_ids", "stop_reason"):
        assert reply["choices"][0][name] is None


def test_a_value_that_asks_for_nothing_is_not_unknown() -> None:
    app, _ = app_for(strict_request_fields=True)
    answer = chat(app, modalities=["text"], typical_p=1)
    assert answer.status_code == 200
    assert "x-dovetail-ignored-fields" not in answer.headers


@pytest.mark.parametrize("path", ASKS)
@pytest.mark.parametrize(
    "fields", [{"dry_multiplier": 0.5}, {"vllm_xargs": {"dry_multiplier": 0.5}}]
)
def test_a_claimed_field_reaches_the_engine_from_every_api(
    path: str, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in (
        "dovetail.server.generate.application",
        "dovetail.server.generate.body.sampling",
    ):
        monkeypatch.setattr(f"{place}.claimed_fields", lambda spec: {"dry_multiplier"})
    app, engine = app_for()
    answer = send(app, "POST", path, ASKS[path] | fields)
    assert answer.status_code == 200, answer.text
    assert "x-dovetail-ignored-fields" not in answer.headers
    (asked,) = engine.asked
    assert asked[1].extra_args == {"dry_multiplier": 0.5}
