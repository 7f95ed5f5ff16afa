"""--skip-tokenizer-init: token ids in and out, and a clear refusal of everything that is text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from dovetail import LLM, SamplingParams
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support.server_process import ServerProcess

IDS = [5, 6, 7, 8, 9]
BODY: dict[str, Any] = {"prompt": IDS, "max_tokens": 6, "temperature": 0, "ignore_eos": True}
FLAGS = ("--max-model-len", "64", "--dtype", "float32")


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    """Return a checkpoint without tokenizer files, and its answer from when it had them."""
    path = write_tiny_checkpoint(tmp_path_factory.mktemp("tiny") / "model", "LlamaForCausalLM")
    with LLM(model=str(path), max_model_len=64, dtype="float32") as llm:
        params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
        (result,) = llm.generate([IDS], params, use_tqdm=False)
    for file in path.glob("tokenizer*"):
        file.unlink()
    return path, list(result.outputs[0].token_ids)


@pytest.fixture(scope="module")
def client(answer: tuple[Path, list[int]]) -> Iterator[httpx.Client]:
    args = (str(answer[0]), "--skip-tokenizer-init", "--port", "0", *FLAGS)
    with ServerProcess(*args) as server, server.wait_ready().client() as made:
        yield made
        server.process.terminate()
        assert server.wait() == 0
        assert not [line for line in server.lines if "Traceback" in line]


@pytest.mark.e2e
def test_answers_carry_token_ids_unasked(
    client: httpx.Client, answer: tuple[Path, list[int]]
) -> None:
    body = client.post("/v1/completions", json=BODY | {"logprobs": 1}).json()
    (choice,) = body["choices"]
    assert (choice["token_ids"], choice["text"]) == (answer[1], "")
    assert choice["logprobs"]["tokens"] == [f"token_id:{n}" for n in answer[1]]
    assert body["usage"]["completion_tokens"] == 6


@pytest.mark.e2e
def test_streams_carry_token_ids_too(client: httpx.Client, answer: tuple[Path, list[int]]) -> None:
    lines = client.post("/v1/completions", json=BODY | {"stream": True}).text.splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    told = [n for event in events for c in event["choices"] for n in c.get("token_ids") or ()]
    assert told == answer[1]


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/completions", BODY | {"prompt": "hello"}, "prompt"),
        ("/v1/completions", BODY | {"stop": "x"}, "stop"),
        ("/v1/completions", BODY | {"bad_words": ["x"]}, "bad_words"),
        ("/v1/completions", BODY | {"echo": True}, "prompt"),
        (
            "/v1/completions",
            BODY | {"structured_outputs": {"regex": "a"}},
            "structured_outputs.regex",
        ),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}, "messages"),
        ("/tokenize", {"prompt": "hello"}, "prompt"),
        ("/detokenize", {"tokens": [1]}, "prompt"),
    ],
)
def test_text_is_refused(path: str, body: dict[str, Any], field: str, client: httpx.Client) -> None:
    reply = client.post(path, json=body)
    error = reply.json()["error"]
    assert (reply.status_code, error["param"], error["code"]) == (400, field, "no_tokenizer")
    assert "--skip-tokenizer-init" in error["message"]


@pytest.mark.e2e
def test_an_llm_in_this_process_needs_none_either(answer: tuple[Path, list[int]]) -> None:
    path, wanted = answer
    flags = {"max_model_len": 64, "dtype": "float32", "skip_tokenizer_init": True}
    with LLM(model=str(path), **flags) as llm:
        params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
        (result,) = llm.generate([IDS], params, use_tqdm=False)
    assert (list(result.outputs[0].token_ids), result.outputs[0].text) == (wanted, "")
