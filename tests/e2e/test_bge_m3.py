"""BGE-M3: three kinds of vectors equal its published formulas over transformers' XLM-RoBERTa."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from dovetail import LLM
from dovetail.errors import ConfigError, RequestError
from support.server_process import ServerProcess

pytestmark = pytest.mark.e2e
WORDS = ["<s>", "<pad>", "</s>", "<unk>", "what", "is", "bge", "m3", "the", "cat", "sat", "on"]
TEXTS = ["what is bge m3", "the cat sat on the cat the", "sat beside the cat"]
CLS, EOS = 0, 2


def write_bge_m3(folder: Path) -> dict[str, Any]:
    """Write a tiny BGE-M3 in its published layout; return XLM-RoBERTa and the two matrices."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast, XLMRobertaConfig, XLMRobertaModel

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        config = XLMRobertaConfig(
            vocab_size=len(WORDS), hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
            intermediate_size=48, max_position_embeddings=66, type_vocab_size=1,
        )  # fmt: skip
        model = XLMRobertaModel(config).eval()
        for parameter in model.parameters():
            if parameter.dim() > 1:
                torch.nn.init.normal_(parameter, std=0.3)
        colbert, sparse = torch.nn.Linear(32, 32), torch.nn.Linear(32, 1)
        torch.nn.init.normal_(sparse.weight)
    model.save_pretrained(folder)
    torch.save(colbert.state_dict(), folder / "colbert_linear.pt")
    torch.save(sparse.state_dict(), folder / "sparse_linear.pt")
    words = Tokenizer(models.WordLevel(dict(zip(WORDS, range(len(WORDS)), strict=True)), "<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", CLS), ("</s>", EOS)]
    )
    special = {"bos_token": "<s>", "eos_token": "</s>", "cls_token": "<s>", "sep_token": "</s>"}
    PreTrainedTokenizerFast(
        tokenizer_object=words, **special, pad_token="<pad>", unk_token="<unk>"
    ).save_pretrained(folder)
    return {"model": model, "colbert": colbert, "sparse": sparse, "words": words}


def length_1(vectors: np.ndarray) -> np.ndarray:
    """Return vectors of length 1."""
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def expected(made: dict[str, Any], text: str) -> tuple[np.ndarray, dict[int, float], np.ndarray]:
    """Return (dense vector, weight of each token id, vectors of tokens): the formulas of the
    published model's `dense_vecs`, `lexical_weights` and `colbert_vecs`."""
    ids = made["words"].encode(text).ids
    with torch.inference_mode():
        states = made["model"](input_ids=torch.tensor([ids])).last_hidden_state[0]
        raw = torch.relu(made["sparse"](states))[:, 0].numpy()
        vectors = made["colbert"](states[1:]).numpy()
    weights: dict[int, float] = {}
    for one, weight in zip(ids, raw.tolist(), strict=True):
        if one > 3 and weight > 0:
            weights[one] = max(weight, weights.get(one, 0.0))
    return length_1(states[0].numpy()), weights, length_1(vectors)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("bge") / "model"
    return {"folder": folder, **write_bge_m3(folder)}


def test_three_kinds_of_vectors_equal_the_formulas(made: dict[str, Any]) -> None:
    with LLM(model=str(made["folder"]), dtype="float32", max_model_len=64) as llm:
        dense = llm.embed(TEXTS, use_tqdm=False)
        weights = llm.encode(TEXTS, pooling_task="token_classify", use_tqdm=False)
        tokens = llm.encode(TEXTS, pooling_task="token_embed", use_tqdm=False)
        (score,) = llm.score(TEXTS[0], TEXTS[1], use_tqdm=False)
        (empty,) = llm.encode([[CLS, EOS]], pooling_task="token_classify", use_tqdm=False)
        (bare,) = llm.encode([[9, 10]], pooling_task="token_embed", use_tqdm=False)
    for text, vector, weight, multi in zip(TEXTS, dense, weights, tokens, strict=True):
        of_text, by_id, of_tokens = expected(made, text)
        np.testing.assert_allclose(vector.outputs.embedding, of_text, atol=1e-4)
        np.testing.assert_allclose(multi.outputs.data, of_tokens, atol=1e-4)
        ids = made["words"].encode(text).ids[1:-1]
        assert len(weight.outputs.data) == len(ids)
        for one in {one for one in ids if one > 3}:
            largest = max(w for i, w in zip(ids, weight.outputs.data, strict=True) if i == one)
            assert largest == pytest.approx(by_id.get(one, 0.0), abs=1e-4)
    assert any(expected(made, text)[1] for text in TEXTS), "some weights are not 0"
    first, second = (expected(made, text)[0] for text in TEXTS[:2])
    assert score.outputs.score == pytest.approx(float(first @ second), abs=1e-4)
    assert empty.outputs.data.shape == (0,)
    assert bare.outputs.data.shape == (2, 32), "without special tokens none is left out"


def test_late_interaction_scores_and_the_name_of_vllm(made: dict[str, Any]) -> None:
    overrides = {"architectures": ["BgeM3EmbeddingModel"]}
    pooler = {"pooling_type": "ALL"}
    with LLM(
        model=str(made["folder"]), dtype="float32", hf_overrides=overrides, pooler_config=pooler
    ) as llm:
        (score,) = llm.score(TEXTS[0], TEXTS[1], use_tqdm=False)
    query, document = (expected(made, text)[2] for text in TEXTS[:2])
    assert score.outputs.score == pytest.approx((query @ document.T).max(1).sum(), abs=1e-4)


def test_a_missing_file_is_named(made: dict[str, Any], tmp_path: Path) -> None:
    for file in made["folder"].iterdir():
        if file.name != "sparse_linear.pt":
            (tmp_path / file.name).symlink_to(file)
    with pytest.raises(ConfigError, match=r"sparse_linear\.pt"):
        LLM(model=str(tmp_path), dtype="float32")
    (tmp_path / "colbert_linear.pt").unlink()
    with (
        LLM(model=str(tmp_path), dtype="float32", runner="pooling") as llm,
        pytest.raises(RequestError, match="does not do token_classify"),
    ):
        llm.encode(TEXTS, pooling_task="token_classify", use_tqdm=False)


@pytest.fixture(scope="module")
def client(made: dict[str, Any]) -> Iterator[httpx.Client]:
    with (
        ServerProcess(str(made["folder"]), "--port", "0", "--dtype", "float32") as server,
        server.wait_ready().client() as client,
    ):
        yield client


def test_over_http(client: httpx.Client, made: dict[str, Any]) -> None:
    name = client.get("/v1/models").json()["data"][0]["id"]
    want = [expected(made, text) for text in TEXTS]
    dense = client.post("/v1/embeddings", json={"model": name, "input": TEXTS}).json()["data"]
    sparse = client.post("/embed_sparse", json={"inputs": TEXTS}).json()
    body = {"model": name, "input": TEXTS, "task": "token_embed"}
    multi = client.post("/pooling", json=body).json()["data"]
    body = {"model": name, "query": TEXTS[0], "documents": TEXTS[1:]}
    ranked = client.post("/rerank", json=body).json()["results"]
    for at, (of_text, by_id, of_tokens) in enumerate(want):
        np.testing.assert_allclose(dense[at]["embedding"], of_text, atol=1e-4)
        np.testing.assert_allclose(multi[at]["data"], of_tokens, atol=1e-4)
        assert [one["index"] for one in sparse[at]] == sorted(by_id)
        values = [one["value"] for one in sparse[at]]
        np.testing.assert_allclose(values, [by_id[one] for one in sorted(by_id)], atol=1e-4)
    scores = {one["index"]: one["relevance_score"] for one in ranked}
    for at in (0, 1):
        assert scores[at] == pytest.approx(float(want[0][0] @ want[at + 1][0]), abs=1e-4)
