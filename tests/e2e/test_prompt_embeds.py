"""Embeddings as prompts: over HTTP by the openai client and offline, against transformers."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from dovetail import LLM, SamplingParams
from dovetail.errors import ConfigError, RequestError
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support.server_process import ServerProcess

pytestmark = pytest.mark.e2e
openai = pytest.importorskip("openai")

FLAGS = ("--max-model-len", "120", "--dtype", "float32", "--served-model-name", "tiny")
IDS = [5, 9, 17, 33, 60, 41, 12, 7, 22, 30, 11, 19, 50, 3, 44, 8, 27, 36]
PARAMS = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)


@pytest.fixture(scope="module", params=["LlamaForCausalLM", "Gemma2ForCausalLM"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("embeds"), request.param)


@pytest.fixture(scope="module")
def vectors(folder: Path) -> torch.Tensor:
    """Return vectors that are those of no tokens: between two of them each."""
    table = loaded(folder).get_input_embeddings()
    with torch.no_grad():
        found = table(torch.tensor(IDS)) + 0.5 * table(torch.tensor(IDS[::-1]))
    return torch.as_tensor(found)


@pytest.fixture(scope="module")
def wanted(folder: Path, vectors: torch.Tensor) -> list[int]:
    """Return the greedy tokens that transformers draws after the vectors."""
    drawn = loaded(folder).generate(
        inputs_embeds=vectors[None], max_new_tokens=8, min_new_tokens=8, do_sample=False
    )
    return [int(token) for token in drawn[0]]


def loaded(folder: Path) -> Any:
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def penalized_greedy(folder: Path, vectors: torch.Tensor) -> list[int]:
    """Return the tokens by transformers' model: what was drawn is less likely, the prompt's places
    count as no token. (Its generate() refuses the penalty for embeddings.)"""
    model = loaded(folder)
    table, drawn, x = model.get_input_embeddings(), [], vectors[None]
    for _ in range(8):
        with torch.no_grad():
            logits = model(inputs_embeds=x).logits[0, -1]
        seen = logits[drawn]
        logits[drawn] = torch.where(seen > 0, seen / 1.5, seen * 1.5)
        drawn.append(int(logits.argmax()))
        x = torch.cat([x, table(torch.tensor([drawn[-1:]]))], dim=1).detach()
    return drawn


def saved(vectors: torch.Tensor) -> str:
    file = io.BytesIO()
    torch.save(vectors.clone(), file)
    return base64.b64encode(file.getvalue()).decode()


def as_safetensors(vectors: torch.Tensor) -> str:
    from safetensors.torch import save

    return base64.b64encode(save({"x": vectors.contiguous()})).decode()


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="whole"),
        pytest.param({"max_num_batched_tokens": 8, "max_num_seqs": 4}, id="in-pieces"),
        pytest.param({"tensor_parallel_size": 2}, id="ranks", marks=pytest.mark.slow),
    ],
)
def test_offline_beside_tokens(
    folder: Path, vectors: torch.Tensor, wanted: list[int], settings: dict[str, Any]
) -> None:
    prompt = {"prompt_embeds": vectors}
    flags: dict[str, Any] = {"dtype": "float32", "max_model_len": 120, "block_size": 8}
    with LLM(model=str(folder), enable_prompt_embeds=True, **flags, **settings) as llm:
        others = [{"prompt_token_ids": IDS}, prompt, {"prompt_embeds": vectors[None, :-1]}]
        plain, first, shorter = (llm.generate([one], PARAMS)[0] for one in others)
        together = llm.generate([others[0], prompt, others[2], prompt], PARAMS)
        assert list(first.outputs[0].token_ids) == wanted
        drawn = [one.outputs[0].token_ids for one in together]
        assert drawn == [one.outputs[0].token_ids for one in (plain, first, shorter, first)]
        assert first.num_cached_tokens == 0, "another prompt's blocks, by the ids that stand there"
        assert together[1].num_cached_tokens == 16
        assert together[2].num_cached_tokens == 16, "its own blocks of before"
        other = llm.generate([{"prompt_embeds": vectors.flip(0)}], PARAMS)[0]
        assert other.num_cached_tokens == 0
        again = SamplingParams(
            temperature=0.0, max_tokens=8, ignore_eos=True, repetition_penalty=1.5
        )
        penalized = llm.generate([prompt], again)[0].outputs[0].token_ids
    assert list(penalized) == penalized_greedy(folder, vectors)


def test_what_is_refused_offline(folder: Path, vectors: torch.Tensor) -> None:
    flags: dict[str, Any] = {"dtype": "float32", "max_model_len": 120}
    refused = pytest.raises(RequestError, match="not accepted")
    with LLM(model=str(folder), **flags) as llm, refused:
        llm.generate([{"prompt_embeds": vectors}])
    with LLM(model=str(folder), enable_prompt_embeds=True, **flags) as llm:
        for wrong in (vectors[:, :-1], vectors[0], vectors[:0], vectors.long(), "text"):
            with pytest.raises(RequestError) as told:
                llm.generate([{"prompt_embeds": wrong}])
            assert told.value.where == "prompt_embeds"
        with pytest.raises(RequestError, match="finite"):
            llm.generate([{"prompt_embeds": vectors * torch.inf}])
        params = SamplingParams(prompt_logprobs=1)
        with pytest.raises(RequestError, match="logprobs"):
            llm.generate([{"prompt_embeds": vectors}], params)


def test_a_model_that_adds_to_its_tokens_says_so(tmp_path: Path) -> None:
    folder = write_tiny_checkpoint(tmp_path, "BloomForCausalLM")
    with pytest.raises(ConfigError, match="tokens alone"):
        LLM(model=str(folder), enable_prompt_embeds=True, dtype="float32")


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[Any]:
    with ServerProcess(str(folder), "--port", "0", *FLAGS, "--enable-prompt-embeds") as server:
        url = server.wait_ready().url
        with openai.OpenAI(api_key="key", base_url=f"{url}/v1", max_retries=0) as made:
            yield made


def complete(client: Any, embeds: Any, prompt: Any = "", **fields: Any) -> Any:
    asked = {"model": "tiny", "temperature": 0, "max_tokens": 8}
    extra = {"prompt_embeds": embeds, "ignore_eos": True, "return_token_ids": True}
    return client.completions.create(prompt=prompt, extra_body=extra, **asked, **fields)


def test_over_http(client: Any, vectors: torch.Tensor, wanted: list[int]) -> None:
    for data in (saved(vectors), as_safetensors(vectors), as_safetensors(vectors[None])):
        told = complete(client, data)
        assert told.choices[0].token_ids == wanted
        assert told.usage.prompt_tokens == len(IDS)
    parts = complete(client, saved(vectors), stream=True)
    assert [t for part in parts for c in part.choices for t in c.token_ids] == wanted
    several = complete(client, [saved(vectors), saved(vectors[:5])], [IDS, IDS[:3]])
    assert [c.index for c in several.choices] == [0, 1, 2, 3]
    assert several.choices[0].token_ids == wanted
    assert several.choices[2].token_ids == complete(client, None, IDS).choices[0].token_ids


@pytest.mark.parametrize(
    ("change", "fields", "where"),
    [
        (lambda v: "?", {}, "prompt_embeds"),
        (lambda v: saved(v[:, 1:]), {}, "prompt_embeds"),
        (lambda v: [saved(v), saved(v[0])], {}, "prompt_embeds[1]"),
        (lambda v: saved(v.repeat(20, 1)), {}, "prompt_embeds"),
        (lambda v: saved(v.repeat(6, 1)), {"max_tokens": 100}, None),
        (saved, {"echo": True}, "echo"),
        (saved, {"suffix": "x"}, "suffix"),
        (saved, {"n": 2, "logprobs": 1}, None),
    ],
)
def test_what_is_refused(
    client: Any, vectors: torch.Tensor, change: Any, fields: dict[str, Any], where: str | None
) -> None:
    asked: dict[str, Any] = {"model": "tiny", "max_tokens": 8, **fields}
    body = {"prompt_embeds": change(vectors)}
    if where is None:
        client.completions.create(prompt="", extra_body=body, **asked)
        return
    with pytest.raises(openai.BadRequestError) as told:
        client.completions.create(prompt="", extra_body=body, **asked)
    assert told.value.param == where
