"""Fields of other servers' requests, row by row of the tables: translated, ignored or refused."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pkgutil import resolve_name
from typing import Any

import httpx
import pytest

from dovetail import registry
from dovetail.interfaces.data.request_field import Handling
from dovetail.server.endpoint import ChatRequest, fault_of
from dovetail.server.families import build_apis
from dovetail.server.generate.body.foreign_fields import KIND, known_fields
from dovetail_plugins.apis.completions.protocol import CompletionRequest
from support.serving import USER, app_for, chat, complete, send

ASKS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": USER},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": USER, "max_tokens": 5},
}


ROWS = known_fields()
HEADER = "x-dovetail-ignored-fields"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
OPENAI_SCHEMA = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
FLAT_SCHEMA = {"type": "json_schema", "name": "n", "schema": SCHEMA}
TAGS = {"structures": [{"begin": "<a>", "schema": SCHEMA, "end": "</a>"}], "triggers": ["<a>"]}
GBNF = 'root ::= "a" | "b"'
JSON = {"structured_outputs": {"json": SCHEMA}}
ANY_JSON = {"structured_outputs": {"json_object": True}}

CHAT, TEXT, RESPONSES, MESSAGES, OLLAMA = (*ASKS, "/api/chat")
ASKS[OLLAMA] = {"model": "fake", "messages": USER, "stream": False}

LENGTHS = (
    (TEXT, 7, {"max_tokens": 7}),
    (RESPONSES, 7, {"max_output_tokens": 7}),
    (OLLAMA, 7, {"options": {"num_predict": 7}}),
)
MAPPED: dict[str, Sequence[tuple[str, Any, dict[str, Any]]]] = {
    "extra_body": [
        (CHAT, {"top_k": 5, "n_predict": 3}, {"top_k": 5, "max_tokens": 3}),
        (TEXT, {"min_p": 0.5}, {"min_p": 0.5}),
    ],
    "logit_bias": [(TEXT, [[5, 1.5], ["6", False]], {"logit_bias": {"5": 1.5, "6": -100.0}})],
    "repeat_penalty": [(path, 1.25, {"repetition_penalty": 1.25}) for path in ASKS],
    "rep_pen": [(path, 1.25, {"repetition_penalty": 1.25}) for path in ASKS],
    "random_seed": [(path, 7, {"seed": 7}) for path in ASKS],
    "do_sample": [(path, False, {"temperature": 0.0}) for path in ASKS],
    **dict.fromkeys(
        ("n_predict", "num_predict", "max_new_tokens", "max_gen_len", "max_tokens_to_sample",
         "max_output_tokens"), (*LENGTHS, (CHAT, 7, {"max_tokens": 7})),
    ),
    "max_completion_tokens": LENGTHS,
    "max_tokens": [(RESPONSES, 7, {"max_output_tokens": 7}),
                   (OLLAMA, 7, {"options": {"num_predict": 7}})],
    "min_new_tokens": [(path, 2, {"min_tokens": 2}) for path in (CHAT, TEXT, RESPONSES)],
    **dict.fromkeys(
        ("stop_sequence", "stop_sequences", "stop_strings", "stop_words"),
        ((CHAT, ["x"], {"stop": ["x"]}), (TEXT, ["x"], {"stop": ["x"]})),
    ),
    "no_stop_trim": [(TEXT, True, {"include_stop_str_in_output": True})],
    "n_cmpl": [(TEXT, 2, {"n": 2}), (CHAT, 2, {"n": 2})],
    "rid": [(TEXT, "mine", {"request_id": "mine"})],
    "return_tokens": [(TEXT, True, {"return_token_ids": True})],
    "n_probs": [(TEXT, 2, {"logprobs": 2}), (CHAT, 2, {"logprobs": True, "top_logprobs": 2}),
                (RESPONSES, 2, {"top_logprobs": 2})],
    "truncate": [(TEXT, 1, {"truncate_prompt_tokens": 1})],
    "max_prompt_tokens": [(TEXT, 1, {"truncate_prompt_tokens": 1})],
    "usage": [(CHAT, {"include": True}, {"stream_options": {"include_usage": True}})],
    "grammar": [(path, GBNF, {"structured_outputs": {"grammar": GBNF}}) for path in ASKS]
    + [(TEXT, {"type": "regex", "value": "a+"}, {"structured_outputs": {"regex": "a+"}}),
       (CHAT, {"type": "json", "value": SCHEMA}, JSON)],
    "ebnf": [(path, GBNF, {"structured_outputs": {"grammar": GBNF}}) for path in ASKS],
    "regex": [(path, "a+", {"structured_outputs": {"regex": "a+"}}) for path in ASKS],
    "json_schema": [(path, SCHEMA, JSON) for path in ASKS]
    + [(CHAT, {}, {"structured_outputs": {"json": {}}})],
    "guided_json_object": [(CHAT, True, ANY_JSON)],
    "guided_structural_tag": [
        (CHAT, TAGS, {"structured_outputs": {"structural_tag": TAGS}})
    ],
    "nvext": [(CHAT, {"guided_regex": "a+"}, {"structured_outputs": {"regex": "a+"}})],
    "json_mode": [(CHAT, True, ANY_JSON)],
    "response_format": [(RESPONSES, OPENAI_SCHEMA, JSON), (MESSAGES, OPENAI_SCHEMA, JSON),
                        (OLLAMA, {"type": "json_object"}, ANY_JSON)],
    "text": [(CHAT, {"format": FLAT_SCHEMA}, JSON)],
    "output_config": [(CHAT, {"format": {"type": "json_schema", "schema": SCHEMA}}, JSON)],
    "output_format": [(CHAT, {"type": "json_schema", "schema": SCHEMA}, JSON)],
    "format": [(CHAT, "json", ANY_JSON), (TEXT, SCHEMA, JSON)],
    "reasoning_effort": [(RESPONSES, "none", {"reasoning": {"effort": "none"}}),
                         (MESSAGES, "low", {"output_config": {"effort": "low"}}),
                         (OLLAMA, "low", {"think": "low"})],
    "reasoning": [
        (CHAT, {"effort": "high", "exclude": True},
         {"reasoning_effort": "high", "include_reasoning": False}),
        (CHAT, {"enabled": False, "max_tokens": 5},
         {"enable_thinking": False, "thinking_token_budget": 5}),
        (RESPONSES, {"enabled": False}, {"reasoning": {"effort": "none"}}),
        (RESPONSES, {"effort": "low", "max_tokens": 5},
         {"reasoning": {"effort": "low"}, "thinking_token_budget": 5}),
        (MESSAGES, {"max_tokens": 5}, {"thinking": {"type": "enabled", "budget_tokens": 5}}),
        (OLLAMA, {"effort": "low"}, {"think": "low"}),
    ],
    "thinking": [
        (CHAT, {"type": "enabled", "budget_tokens": 5},
         {"thinking": {"type": "enabled"}, "thinking_token_budget": 5}),
        (CHAT, False, {"enable_thinking": False}),
        (RESPONSES, {"type": "disabled"}, {"reasoning": {"effort": "none"}}),
        (OLLAMA, {"type": "enabled"}, {"think": True}),
    ],
    "enable_thinking": [(RESPONSES, False, {"reasoning": {"effort": "none"}}),
                        (MESSAGES, False, {"thinking": {"type": "disabled"}}),
                        (OLLAMA, False, {"think": False})],
    "think": [(CHAT, False, {"enable_thinking": False}), (CHAT, "low", {"reasoning_effort": "low"}),
              (MESSAGES, True, {"thinking": {"type": "enabled"}})],
    **dict.fromkeys(
        ("thinking_budget", "reasoning_budget", "thinking_budget_tokens"),
        ((CHAT, 5, {"thinking_token_budget": 5}), (RESPONSES, 5, {"thinking_token_budget": 5})),
    ),
    "thinking_token_budget": [
        (MESSAGES, 5, {"thinking": {"type": "enabled", "budget_tokens": 5}})
    ],
    **dict.fromkeys(
        ("chat_template_args", "template_kwargs"),
        tuple((path, {"a": 1}, {"chat_template_kwargs": {"a": 1}})
              for path in (CHAT, RESPONSES, MESSAGES)),
    ),
    "separate_reasoning": [(CHAT, False, {"reasoning_parser": "none"})],
    "reasoning_format": [(CHAT, "none", {"reasoning_parser": "none"})],
}  # fmt: skip
"""Mapped field -> requests with it: the path, the value, and what it means in that API's words."""

ASKING: dict[str, Any] = {
    "modalities": ["text", "audio"], "web_search_options": {}, "min_keep": 3, "samplers": ["top_k"],
    "num_beams": 2, "options": {"num_ctx": 5}, "adaptive_target": 0.5,
}  # fmt: skip
"""Refused fields -> values that ask for something; 0.5 for the others."""


def named(how: Handling) -> list[str]:
    """Return the fields that are handled in one way."""
    return sorted(name for name, row in ROWS.items() if row.how == how)


@cache
def served() -> Any:
    """Return an application and its engine."""
    return app_for()


def answered(path: str, fields: dict[str, Any]) -> tuple[httpx.Response, list[Any]]:
    """Return the answer to a request with these fields, and what the engine was asked."""
    app, engine = served()
    engine.asked.clear()
    answer = send(app, "POST", path, ASKS[path] | fields)
    return answer, [one[1:] for one in engine.asked]


def test_every_mapped_field_is_tried() -> None:
    assert set(MAPPED) == {name for name, row in ROWS.items() if row.read is not None}


def body_of(path: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Return a request as its API reads it."""
    (body,) = {
        route.body
        for api in build_apis().values()
        for route in api.routes
        if route.path == path and route.body is not None
    }
    read: dict[str, Any] = body.model_validate(ASKS[path] | fields).model_dump(by_alias=True)
    return read


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    ("name", "path", "value", "ours"),
    [(name, *case) for name, cases in MAPPED.items() for case in cases],
)
def test_a_mapped_field_is_what_it_is_called_here(
    name: str, path: str, value: Any, ours: dict[str, Any]
) -> None:
    more = {"stream": True} if name == "usage" else {}
    assert body_of(path, {name: value} | more) == body_of(path, ours | more)
    assert body_of(path, ours) != body_of(path, {})
    theirs, asked = answered(path, {name: value} | more)
    here, own_asked = answered(path, ours | more)
    if "thinking_token_budget" in ours:  # a hint, where thinking cannot be limited
        assert theirs.status_code == 200 and name in theirs.headers[HEADER]
        return
    assert asked == own_asked
    if theirs.status_code != 200:  # the fake engine compiles no constraint
        assert theirs.status_code == here.status_code == 400
        assert "no backend for structured output" in theirs.text
        assert f"{name}: " in theirs.text or f"{name}." in theirs.text, theirs.text


@pytest.mark.parametrize("name", named("honoured"))
def test_an_honoured_field_is_declared_or_claimed(name: str) -> None:
    declared = {*ChatRequest.model_fields, *CompletionRequest.model_fields}
    claimed = {field for entry in registry.entries("logits_processor")
               for field in registry.admin.load_entry(entry).claims}  # fmt: skip
    assert name in declared | claimed | {"vllm_xargs"}


@pytest.mark.parametrize("path", ASKS)
def test_ignored_fields_are_named(path: str) -> None:
    declared = set(body_of(path, {}))
    fields: dict[str, Any] = {name: {"a": 1} for name in named("ignored") if name not in declared}
    for some in (list(fields)[:20], list(fields)[20:]):
        answer, asked = answered(path, {name: fields[name] for name in some})
        assert answer.status_code == 200, answer.text
        assert asked and set(some) == set(answer.headers[HEADER].split(", "))


@pytest.mark.parametrize("name", named("claimed"))
def test_a_claimed_field_is_a_processors(name: str) -> None:
    claimed = {field for entry in registry.entries("logits_processor")
               for field in registry.admin.load_entry(entry).claims}  # fmt: skip
    assert name in claimed


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", named("refused") + named("claimed"))
def test_a_refused_field_is_pointed_at(name: str) -> None:
    for path in ASKS:
        if name in body_of(path, {}):
            continue
        answer, asked = answered(path, {name: ASKING.get(name, 0.5)})
        assert answer.status_code == 400 and not asked, (path, answer.text)
        assert f"{name}: " in answer.text
        if path == TEXT:
            assert answer.json()["error"]["param"] == name


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, row in ROWS.items() for value in row.neutral]
)
def test_a_neutral_value_asks_for_nothing(name: str, value: Any) -> None:
    answer, asked = answered(TEXT, {name: value})
    assert answer.status_code == 200 and HEADER not in answer.headers, answer.text
    assert asked == answered(TEXT, {})[1]


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"repeat_penalty": "x"}, "repeat_penalty"), ({"n_predict": -7}, "n_predict"),
        ({"grammar": 5}, "grammar"), ({"reasoning": "high"}, "reasoning"),
        ({"reasoning": {"max_tokens": "x"}}, "reasoning.max_tokens"),
        ({"logit_bias": [[1]]}, "logit_bias"), ({"extra_body": 5}, "extra_body"),
        ({"extra_body": {"top_k": "x"}}, "extra_body.top_k"),
        ({"repeat_penalty": 1.5, "repetition_penalty": 1.2}, "repeat_penalty"),
        ({"max_tokens": 5, "n_predict": 6}, "n_predict"), ({"think": 5}, "think"),
        ({"regex": "a", "ebnf": GBNF}, "ebnf"), ({"do_sample": 1}, "do_sample"),
        ({"thinking": {"type": "enabled", "budget_tokens": -5}}, "thinking.budget_tokens"),
    ],
)  # fmt: skip
def test_a_fault_is_named_as_sent(fields: dict[str, Any], where: str) -> None:
    app, engine = app_for()
    answer = chat(app, **fields)
    assert answer.status_code == 400 and not engine.asked, answer.text
    assert answer.json()["error"]["param"] == where


def test_the_same_value_twice_is_no_fault() -> None:
    app, engine = app_for()
    assert chat(app, max_tokens=5, n_predict=5, repeat_penalty=1).status_code == 200
    assert engine.asked[0][1].max_tokens == 5


def test_a_budget_in_other_words_is_a_hint() -> None:
    app, _ = app_for()  # which limits no thinking
    assert chat(app, thinking_token_budget=5).status_code == 400
    answer = chat(app, reasoning={"max_tokens": 5})
    assert answer.headers[HEADER].split(", ")[-1] == "reasoning.max_tokens"


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


def test_a_field_is_in_one_table() -> None:
    tables = [resolve_name(registry.admin.value_of(KIND, name)) for name in registry.names(KIND)]
    names = [name for table in tables for name in table]
    assert len(names) == len(set(names)) == len(ROWS)


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
def test_a_claimed_field_reaches_the_engine(
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
    assert HEADER not in answer.headers
    (asked,) = engine.asked
    assert asked[1].extra_args == {"dry_multiplier": 0.5}
