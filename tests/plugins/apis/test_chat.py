"""/v1/chat/completions: streamed and whole answers are the same, and fields do what they say."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from dovetail.errors import RequestFault
from dovetail.interfaces.data.text import Tool, ToolCall
from dovetail.interfaces.renderer import Reads
from dovetail.server.generate.body.chat import Message
from dovetail.server.generate.rendering.messages import normalise
from dovetail.server.generate.tools.parsers import Parsers
from dovetail_plugins.renderers._jinja import ChatTemplate
from dovetail_plugins.syntax.json_calls import bare_calls
from dovetail_testing.fakes.async_engine import FakeAsyncEngine, FakeFacts, Script, fake_spec
from support.serving import (
    PARSERS,
    TOOLS,
    USER,
    NameAndJson,
    Thinks,
    app_for,
    chat,
    events_of,
    joined,
)

ANSWER = '<think>\nwhy\n</think>\n\nHello [call]add {"a": 1}[/call]\n[call]sub {}[/call] bye'


def cut(text: str, seed: int) -> list[str]:
    chance = random.Random(seed)
    places = sorted(chance.sample(range(1, len(text)), chance.randint(0, 20)))
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


def whole_of(body: dict[str, Any], index: int = 0) -> dict[str, Any]:
    """Return a whole choice in the shape that `joined` makes of a stream."""
    choice = body["choices"][index]
    message = choice["message"]
    calls = [{"id": call["id"], **call["function"]} for call in message.get("tool_calls") or ()]
    return {
        "message": {
            "content": message["content"] or "",
            "reasoning_content": message.get("reasoning_content") or "",
            "tool_calls": calls,
        },
        "finish_reason": choice["finish_reason"],
        "logprobs": (choice["logprobs"] or {}).get("content") or [],
    }


def without_ids(choice: dict[str, Any]) -> dict[str, Any]:
    for call in choice["message"]["tool_calls"]:
        assert call.pop("id").startswith("call_")
    return choice


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("seed", range(25))
def test_streamed_equals_whole(seed: int) -> None:
    app, _ = app_for(Script(pieces=cut(ANSWER, seed)))
    fields: dict[str, Any] = {"tools": TOOLS, "logprobs": True, "top_logprobs": 2}
    whole = without_ids(whole_of(chat(app, **fields).json()))
    events = events_of(chat(app, stream=True, **fields))
    assert events[-1] == "[DONE]"
    assert without_ids(joined(events)) == whole
    assert whole["message"] == {
        "content": "Hello bye",
        "reasoning_content": "why",
        "tool_calls": [
            {"name": "add", "arguments": '{"a": 1}'},
            {"name": "sub", "arguments": "{}"},
        ],
    }
    assert whole["finish_reason"] == "tool_calls"
    assert len(whole["logprobs"]) == len(ANSWER)


def test_n_answers_come_apart() -> None:
    app, _ = app_for(lambda prompt, index: Script(pieces=[f"answer {index}"] * (index + 1)))
    body = chat(app, n=3).json()
    assert [c["index"] for c in body["choices"]] == [0, 1, 2]
    events = events_of(chat(app, n=3, stream=True))
    for index in range(3):
        assert joined(events, index) == whole_of(body, index)
        assert joined(events, index)["message"]["content"] == f"answer {index}" * (index + 1)


@pytest.mark.parametrize("cause", ["stop", "length"])
@pytest.mark.parametrize("has_call", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_finish_reason_tells_the_truth(cause: str, has_call: bool, stream: bool) -> None:
    text = "[call]add {}[/call]" if has_call else "text"
    app, _ = app_for(Script(pieces=[text], finish_reason=cause))
    response = chat(app, stream=stream, tools=TOOLS)
    choice = joined(events_of(response)) if stream else whole_of(response.json())
    wanted = "tool_calls" if has_call and cause == "stop" else cause
    assert choice["finish_reason"] == wanted


@pytest.mark.parametrize("cause", ["stop", "length"])
def test_a_call_is_closed_by_the_model_alone(cause: str) -> None:
    app, _ = app_for(Script(pieces=['[call]add {"a": 1}'], finish_reason=cause))
    message = chat(app, tools=TOOLS).json()["choices"][0]["message"]
    assert len(message.get("tool_calls") or ()) == (cause == "stop")
    assert message["content"] == (None if cause == "stop" else '[call]add {"a": 1}')


def test_usage_in_streams() -> None:
    app, _ = app_for(Script(pieces=["ab", "cd"]), enable_prompt_tokens_details=True)
    assert all("usage" not in e for e in events_of(chat(app, stream=True))[:-1])
    events = events_of(chat(app, stream=True, stream_options={"include_usage": True}))
    *chunks, last, _ = events
    assert all(chunk["usage"] is None for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"] == chat(app).json()["usage"]
    assert last["usage"]["completion_tokens"] == 4
    assert last["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    options = {"include_usage": True, "continuous_usage_stats": True}
    every = events_of(chat(app, stream=True, stream_options=options))[:-1]
    counts = [chunk["usage"]["completion_tokens"] for chunk in every]
    assert counts == sorted(counts)
    assert counts[-1] == 4


def test_forced_usage() -> None:
    app, _ = app_for(enable_force_include_usage=True)
    assert events_of(chat(app, stream=True))[-2]["usage"]["completion_tokens"] > 0


def test_sampling_fields_reach_the_engine() -> None:
    app, engine = app_for()
    fields = {
        "temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "seed": 7, "n": 2,
        "presence_penalty": 1.0, "frequency_penalty": -1.0, "repetition_penalty": 1.1,
        "stop": "x", "stop_token_ids": [65], "include_stop_str_in_output": True,
        "ignore_eos": True, "min_tokens": 2, "max_tokens": 9, "skip_special_tokens": False,
        "spaces_between_special_tokens": False, "prompt_logprobs": 1, "logprobs": True,
        "top_logprobs": 3, "allowed_token_ids": [66, 67], "bad_words": ["no"],
        "logit_bias": {"66": 1.5}, "priority": 3, "cache_salt": "s", "request_id": "mine",
    }  # fmt: skip
    response = chat(app, **fields)
    assert response.status_code == 200, response.text
    request_id, params, extras = engine.asked[0]
    assert request_id == "mine"
    assert (extras["priority"], extras["cache_salt"]) == (3, "s")
    for name, value in fields.items():
        if name in ("priority", "cache_salt", "request_id", "logprobs", "top_logprobs"):
            continue
        if name in ("stop", "bad_words"):
            value = (value,) if isinstance(value, str) else tuple(value)
        if isinstance(value, list):
            value = tuple(value)
        if name == "logit_bias":
            value = {66: 1.5}
        assert getattr(params, name) == value, name
    assert params.logprobs == 3
    assert "x-dovetail-ignored-fields" not in response.headers


def test_server_defaults_and_clamping() -> None:
    spec = fake_spec(default_sampling={"temperature": 0.3}, max_model_tokens=100)
    app, engine = app_for(engine=FakeAsyncEngine(spec=spec))
    response = chat(app, max_tokens=1000)
    _, params, extras = engine.asked[0]
    room = 100 - len(extras["prompt"])
    assert (params.temperature, params.max_tokens) == (0.3, room)
    assert response.headers["x-dovetail-max-tokens"] == str(room)
    assert "x-dovetail-max-tokens" not in chat(app, max_tokens=5).headers


def test_too_long_prompts_say_both_numbers() -> None:
    app, _ = app_for(engine=FakeAsyncEngine(spec=fake_spec(max_model_tokens=20)))
    error = chat(app).json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert "20" in error["message"]


def test_truncating_the_prompt() -> None:
    app, engine = app_for()
    chat(app, truncate_prompt_tokens=4)
    assert len(engine.asked[0][2]["prompt"]) == 4


def test_reasoning_starts_where_the_prompt_ends() -> None:
    app, _ = app_for(Script(pieces=["why</think>because"]))
    inside = chat(app, chat_template_kwargs={"enable_thinking": True}).json()
    assert inside["choices"][0]["message"]["reasoning_content"] == "why"
    outside = chat(app).json()["choices"][0]["message"]
    assert outside["content"] == "why</think>because"
    typed = [{"role": "user", "content": "what is <think>?"}]
    assert chat(app, messages=typed).json()["choices"][0]["message"]["content"].startswith("why")


def test_reasoning_can_be_left_out() -> None:
    app, _ = app_for(Script(pieces=["<think>why</think>because"]))
    message = chat(app, include_reasoning=False).json()["choices"][0]["message"]
    assert message["reasoning"] is None and message["reasoning_content"] is None
    assert message["content"] == "because"


@pytest.mark.parametrize(
    ("min_tokens", "content"), [(0, "go "), (24, "go stop and "), (60, "go stop and stop on")]
)
def test_stop_strings_are_looked_for_in_words(min_tokens: int, content: str) -> None:
    pieces = ["why stop</think>", "go stop and ", "stop on"]
    fields = {"stop": ["stop"], "chat_template_kwargs": {"enable_thinking": True}}
    app, _ = app_for(Script(pieces=pieces))
    message = chat(app, min_tokens=min_tokens, **fields).json()["choices"][0]["message"]
    assert (message["reasoning"], message["content"]) == ("why stop", content)


@pytest.mark.parametrize("excludes", [False, True])
def test_tool_choice_none_reads_no_call(excludes: bool) -> None:
    script = Script(pieces=["[call]add {}[/call]"])
    app, engine = app_for(script, exclude_tools_when_tool_choice_none=excludes)
    body = chat(app, tools=TOOLS, tool_choice="none").json()
    assert body["choices"][0]["message"]["content"] == "[call]add {}[/call]"
    assert ("[1 tools]" in "".join(map(chr, engine.asked[0][2]["prompt"]))) is not excludes


class NamesBare(NameAndJson):
    """Calls without their tags are JSON."""

    def bare(self, text: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the calls. Raises: MalformedToolCall, UnfinishedToolCall"""
        return bare_calls(text, tools)


def test_bare_calls_are_calls_unless_the_parser_is_strict() -> None:
    text = '{"name": "add", "arguments": {"a": 1}}\n{"name": "add", "arguments": {}}'
    parsers = Parsers(tool=NamesBare(None), reasoning=Thinks(None))
    for is_strict in (False, True):
        for pieces in ([text], list(text), ["<think>why</think>\n", text]):
            script = Script(pieces=pieces)
            app, _ = app_for(script, parsers=parsers, tool_parser_strict=is_strict)
            whole = without_ids(whole_of(chat(app, tools=TOOLS).json()))
            calls = [call["arguments"] for call in whole["message"]["tool_calls"]]
            assert calls == ([] if is_strict else ['{"a": 1}', "{}"])
            assert whole["message"]["content"] == (text if is_strict else "")
            assert whole["finish_reason"] == ("stop" if is_strict else "tool_calls")
            assert without_ids(joined(events_of(chat(app, tools=TOOLS, stream=True)))) == whole


def test_one_call_at_a_time() -> None:
    app, _ = app_for(Script(pieces=["[call]add {}[/call][call]sub {}[/call]"]))
    body = chat(app, tools=TOOLS, parallel_tool_calls=False).json()
    assert len(body["choices"][0]["message"]["tool_calls"]) == 1


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": TOOLS, "tool_choice": "required"}, "tool_choice"),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "add"}}},
            "tool_choice",
        ),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {}}},
            "response_format.json_schema",
        ),
        ({"guided_json": {"type": "object"}}, "guided_json"),
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs.regex"),
        ({"response_format": {"type": "odd"}}, "response_format.type"),
        ({"guided_json": "{", "guided_regex": "a"}, "guided_json"),
        ({"guided_choice": ["a"], "guided_regex": "a"}, "guided_choice"),
        ({"use_beam_search": True, "presence_penalty": 1}, "presence_penalty"),
        ({"chat_template": "{{ 1 }}"}, "chat_template"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"logits_processors": {"os:system": {}}}, "logits_processors"),
        ({"continue_final_message": True}, "continue_final_message"),
    ],
)
def test_what_cannot_be_kept_is_refused(fields: dict[str, Any], param: str) -> None:
    app, engine = app_for()
    response = chat(app, **fields)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
    assert not engine.asked


def test_tools_without_a_parser_are_refused() -> None:
    app, _ = app_for(parsers=Parsers())
    assert chat(app, tools=TOOLS).json()["error"]["code"] == "no_tool_parser"


@pytest.mark.parametrize("enable_auto_tool_choice", [True, False])
def test_whether_the_model_may_decide_to_call(enable_auto_tool_choice: bool) -> None:
    app, engine = app_for(enable_auto_tool_choice=enable_auto_tool_choice)
    answers = [chat(app, tools=TOOLS), chat(app, tools=TOOLS, tool_choice="auto")]
    wanted = 200 if enable_auto_tool_choice else 400
    assert [answer.status_code for answer in answers] == [wanted, wanted]
    assert len(engine.asked) == (2 if enable_auto_tool_choice else 0)
    assert chat(app, tools=TOOLS, tool_choice="none").status_code == 200
    assert chat(app).status_code == 200


def test_continuing_the_final_message() -> None:
    app, engine = app_for()
    messages = [*USER, {"role": "assistant", "content": "So far"}]
    body = chat(app, messages=messages, continue_final_message=True, echo=True).json()
    assert "".join(map(chr, engine.asked[0][2]["prompt"])).endswith("assistant\nSo far")
    assert body["choices"][0]["message"]["content"] == "So farHello, world"


@pytest.mark.parametrize("end", ["\n", " \n    "])
def test_white_space_at_the_end_of_a_continued_message_stays(end: str) -> None:
    app, engine = app_for()
    messages = [*USER, {"role": "assistant", "content": f"def f():{end}"}]
    chat(app, messages=messages, continue_final_message=True)
    assert "".join(map(chr, engine.asked[0][2]["prompt"])).endswith(f"def f():{end}")


@pytest.mark.parametrize("arguments", ['{"a": ', "null", '{"a": "\\d"}', "[1]", ""])
def test_earlier_calls_whose_arguments_are_no_object_have_none(arguments: str) -> None:
    found, _ = normalise(
        [
            Message(
                role="assistant", tool_calls=[{"function": {"name": "f", "arguments": arguments}}]
            )
        ],
        Reads(),
    )
    assert found[0]["tool_calls"][0]["function"]["arguments"] == {}


@pytest.mark.parametrize(
    ("source", "content", "wanted"),
    [
        ("{{ message.thinking }}", "", "because"),
        ("{% if message['thinking'] %}{% endif %}", "", "because"),
        ("{{ enable_thinking }}", "", None),
        ("{{ message.thinking }}", "I look.", None),
    ],
)
def test_reasoning_reaches_templates_that_call_it_thinking(
    source: str, content: str, wanted: str | None
) -> None:
    call = {"function": {"name": "f", "arguments": "{}"}}
    message = Message(
        role="assistant", content=content, reasoning_content="because", tool_calls=[call]
    )
    found, _ = normalise([message], ChatTemplate(source).reads)
    assert found[0].get("thinking") == wanted


def test_messages_are_made_uniform() -> None:
    app, engine = app_for()
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "be"}, "brief"]},
        {
            "role": "assistant",
            "reasoning": "hm",
            "content": None,
            "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "1", "content": "2"},
    ]
    assert chat(app, messages=messages).status_code == 200
    prompt = "".join(map(chr, engine.asked[0][2]["prompt"]))
    assert "<|im_start|>system\nbe\nbrief<|im_end|>" in prompt
    assert '<think>hm</think><tool_call>{"a": 1}</tool_call>' in prompt


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]},
        {
            "role": "assistant",
            "tool_calls": [{"function": {"name": "f", "arguments": "[" * 5000}}],
        },
        {"role": "user", "content": "\ud800"},
    ],
)
def test_messages_that_cannot_be_rendered(message: dict[str, Any]) -> None:
    app, _ = app_for()
    assert chat(app, messages=[message]).status_code == 400


def test_faults_before_and_after_the_first_token() -> None:
    app, _ = app_for(Script(pieces=(), raises=RequestFault("NaN logits.")))
    for stream in (False, True):
        assert chat(app, stream=stream).status_code == 500
    app, engine = app_for(Script(pieces=("Hello",), raises=RequestFault("NaN logits.")))
    events = events_of(chat(app, stream=True))
    assert "NaN" in events[-1]["error"]["message"]
    assert all(c["finish_reason"] is None for e in events[:-1] for c in e["choices"])
    assert chat(app).status_code == 500
    assert app.state.server.admission.num_inside == 0
    assert not engine.running


@pytest.mark.parametrize("cause", ["abort", "error"])
def test_an_ended_request_never_looks_finished(cause: str) -> None:
    app, _ = app_for(Script(pieces=("a", "b"), finish_reason=cause))
    assert chat(app).status_code == 500
    events = events_of(chat(app, stream=True))
    assert "error" in events[-1]


def test_token_ids_and_logprob_names() -> None:
    app, _ = app_for(Script(pieces=("a-",)))
    body = chat(
        app, logprobs=True, return_token_ids=True, return_tokens_as_token_ids=True,
        prompt_logprobs=0,
    ).json()  # fmt: skip
    choice = body["choices"][0]
    assert choice["token_ids"] == [97, 45]
    assert [entry["token"] for entry in choice["logprobs"]["content"]] == [
        "token_id:97",
        "token_id:45",
    ]
    assert choice["logprobs"]["content"][1]["logprob"] == -9999.0
    assert body["prompt_logprobs"][0] is None
    assert len(body["prompt_logprobs"]) == len(body["prompt_token_ids"])
    events = events_of(chat(app, stream=True, return_token_ids=True))
    ids = [i for e in events[:-1] for c in e["choices"] for i in c.get("token_ids") or ()]
    assert ids == [97, 45]
    assert events[0]["prompt_token_ids"] == body["prompt_token_ids"]


def test_markers_that_are_special_tokens_are_still_seen() -> None:
    facts = FakeFacts(special_texts={7: "<|im_end|>", 8: "<think>", 9: "think>"})
    engine = FakeAsyncEngine(Script(pieces=["<think>a</think>b"]), facts=facts)
    app, _ = app_for(engine=engine, parsers=Parsers(reasoning=Thinks(None)))
    message = chat(app).json()["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("a", "b")
    assert engine.asked[0][1].skip_special_tokens
    assert engine.asked[0][1].kept_special_ids == (8, 9)


def test_models_without_a_template_say_so() -> None:
    engine = FakeAsyncEngine(facts=FakeFacts(chat_template=None))
    app, _ = app_for(engine=engine, parsers=PARSERS)
    assert chat(app).json()["error"]["code"] == "no_chat_template"


def test_response_role_and_fingerprint() -> None:
    app, _ = app_for(response_role="bot")
    body = chat(app).json()
    assert body["choices"][0]["message"]["role"] == "bot"
    assert body["system_fingerprint"].startswith("dovetail-")
    assert events_of(chat(app, stream=True))[0]["choices"][0]["delta"]["role"] == "bot"
