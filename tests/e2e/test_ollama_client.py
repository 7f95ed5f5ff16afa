"""A Modelfile's server by the ollama client: every request of Ollama's API page, in other words."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from dovetail_plugins.modelfile.fields import fields_of
from dovetail_plugins.modelfile.reading import read
from support.server_process import ServerProcess

pytestmark = pytest.mark.e2e
ollama = pytest.importorskip("ollama")

MODELFILE = '''FROM demo
PARAMETER temperature 0
PARAMETER num_predict 40
PARAMETER stop "</never>"
SYSTEM """You answer in few words."""
MESSAGE user What is the capital of Italy?
MESSAGE assistant Rome.
'''
QUESTION = "What is the capital of France?"
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
OPTIONS = {
    "num_keep": 5, "seed": 42, "num_predict": 10, "top_k": 20, "top_p": 0.9, "min_p": 0.0,
    "typical_p": 1.0, "repeat_last_n": 33, "temperature": 0.8, "repeat_penalty": 1.2,
    "presence_penalty": 1.5, "frequency_penalty": 1.0, "mirostat": 0, "mirostat_tau": 0.8,
    "mirostat_eta": 0.6, "penalize_newline": True, "stop": ["\n", "user:"], "numa": False,
    "num_ctx": 512, "num_batch": 2, "num_gpu": 1, "main_gpu": 0, "low_vram": False,
    "vocab_only": False, "use_mmap": True, "use_mlock": False, "num_thread": 8,
}  # fmt: skip
CHATML = (
    "{{- range .Messages }}<|im_start|>{{ .Role }}\n{{ .Content }}<|im_end|>\n{{ end }}"
    "<|im_start|>assistant\n"
)
END = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    fields = dict(fields_of(read(MODELFILE), name="mine").fields)
    assert fields.pop("model") == "demo", "the demo is what a server without a model serves"
    settings = tmp_path_factory.mktemp("modelfile") / "settings.yaml"
    settings.write_text(yaml.safe_dump(fields))
    with ServerProcess("--config", str(settings), "--port", "0") as server:
        made = ollama.Client(host=server.wait_ready().url)
        with made._client:
            yield made


def test_generate(client: Any) -> None:
    whole = client.generate("mine", QUESTION)
    assert "Paris" in whole.response
    assert (whole.done, whole.done_reason, whole.model) == (True, "stop", "mine")
    assert whole.eval_count <= 40
    assert all(getattr(whole, name) >= 0 for name in END)
    assert sum(getattr(whole, name) for name in END[1:]) <= whole.total_duration * 1.01
    parts = list(client.generate("mine", QUESTION, stream=True))
    assert "".join(part.response for part in parts) == whole.response
    assert parts[-1].context == whole.context
    assert len(whole.context) == whole.prompt_eval_count + whole.eval_count


def test_a_context_is_the_conversation(client: Any) -> None:
    first = client.generate("mine", QUESTION)
    second = client.generate("mine", "And of Spain?", context=first.context)
    turns = [
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": first.response},
        {"role": "user", "content": "And of Spain?"},
    ]
    assert second.context[: len(first.context)] == first.context
    asked = client._client.post("/tokenize", json={"model": "mine", "messages": turns}).json()
    prompts = (second.context[: second.prompt_eval_count], asked["tokens"])
    asked = [client._client.post("/detokenize", json={"tokens": ids}).json() for ids in prompts]
    texts = [one["prompt"] for one in asked]
    no_thoughts = "<think>\n\n</think>\n\n"
    assert texts[0].count(no_thoughts) == 2, "a context has the earlier answer as it was made"
    assert texts[0].replace(no_thoughts, "", 1) == texts[1]


def test_defaults_of_the_modelfile_are_in_prompts(client: Any) -> None:
    short = client.generate("mine", QUESTION, template=CHATML)
    own = client.generate("mine", QUESTION, template=CHATML, system="No.")
    bare = client.generate("mine", QUESTION, template="{{ .Prompt }}")
    assert bare.prompt_eval_count < own.prompt_eval_count < short.prompt_eval_count
    shown = client.show("mine")
    assert 'PARAMETER stop "</never>"' in shown.modelfile
    assert "SYSTEM" in shown.modelfile and "MESSAGE user" in shown.modelfile
    assert shown.parameters.split("\n")[0] == "temperature 0.0"


def test_formats(client: Any) -> None:
    question = f"{QUESTION} Answer as JSON with the key city."
    answer = client.generate("mine", question, format=CITY)
    assert list(json.loads(answer.response)) == ["city"]
    assert isinstance(json.loads(client.generate("mine", question, format="json").response), dict)
    turn = [{"role": "user", "content": question}]
    assert list(json.loads(client.chat("mine", turn, format=CITY).message.content)) == ["city"]


def test_raw_seeds_and_logprobs(client: Any) -> None:
    fields = {"raw": True, "options": {"temperature": 1, "seed": 123, "num_predict": 8}}
    first, second = (client.generate("mine", "The sky is", **fields) for _ in range(2))
    assert first.response == second.response
    assert first.context is None
    scored = client.generate("mine", QUESTION, logprobs=True, top_logprobs=2)
    assert "".join(entry.token for entry in scored.logprobs).startswith(scored.response)
    assert all(entry.logprob <= 0 and len(entry.top_logprobs) == 2 for entry in scored.logprobs)
    assert math.isfinite(scored.logprobs[0].logprob)


def test_options(client: Any) -> None:
    answer = client.generate("mine", QUESTION, options=OPTIONS)
    assert answer.done_reason in ("stop", "length")
    assert answer.eval_count <= 10
    short = client.generate("mine", QUESTION, options={"num_predict": 1})
    assert (short.eval_count, short.done_reason) == (1, "length")
    for options in ({"mirostat": 1, "mirostat_tau": 3.0}, {"typical_p": 0.7, "repeat_last_n": 8}):
        answer = client.generate("mine", QUESTION, options=options | {"num_predict": 5})
        assert answer.eval_count <= 5
    with pytest.raises(ollama.ResponseError, match=r"options\.mirostat: must be a whole number"):
        client.generate("mine", QUESTION, options={"mirostat": 3})
    with pytest.raises(ollama.ResponseError, match=r"options\.typical_p: must be a number"):
        client.generate("mine", QUESTION, options={"typical_p": 1.7})


def test_chat(client: Any) -> None:
    turns = [{"role": "user", "content": QUESTION}]
    whole = client.chat("mine", turns)
    assert "Paris" in whole.message.content
    parts = list(client.chat("mine", turns, stream=True))
    assert "".join(part.message.content for part in parts) == whole.message.content
    assert [part.done for part in parts[-2:]] == [False, True]
    seeded = {"seed": 101, "temperature": 0}
    assert client.chat("mine", turns, options=seeded).message.content == whole.message.content


@pytest.mark.parametrize("stream", [False, True])
def test_tools(client: Any, stream: bool) -> None:
    turns = [{"role": "user", "content": "What is the weather in Paris?"}]
    answers = client.chat("mine", turns, tools=[TOOL], stream=stream)
    messages = [one.message for one in (answers if stream else [answers])]
    (call,) = [call for message in messages for call in message.tool_calls or ()]
    assert (call.function.name, call.function.arguments) == ("get_weather", {"city": "Paris"})


@pytest.mark.parametrize("think", [True, False, "low", "medium", "high"])
def test_thinking(client: Any, think: bool | str) -> None:
    turns = [{"role": "user", "content": QUESTION}]
    message = client.chat("mine", turns, think=think, options={"num_predict": 200}).message
    assert bool(message.thinking) == bool(think)
    assert "<think>" not in message.content


def test_loading_and_unloading(client: Any) -> None:
    assert client.generate("mine").done_reason == "load"
    assert client.chat("mine", []).done_reason == "load"
    assert client.generate("mine", keep_alive="1h30m").done_reason == "load"
    with pytest.raises(ollama.ResponseError, match="keep_alive: the model stays loaded"):
        client.generate("mine", keep_alive=0)
    with pytest.raises(ollama.ResponseError, match="is not a duration"):
        client.generate("mine", keep_alive="5 minutes")


def test_models(client: Any) -> None:
    assert [one.model for one in client.list().models] == ["mine"]
    (loaded,) = client.ps().models
    assert (loaded.model, loaded.digest) == ("mine", client.list().models[0].digest)
    assert client.show("mine:latest").capabilities == ["completion", "tools", "thinking"]
    assert client._client.get("/api/version").json()["version"]
    assert client._client.get("/").text == "Ollama is running"
    assert client._client.head("/").status_code == 200


def test_what_a_text_model_does_not_do(client: Any) -> None:
    turn = {"role": "user", "content": "What is this?", "images": [b"png"]}
    for call in (
        lambda: client.generate("mine", "What is this?", images=[b"png"]),
        lambda: client.chat("mine", [turn]),
    ):
        with pytest.raises(ollama.ResponseError, match="images, sound and video"):
            call()
    with pytest.raises(ollama.ResponseError, match="suffix: this model cannot fill in the middle"):
        client.generate("mine", "def add(a, b):", suffix="    return total")
    for embed in (client.embed, client.embeddings):
        with pytest.raises(ollama.ResponseError, match='a model that can "embed"'):
            embed("mine", "some text")
    with pytest.raises(ollama.ResponseError, match="not found") as missing:
        client.generate("other", "hi")
    assert missing.value.status_code == 404
