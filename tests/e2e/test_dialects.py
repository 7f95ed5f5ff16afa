"""The demo model through the SDKs: tools, their results in words, schemas, thinking, the rest.

Four dialects, one server, clients that nobody here wrote: openai, anthropic and ollama, streamed
and not.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from support.server_process import ServerProcess

pytestmark = pytest.mark.e2e
openai = pytest.importorskip("openai")
anthropic = pytest.importorskip("anthropic")
ollama = pytest.importorskip("ollama")

QUESTION = "What is the weather in Paris?"
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL = {"name": "get_weather", "description": "Weather of a city"}
RESULT = '{"temperature": 21, "sky": "sunny"}'


class Capital(BaseModel):
    """What is asked for as JSON."""

    city: str
    country: str


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with ServerProcess("--port", "0", "--api-key", "key") as server:
        yield server.wait_ready().url


@pytest.fixture(scope="module")
def oa(url: str) -> Iterator[Any]:
    with openai.OpenAI(api_key="key", base_url=f"{url}/v1", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def an(url: str) -> Iterator[Any]:
    with anthropic.Anthropic(api_key="key", base_url=url, max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def ol(url: str) -> Iterator[Any]:
    client = ollama.Client(host=url, headers={"authorization": "Bearer key"})
    with client._client:
        yield client


@pytest.fixture(scope="module")
def model(oa: Any) -> str:
    return str(oa.models.list().data[0].id)


def respond(oa: Any, stream: bool, **fields: Any) -> Any:
    fields = {"temperature": 0} | fields
    if not stream:
        return oa.responses.create(**fields)
    with oa.responses.stream(**fields) as events:
        for _ in events:
            pass
        return events.get_final_response()


def say(an: Any, stream: bool, **fields: Any) -> Any:
    # Newer clients have no parameter for the temperature, but the wire still has.
    extra = {"temperature": 0, **fields.pop("extra_body", {})}
    fields = {"max_tokens": 200, "extra_body": extra} | fields
    if not stream:
        return an.messages.create(**fields)
    with an.messages.stream(**fields) as events:
        return events.get_final_message()


def talk(ol: Any, stream: bool, **fields: Any) -> Any:
    """Return the message of an answer of Ollama's API, joined where it is streamed."""
    fields = {"options": {"temperature": 0}} | fields
    if not stream:
        return ol.chat(**fields).message
    parts = [part.message for part in ol.chat(**fields, stream=True)]
    return ollama.Message(
        role="assistant",
        content="".join(part.content or "" for part in parts),
        thinking="".join(part.thinking or "" for part in parts) or None,
        tool_calls=[call for part in parts for call in part.tool_calls or ()] or None,
    )


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_by_responses(oa: Any, model: str, stream: bool) -> None:
    tools = [{"type": "function", "parameters": PARAMETERS, "strict": True, **TOOL}]
    first = respond(oa, stream, model=model, input=QUESTION, tools=tools)
    call = first.output[-1]
    assert (call.type, call.name, json.loads(call.arguments)) == (
        "function_call", "get_weather", {"city": "Paris"},
    )  # fmt: skip
    result = {"type": "function_call_output", "call_id": call.call_id, "output": RESULT}
    second = respond(
        oa, stream, model=model, input=[result], tools=tools, previous_response_id=first.id
    )
    assert "21" in second.output_text
    assert second.status == "completed"
    assert oa.responses.retrieve(second.id).output_text == second.output_text
    forced = respond(
        oa, stream, model=model, input="Hello", tools=tools,
        tool_choice={"type": "function", "name": "get_weather"},
    )  # fmt: skip
    assert [item.name for item in forced.output] == ["get_weather"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_by_messages(an: Any, model: str, stream: bool) -> None:
    tools = [{"input_schema": PARAMETERS, **TOOL}]
    asked = [{"role": "user", "content": QUESTION}]
    first = say(an, stream, model=model, messages=asked, tools=tools)
    assert first.stop_reason == "tool_use"
    call = first.content[-1]
    assert (call.name, call.input) == ("get_weather", {"city": "Paris"})
    content = [block.model_dump(exclude_none=True) for block in first.content]
    result = {"type": "tool_result", "tool_use_id": call.id, "content": RESULT}
    turns = [
        *asked,
        {"role": "assistant", "content": content},
        {"role": "user", "content": [result]},
    ]
    second = say(an, stream, model=model, messages=turns, tools=tools)
    assert "21" in second.content[0].text
    assert second.stop_reason == "end_turn"
    forced = say(
        an, stream, model=model, messages=[{"role": "user", "content": "Hello"}], tools=tools,
        tool_choice={"type": "any"},
    )  # fmt: skip
    assert [block.name for block in forced.content] == ["get_weather"]
    counted = an.messages.count_tokens(model=model, messages=asked, tools=tools)
    usage = first.usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_by_ollama(ol: Any, model: str, stream: bool) -> None:
    tools = [{"type": "function", "function": {"parameters": PARAMETERS, **TOOL}}]
    turns: list[Any] = [{"role": "user", "content": QUESTION}]
    first = talk(ol, stream, model=model, messages=turns, tools=tools)
    ((name, arguments),) = [(c.function.name, c.function.arguments) for c in first.tool_calls]
    assert (name, arguments) == ("get_weather", {"city": "Paris"})
    turns += [first, {"role": "tool", "tool_name": name, "content": RESULT}]
    assert "21" in talk(ol, stream, model=model, messages=turns, tools=tools).content


def test_ollama_formats_prompts_and_models(ol: Any, model: str) -> None:
    wanted = {"model": model, "options": {"temperature": 0, "num_predict": 60}}
    question = "What is the capital of France? Answer as JSON with the keys city and country."
    answer = ol.generate(prompt=question, format=Capital.model_json_schema(), **wanted)
    assert Capital.model_validate_json(answer.response).city == "Paris"
    assert json.loads(ol.generate(prompt=question, format="json", **wanted).response)
    raw = ol.generate(prompt="The capital of France is", raw=True, **wanted)
    parts = list(ol.generate(prompt="The capital of France is", raw=True, stream=True, **wanted))
    assert "".join(part.response for part in parts) == raw.response
    assert "Paris" in raw.response
    assert parts[-1].eval_count == raw.eval_count
    assert min(raw.total_duration, raw.prompt_eval_duration, raw.eval_duration) > 0
    assert model in [one.model for one in ol.list().models]
    loaded = ol.ps().models[0]
    shown = ol.show(model)
    family = shown.modelinfo["general.architecture"]
    assert loaded.size > 1e6
    assert shown.modelinfo[f"{family}.context_length"] == loaded.context_length
    assert shown.capabilities == ["completion", "tools", "thinking"]
    with pytest.raises(ollama.ResponseError, match="images, sound and video"):
        ol.generate(prompt="What is this?", images=[b"png"], **wanted)


def test_a_schema_by_responses_and_messages(oa: Any, an: Any, model: str) -> None:
    question = "What is the capital of France? Answer as JSON with the keys city and country."
    parsed = oa.responses.parse(model=model, input=question, text_format=Capital, temperature=0)
    assert parsed.output_parsed == Capital(city="Paris", country="France")
    with oa.responses.stream(
        model=model, input=question, text_format=Capital, temperature=0
    ) as events:
        for _ in events:
            pass
        assert events.get_final_response().output_parsed == parsed.output_parsed
    schema = Capital.model_json_schema() | {"additionalProperties": False}
    config = {"format": {"type": "json_schema", "schema": schema}}
    turns = [{"role": "user", "content": question}]
    for fields in ({"output_config": config}, {"output_format": config["format"]}):
        message = say(an, False, model=model, messages=turns, extra_body=fields)
        assert Capital.model_validate_json(message.content[0].text) == parsed.output_parsed


@pytest.mark.parametrize("stream", [False, True])
def test_thinking(oa: Any, an: Any, ol: Any, model: str, stream: bool) -> None:
    question = "What is 3 plus 4?"
    turns = [{"role": "user", "content": question}]
    response = respond(oa, stream, model=model, input=question, reasoning={"effort": "high"})
    message = say(
        an, stream, model=model, messages=turns,
        thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=1100,
    )  # fmt: skip
    thought = response.output[0].content[0].text
    assert thought
    assert message.content[0].thinking == thought
    assert message.content[1].text == response.output_text
    told = talk(ol, stream, model=model, messages=turns, think=True)
    assert (told.thinking, told.content) == (thought, response.output_text)
    assert talk(ol, stream, model=model, messages=turns, think=False).thinking is None
    count = response.usage.output_tokens_details.reasoning_tokens
    assert 0 < count < response.usage.output_tokens
    assert message.usage.output_tokens_details.thinking_tokens == count
    bounded = respond(
        oa, stream, model=model, input=question, reasoning={"effort": "high"},
        extra_body={"thinking_token_budget": 2},
    )  # fmt: skip
    assert thought.startswith(bounded.output[0].content[0].text)
    assert bounded.usage.output_tokens_details.reasoning_tokens == 3
    quiet = respond(oa, stream, model=model, input=question, reasoning={"effort": "none"})
    assert [item.type for item in quiet.output] == ["message"]
    assert quiet.usage.output_tokens_details.reasoning_tokens == 0


def test_in_the_background(oa: Any, model: str) -> None:
    wanted = {"model": model, "temperature": 0}
    whole = oa.responses.create(input="What is the capital of Italy?", **wanted)
    made = oa.responses.create(input="What is the capital of Italy?", background=True, **wanted)
    deadline_s = time.monotonic() + 20
    while made.status in ("queued", "in_progress") and time.monotonic() < deadline_s:
        time.sleep(0.05)
        made = oa.responses.retrieve(made.id)
    assert made.output_text == whole.output_text
    slow = oa.responses.create(
        input="Tell me a story.", background=True, extra_body={"ignore_eos": True}, **wanted
    )
    assert oa.responses.cancel(slow.id).status == "cancelled"
    oa.responses.delete(slow.id)
    with pytest.raises(openai.NotFoundError):
        oa.responses.retrieve(slow.id)


def test_keys_in_either_header(url: str) -> None:
    with (
        anthropic.Anthropic(api_key="wrong", base_url=url) as an,
        pytest.raises(anthropic.AuthenticationError, match="x-api-key"),
    ):
        an.messages.count_tokens(model="any", messages=[{"role": "user", "content": "hi"}])
    with (
        openai.OpenAI(api_key="wrong", base_url=f"{url}/v1") as oa,
        pytest.raises(openai.AuthenticationError),
    ):
        oa.responses.create(model="any", input="hi")
