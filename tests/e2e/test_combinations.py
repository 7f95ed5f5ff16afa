"""Thinking x tools x form x streaming over HTTP: every cell whole and streamed, on whole servers.

Where an answer is free, the replay model says what a script says and the answer is known to the
last byte. Where it is held to a form, the random-logits model shows that the form is held.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer

from dovetail.config.checkpoint.sources.model_path import DEMO_PATH
from dovetail_testing.models import write_random_checkpoint, write_replay_checkpoint
from support.samples import sample_of
from support.server_process import ServerProcess
from support.serving import events_of, joined

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.usefixtures("with_test_models"),
]
jsonschema = pytest.importorskip("jsonschema")

THINKING: dict[str, dict[str, Any]] = {
    "on": {"chat_template_kwargs": {"enable_thinking": True}},
    "off": {"reasoning_effort": "none"},
    "absent": {},
}
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "boolean"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
OTHER = {"type": "object", "properties": {}, "additionalProperties": False}
TOOLS = [
    {"type": "function", "function": {"name": n, "parameters": p, "strict": True}}
    for n, p in (("weather", PARAMETERS), ("clock", OTHER))
]
NAMED = {"type": "function", "function": {"name": "weather"}}
CHOICES: dict[str, dict[str, Any]] = {
    "no tools": {},
    "auto": {"tools": TOOLS},
    "required": {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False},
    "named": {"tools": TOOLS, "tool_choice": NAMED},
}
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "size": {"enum": [1, 22, 333]}},
    "required": ["ok", "size"],
    "additionalProperties": False,
}
REGEX = "(yes|no)( [0-9]{2})?"
FORMATS: dict[str, dict[str, Any]] = {
    "none": {},
    "json_object": {"response_format": {"type": "json_object"}},
    "json_schema": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}
    },
    "regex": {"structured_outputs": {"regex": REGEX}},
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo", "days": true}}\n</tool_call>'
ARGUMENTS = '{"city": "Oslo", "days": true}'
SCRIPTS = [
    "Grüße, {world}. <tool>",
    f"I ask.\n{CALL}\n{CALL}",
    "<think>\nLet me see.\n</think>\n\nGrüße, {world}. <tool>",
    f"<think>\nLet me see.\n</think>\n\nI ask.\n{CALL}\n{CALL}",
    "<think>\nNo <tool_call> now.\n</think>\n\nDone.",
]
THOUGHT = "\nLet me see.\n</think>"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(DEMO_PATH / "tokenizer.json"))


@pytest.fixture(scope="module")
def replay(
    tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer
) -> Iterator[httpx.Client]:
    """A server whose answer is the script that the last digit of the conversation names."""
    scripts = [{"tokens": tokenizer.encode(s, add_special_tokens=False).ids} for s in SCRIPTS]
    first = tokenizer.encode("0", add_special_tokens=False).ids[0]
    model = write_replay_checkpoint(
        tmp_path_factory.mktemp("replay"), tokenizer_from=DEMO_PATH, scripts=scripts, cue_base=first
    )
    with ServerProcess(str(model), "--port", "0") as server, server.wait_ready().client() as client:
        yield client


@pytest.fixture(scope="module")
def noise(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A server that draws any token that it may."""
    model = write_random_checkpoint(tmp_path_factory.mktemp("noise"), tokenizer_from=DEMO_PATH)
    with ServerProcess(str(model), "--port", "0") as server, server.wait_ready().client() as client:
        yield client


def both(client: httpx.Client, body: dict[str, Any]) -> dict[str, Any]:
    """Return the choice, the same whole and streamed, calls without their ids."""
    whole = client.post("/v1/chat/completions", json=body)
    assert whole.status_code == 200, whole.text
    found = whole.json()
    choice = found["choices"][0]
    streamed = client.post(
        "/v1/chat/completions",
        json=body | {"stream": True, "stream_options": {"include_usage": True}},
    )
    events = events_of(streamed)
    assert events[-1] == "[DONE]"
    for usage in (events[-2]["usage"], found["usage"]):  # the second one finds the first one cached
        cached = usage.pop("prompt_tokens_details")["cached_tokens"]
        assert usage.pop("prompt_cache_hit_tokens") == cached
        assert usage.pop("prompt_cache_miss_tokens") == usage["prompt_tokens"] - cached
    assert events[-2]["usage"] == found["usage"]
    told = joined(events)
    message = choice["message"]
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    for call in told["message"]["tool_calls"]:
        call.pop("id")
    assert told["message"] == {
        "content": message["content"] or "",
        "reasoning_content": message.get("reasoning_content") or "",
        "tool_calls": calls,
    }
    assert told["finish_reason"] == choice["finish_reason"]
    return told | {"usage": found["usage"]}


@pytest.mark.parametrize("choice", ["no tools", "auto"])
@pytest.mark.parametrize("thinking", THINKING)
def test_free_answers(
    replay: httpx.Client, tokenizer: Tokenizer, thinking: str, choice: str
) -> None:
    number = 2 * (thinking == "on") + (choice == "auto")
    body = {
        "messages": [{"role": "user", "content": f"Script {number}"}],
        **THINKING[thinking],
        **CHOICES[choice],
    }
    if choice == "auto":  # not strict: a strict tool holds even a free answer's calls
        body["tools"] = [{"function": {"name": "weather", "parameters": PARAMETERS}}]
    found = both(replay, body)
    message = found["message"]
    assert message["reasoning_content"] == ("Let me see." if thinking == "on" else "")
    thought = tokenizer.encode(THOUGHT, add_special_tokens=False).ids if thinking == "on" else []
    details = found["usage"]["completion_tokens_details"]
    assert details == {"reasoning_tokens": len(thought)}
    if choice == "auto":
        call = {"name": "weather", "arguments": ARGUMENTS}
        assert (message["content"], message["tool_calls"]) == ("I ask.", [call, call])
        assert found["finish_reason"] == "tool_calls"
    else:
        assert (message["content"], message["tool_calls"]) == ("Grüße, {world}. <tool>", [])
        assert found["finish_reason"] == "stop"
    cut = both(replay, body | {"max_tokens": 25 if thinking == "on" else 12})
    assert cut["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("stop", "content", "num_calls"),
    [("Let", "I ask.", 2), ("weather", "I ask.", 2), ("ask", "I ", 0), ("\n", "I ask.", 2)],
)
def test_stop_strings_end_words_alone(
    replay: httpx.Client, stop: str, content: str, num_calls: int
) -> None:
    """Not the thinking that holds one, nor a call; and usage counts no token behind one."""
    body = {
        "messages": [{"role": "user", "content": "Script 3"}],
        "tools": [{"function": {"name": "weather"}}],
        "n": 2,
        "logprobs": True,
        **THINKING["on"],
    }
    asked = replay.post("/v1/chat/completions", json=body | {"stop": [stop]}).json()
    for choice in asked["choices"]:
        message = choice["message"]
        assert message["reasoning_content"] == "Let me see."
        assert (message["content"], len(message.get("tool_calls") or ())) == (content, num_calls)
        assert choice["stop_reason"] == (None if num_calls else stop)
    told = [t["token"] for t in asked["choices"][0]["logprobs"]["content"]]
    assert asked["usage"]["completion_tokens"] == 2 * len(told)
    assert ("".join(told).count("I ask") == 1) and (num_calls > 0 or told[-1].endswith("ask"))
    both(replay, body | {"stop": [stop], "n": 1})


def test_thinking_may_name_the_tags_of_strict_calls(replay: httpx.Client) -> None:
    turns = [{"role": "user", "content": "Script 4"}]
    message = both(replay, {"messages": turns, "tools": TOOLS, **THINKING["on"]})["message"]
    assert message["reasoning_content"] == "No <tool_call> now."
    assert (message["content"], message["tool_calls"]) == ("Done.", [])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("number", range(len(SCRIPTS)))
def test_the_dialects_agree(replay: httpx.Client, number: int, stream: bool) -> None:
    """The same answer by chat, responses and messages, each through its own client."""
    openai, anthropic = pytest.importorskip("openai"), pytest.importorskip("anthropic")
    url, question = str(replay.base_url).rstrip("/"), f"Script {number}"
    turns = [{"role": "user", "content": question}]
    model = replay.get("/v1/models").json()["data"][0]["id"]
    tool = {"name": "weather"}
    chat = both(
        replay,
        {"messages": turns, "reasoning_effort": "high", "tools": [{"function": tool}]},
    )
    asked = {"model": model, "input": question, "reasoning": {"effort": "high"}}
    asked["tools"] = [{"type": "function", "parameters": {}, **tool}]
    with openai.OpenAI(api_key="none", base_url=f"{url}/v1", max_retries=0) as oa:
        if stream:
            with oa.responses.stream(**asked) as events:
                list(events)
                response = events.get_final_response()
        else:
            response = oa.responses.create(**asked)
    wanted = {"model": model, "messages": turns, "max_tokens": 500}
    wanted["thinking"] = {"type": "enabled", "budget_tokens": 400}
    wanted["tools"] = [{"input_schema": {"type": "object"}, **tool}]
    with anthropic.Anthropic(api_key="none", base_url=url, max_retries=0) as an:
        if stream:
            with an.messages.stream(**wanted) as events:
                message = events.get_final_message()
        else:
            message = an.messages.create(**wanted)
    found = chat["message"]
    calls = [(call["name"], json.loads(call["arguments"])) for call in found["tool_calls"]]
    items = {"reasoning": "", "message": ""}
    for item in response.output:
        if item.type != "function_call":
            items[item.type] += item.content[0].text
    assert items == {"reasoning": found["reasoning_content"], "message": found["content"]}
    assert [
        (item.name, json.loads(item.arguments))
        for item in response.output
        if item.type == "function_call"
    ] == calls
    blocks = {kind: [b for b in message.content if b.type == kind] for kind in ("thinking", "text")}
    assert "".join(b.thinking for b in blocks["thinking"]) == found["reasoning_content"]
    assert "".join(b.text for b in blocks["text"]) == found["content"]
    assert [(b.name, b.input) for b in message.content if b.type == "tool_use"] == calls
    assert message.stop_reason == ("tool_use" if calls else "end_turn")
    counts = chat["usage"]
    assert response.usage.output_tokens == message.usage.output_tokens
    assert response.usage.output_tokens == counts["completion_tokens"]


CONSTRAINED = [
    cell
    for cell in itertools.product(THINKING, CHOICES, FORMATS)
    if cell[2] != "none" or cell[1] in ("required", "named")
]


@pytest.mark.parametrize(("thinking", "choice", "form"), CONSTRAINED)
def test_constrained_answers(noise: httpx.Client, thinking: str, choice: str, form: str) -> None:
    outputs = {"close_on_length": True} | FORMATS[form].get("structured_outputs", {})
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 160,
        "seed": 7,
        **THINKING[thinking],
        **CHOICES[choice],
        **FORMATS[form],
        "structured_outputs": outputs,
    }
    if choice == "auto":
        body["parallel_tool_calls"] = False
    if thinking == "on":
        body["thinking_token_budget"] = 9
    num_thinking = 0
    for seed in range(sample_of(3, 1)):
        found = both(noise, body | {"seed": seed})
        thought = found["usage"]["completion_tokens_details"]["reasoning_tokens"]
        assert thought <= 10
        num_thinking += thought > 0
        assert num_thinking == 0 or thinking == "on"
        check(found, choice, form)


def check(found: dict[str, Any], choice: str, form: str) -> None:
    """Assert that the answer has the form and the finish reason that say what it is."""
    message, calls = found["message"], found["message"]["tool_calls"]
    if choice in ("required", "named"):
        assert len(calls) == 1, found
        assert message["content"] == ""
    if calls:
        assert choice != "no tools"
        assert message["content"] == ""
        for call in calls:
            schema = {"weather": PARAMETERS, "clock": OTHER}[call["name"]]
            jsonschema.validate(json.loads(call["arguments"]), schema)
            assert choice != "named" or call["name"] == "weather"
        assert found["finish_reason"] == ("stop" if choice == "named" else "tool_calls")
        return
    assert found["finish_reason"] == "stop" or form == "json_object", found
    if form == "regex":
        assert re.fullmatch(REGEX, message["content"])
    elif form == "json_schema":
        jsonschema.validate(json.loads(message["content"]), SCHEMA)
    else:
        assert isinstance(json.loads(message["content"]), dict)
