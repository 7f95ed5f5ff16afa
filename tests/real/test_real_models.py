"""Real models, served as they are: what they go on with, logprobs beside the reference, chats.

Run by `make test-real`, which says where the models are: REAL_MODELS names the folder that
benchmarks/real_models.py fills, MODEL any other checkpoint instead, LLAMACPP a virtual environment.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import jsonschema
import pytest

from dovetail import LLM, SamplingParams
from support.server_process import ServerProcess

pytestmark = [pytest.mark.real, pytest.mark.timeout(1200)]
ROOT = Path(__file__).resolve().parents[2]
GEMMA, CHAT = "gemma-3-270m-q4_k_m", "qwen2.5-coder-0.5b-instruct"
FLAGS = ("--max-model-len", "2048")
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "languages": {"type": "array", "items": {"type": "string"}, "maxItems": 3},
    },
    "required": ["name", "age", "languages"],
    "additionalProperties": False,
}
QUESTION = "Write a Python function that returns the larger of two numbers."


def folder() -> Path:
    """Return the folder of real models; the test fails where it is not named."""
    named = os.environ.get("REAL_MODELS")
    assert named, "REAL_MODELS names no folder: run `make test-real`"
    return Path(named)


def model_of(name: str) -> Path:
    """Return a model that was fetched; skip where another checkpoint was named instead."""
    if os.environ.get("MODEL"):
        pytest.skip(f"MODEL names another checkpoint than {name}")
    path = folder() / f"{name}.gguf"
    assert path.exists(), f"{path} is not there: run `make test-real`"
    return path


@pytest.fixture(params=[GEMMA, CHAT])
def any_model(request: pytest.FixtureRequest) -> Path:
    """Return each of the models, or once the one that MODEL names."""
    named = os.environ.get("MODEL")
    if named and request.param != GEMMA:
        pytest.skip("MODEL names one checkpoint")
    return Path(named) if named else model_of(request.param)


@pytest.fixture
def quality(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the quality bench."""
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module("benchmarks.quality")


def test_what_the_base_model_knows() -> None:
    with LLM(model=str(model_of(GEMMA)), max_model_len=1024) as llm:
        params = SamplingParams(temperature=0, max_tokens=1)
        (result,) = llm.generate(["The chemical symbol for gold is"], params, use_tqdm=False)
    assert result.outputs[0].text == " Au"


def test_logprobs_are_the_references(any_model: Path, quality: ModuleType) -> None:
    """Perplexity, mean distance and top-1 agreement by default flags, beside llama.cpp's own."""
    words = [str(any_model), "--rows", "file;llama.cpp", "--work", str(folder() / "quality")]
    if os.environ.get("LLAMACPP"):
        words += ["--llamacpp", os.environ["LLAMACPP"]]
    asked = quality.parser().parse_args(words)
    rows = {row["row"]: row for row in quality.measure(any_model, quality.chosen(asked), asked)}
    if "error" not in rows["llama.cpp"]:
        assert rows["llama.cpp"]["same_ids"], rows
    assert rows["file"]["missed"] == [], rows


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    """Return a client of the chat model's server, or of the one that MODEL names."""
    named = os.environ.get("MODEL")
    path = Path(named) if named else model_of(CHAT)
    with (
        ServerProcess(str(path), "--port", "0", *FLAGS) as server,
        server.wait_ready().client(timeout=400.0) as made,
    ):
        if named and "chat template" in ask(made, status=None).text:
            pytest.skip("the checkpoint has no chat template")
        yield made


def ask(client: httpx.Client, status: int | None = 200, **fields: Any) -> httpx.Response:
    """Return the answer to the question, greedy."""
    messages = [{"role": "user", "content": fields.pop("content", QUESTION)}]
    body = {"messages": messages, "temperature": 0, "max_tokens": 96, **fields}
    answer = client.post("/v1/chat/completions", json=body)
    assert status in (None, answer.status_code), answer.text
    return answer


def test_a_chat_by_the_models_own_template(client: httpx.Client) -> None:
    choice = ask(client).json()["choices"][0]
    assert "def " in choice["message"]["content"] and "return" in choice["message"]["content"]
    short = ask(client, content="Answer with one word: what is the capital of France?").json()
    assert "Paris" in short["choices"][0]["message"]["content"]
    assert short["choices"][0]["finish_reason"] == "stop"  # the template's own end of a turn


def test_streamed_equals_whole(client: httpx.Client) -> None:
    whole = ask(client).json()["choices"][0]
    pieces, ends = [], []
    for line in ask(client, stream=True).text.splitlines():
        if line.startswith("data: {"):
            choice = json.loads(line.removeprefix("data: "))["choices"][0]
            pieces.append(choice["delta"].get("content") or "")
            ends.append(choice["finish_reason"])
    assert "".join(pieces) == whole["message"]["content"]
    assert len([piece for piece in pieces if piece]) > 10
    assert ends[-1] == whole["finish_reason"]


def test_an_answer_that_a_schema_holds(client: httpx.Client) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    content = "Describe a programmer called Ada who is 36 and knows Python and C."
    choice = ask(client, content=content, response_format=form).json()["choices"][0]
    found = json.loads(choice["message"]["content"])
    jsonschema.validate(found, PERSON)
    assert choice["finish_reason"] == "stop" and "Ada" in found["name"] and found["age"] == 36
