"""SPLADE: weights of the vocabulary's words equal those computed from transformers' logits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from dovetail import LLM
from dovetail.errors import ConfigError
from dovetail_testing.tiny.families import VOCAB_SIZE
from dovetail_testing.tiny.models import write_tiny_tokenizer
from support.server_process import ServerProcess

pytestmark = pytest.mark.e2e
SHAPE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "Bert": ("BertConfig", {**SHAPE, "intermediate_size": 48}),
    "Roberta": ("RobertaConfig", {**SHAPE, "intermediate_size": 48, "layer_norm_eps": 1e-5}),
    "XLMRoberta": ("XLMRobertaConfig", {**SHAPE, "intermediate_size": 48}),
    "DistilBert": ("DistilBertConfig", {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48}),
}
PROMPTS = [[5, 9, 12, 30], [7], list(range(3, 40))]
RULE = {"pooling_strategy": "max", "activation_function": "relu", "word_embedding_dimension": None}


def write_splade(folder: Path, family: str = "Bert", **rule: Any) -> Any:
    """Write a sparse encoder in the layout of sentence-transformers; return its model."""
    import transformers

    config_class, sizes = FAMILIES[family]
    config = getattr(transformers, config_class)(vocab_size=VOCAB_SIZE, **sizes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        model = getattr(transformers, f"{family}ForMaskedLM")(config).eval()
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    write_tiny_tokenizer(folder)
    start = "sentence_transformers.sparse_encoder.models"
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": f"{start}.MLMTransformer"},
        {"idx": 1, "name": "1", "path": "1_SpladePooling", "type": f"{start}.SpladePooling"},
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_SpladePooling").mkdir()
    (folder / "1_SpladePooling" / "config.json").write_text(json.dumps(RULE | rule))
    return model


def weights(model: Any, ids: list[int]) -> np.ndarray:
    """Return max over tokens of log(1 + relu(logits)), in numpy."""
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([ids])).logits[0].double().numpy()
    return np.log1p(np.maximum(logits, 0)).max(axis=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_equal_transformers(family: str, tmp_path: Path) -> None:
    model = write_splade(tmp_path / "model", family)
    with LLM(model=str(tmp_path / "model"), dtype="float32", max_model_len=64) as llm:
        results = llm.embed(PROMPTS, use_tqdm=False)
    for ids, result in zip(PROMPTS, results, strict=True):
        expected = weights(model, ids)
        np.testing.assert_allclose(result.outputs.embedding, expected, atol=1e-4)
        assert 0 < np.count_nonzero(expected) < VOCAB_SIZE, "the case is neither empty nor full"


def test_by_the_class_name_of_vllm(tmp_path: Path) -> None:
    """A folder without modules.json is named by --hf-overrides, as its model cards say."""
    folder = tmp_path / "model"
    model = write_splade(folder)
    (folder / "modules.json").unlink()
    overrides = {"architectures": ["BertSpladeSparseEmbeddingModel"]}
    with LLM(model=str(folder), dtype="float32", hf_overrides=overrides) as llm:
        (result,) = llm.embed(PROMPTS[:1], use_tqdm=False)
    np.testing.assert_allclose(result.outputs.embedding, weights(model, PROMPTS[0]), atol=1e-4)


@pytest.mark.parametrize(
    "rule", [{"pooling_strategy": "sum"}, {"activation_function": "log1p_relu"}]
)
def test_another_rule_is_refused(rule: dict[str, str], tmp_path: Path) -> None:
    write_splade(tmp_path / "model", **rule)
    with pytest.raises(ConfigError, match="is not supported"):
        LLM(model=str(tmp_path / "model"))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[httpx.Client, Any, Any]]:
    from transformers import AutoTokenizer

    folder = tmp_path_factory.mktemp("splade") / "model"
    model = write_splade(folder)
    with (
        ServerProcess(str(folder), "--port", "0", "--dtype", "float32") as server,
        server.wait_ready().client() as client,
    ):
        yield client, model, AutoTokenizer.from_pretrained(folder)


def test_embed_sparse_over_http(served: Any) -> None:
    client, model, tokenizer = served
    texts = ["the cat sat", "a dog"]
    answer = client.post("/embed_sparse", json={"inputs": texts})
    assert answer.status_code == 200, answer.text
    for text, entries in zip(texts, answer.json(), strict=True):
        expected = weights(model, tokenizer(text)["input_ids"])
        assert [one["index"] for one in entries] == np.flatnonzero(expected > 0).tolist()
        values = [one["value"] for one in entries]
        np.testing.assert_allclose(values, expected[expected > 0], atol=1e-4)


def test_the_same_vector_whole(served: Any) -> None:
    client, model, tokenizer = served
    body = {"input": "the cat sat", "model": client.get("/v1/models").json()["data"][0]["id"]}
    (found,) = client.post("/v1/embeddings", json=body).json()["data"]
    expected = weights(model, tokenizer("the cat sat")["input_ids"])
    np.testing.assert_allclose(found["embedding"], expected, atol=1e-4)
    assert client.get("/info").json()["model_type"] == {"embedding": {"pooling": "splade"}}
