"""A server of a tiny cross-encoder: scores, rankings and classes, as transformers has them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from support.server_process import ServerProcess
from support.tiny_berts import write_bert

pytestmark = pytest.mark.e2e
QUERY = "the cat"
DOCUMENTS = ["sat", "a dog.", "the cat sat, the cat sat", "z", "the cat"]
RERANKS = ["/rerank", "/v1/rerank", "/v2/rerank"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cross") / "tiny-cross-encoder"


@pytest.fixture(scope="module")
def theirs(folder: Path) -> Any:
    """Return a function: texts, or pairs of them -> transformers' logits."""
    import torch
    from transformers import AutoTokenizer

    model = write_bert(folder, labels=1)
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def logits(texts: list[Any]) -> np.ndarray:
        pairs = [(one,) if isinstance(one, str) else one for one in texts]
        with torch.no_grad():
            told = [model(**tokenizer(*pair, return_tensors="pt")).logits[0, 0] for pair in pairs]
        return torch.stack(told).numpy()

    return logits


@pytest.fixture(scope="module")
def client(folder: Path, theirs: Any) -> Iterator[httpx.Client]:
    with ServerProcess(str(folder), "--port", "0") as server, server.wait_ready().client() as made:
        yield made


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def asked(client: httpx.Client, path: str, body: Any) -> Any:
    """Return the answer to a request that succeeds."""
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def scores(client: httpx.Client, path: str = "/score", **body: Any) -> list[float]:
    """Return the scores of pairs."""
    data = asked(client, path, body)["data"]
    assert [one["index"] for one in data] == list(range(len(data)))
    return [one["score"] for one in data]


def test_scores_equal_transformers(client: httpx.Client, theirs: Any) -> None:
    pairs = [(QUERY, document) for document in DOCUMENTS]
    expected = sigmoid(theirs(pairs))
    assert np.ptp(expected) > 1e-3
    for path, names in (("/score", ("text_1", "text_2")), ("/v1/score", ("queries", "documents"))):
        body = dict(zip(names, (QUERY, DOCUMENTS), strict=True))
        np.testing.assert_allclose(scores(client, path, **body), expected, atol=1e-5)
    raw = scores(client, data_1=[QUERY] * 5, data_2=DOCUMENTS, use_activation=False)
    np.testing.assert_allclose(raw, theirs(pairs), atol=1e-5)
    swapped = scores(client, text_1=DOCUMENTS, text_2=[QUERY] * 5)
    turned = theirs([(document, QUERY) for document in DOCUMENTS])
    np.testing.assert_allclose(swapped, sigmoid(turned), atol=1e-5)
    assert not np.allclose(swapped, expected, atol=1e-4)


@pytest.mark.parametrize("path", RERANKS)
def test_documents_are_sorted(client: httpx.Client, theirs: Any, path: str) -> None:
    expected = sigmoid(theirs([(QUERY, document) for document in DOCUMENTS]))
    body = {"model": "", "query": QUERY, "documents": DOCUMENTS}
    results = asked(client, path, body)["results"]
    assert [one["index"] for one in results] == list(np.argsort(-expected, kind="stable"))
    told = [one["relevance_score"] for one in results]
    np.testing.assert_allclose(told, sorted(expected, reverse=True), atol=1e-5)
    assert [one["document"]["text"] for one in results] == [
        DOCUMENTS[one["index"]] for one in results
    ]
    objects = [{"text": one} for one in DOCUMENTS]
    bare = {"documents": objects, "top_n": 2, "return_documents": False}
    short = asked(client, path, body | bare)["results"]
    assert short == [
        {"index": one["index"], "relevance_score": one["relevance_score"]} for one in results[:2]
    ]


def test_texts_are_answered_as_text_embeddings_inference_does(
    client: httpx.Client, theirs: Any
) -> None:
    body = {"query": QUERY, "texts": DOCUMENTS, "raw_scores": True, "return_text": True}
    ranking = asked(client, "/rerank", body)
    logits = theirs([(QUERY, document) for document in DOCUMENTS])
    assert [one["index"] for one in ranking] == list(np.argsort(-logits, kind="stable"))
    np.testing.assert_allclose([o["score"] for o in ranking], sorted(logits)[::-1], atol=1e-5)
    assert ranking[0]["text"] == DOCUMENTS[ranking[0]["index"]]
    body = {"query": QUERY, "texts": ["cat " * 300], "truncate": True}
    assert len(asked(client, "/rerank", body)) == 1


def test_classes_of_one_text(client: httpx.Client, theirs: Any) -> None:
    expected = theirs(["the cat sat."])[0]
    (one,) = asked(client, "/classify", {"input": "the cat sat."})["data"]
    assert one["label"] == "LABEL_0" and one["num_classes"] == 1
    assert one["probs"] == pytest.approx([sigmoid(expected)], abs=1e-5)
    body = {"input": ["the cat sat.", "a"], "activation": False}
    told = asked(client, "/classify", body)["data"]
    assert told[0]["probs"] == pytest.approx([expected], abs=1e-5)


def test_pooling_by_task(client: httpx.Client, theirs: Any) -> None:
    answer = asked(client, "/pooling", {"input": "a cat"})
    assert answer["data"][0]["data"] == pytest.approx(sigmoid(theirs(["a cat"])), abs=1e-5)
    per_token = asked(client, "/pooling", {"input": "a cat", "task": "encode"})
    assert np.shape(per_token["data"][0]["data"]) == (answer["usage"]["prompt_tokens"], 1)


POISON = [
    ("/score", {"text_1": "a", "text_2": []}, "text_2"),
    ("/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_1"),
    ("/score", {"text_1": "", "text_2": "a"}, "text_1"),
    ("/score", {"text_1": "a", "text_2": "cat " * 200}, "text_2"),
    ("/score", {"text_1": "a", "text_2": ["b"] * 100_000}, "text_2"),
    ("/rerank", {"query": "a", "documents": []}, "documents"),
    ("/rerank", {"query": "a", "documents": ["b", ""]}, "documents[1]"),
    ("/rerank", {"query": "a"}, "documents"),
    ("/rerank", {"query": "a", "documents": ["b"], "truncate_prompt_tokens": 3}, None),
    ("/classify", {"input": ""}, "input"),
    ("/classify", {"input": [10**6]}, "input"),
    ("/pooling", {"input": "a", "task": "embed"}, "task"),
]


@pytest.mark.parametrize(("path", "body", "where"), POISON, ids=lambda one: str(one)[:40])
def test_poison(client: httpx.Client, path: str, body: Any, where: str | None) -> None:
    answer = client.post(path, json=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == (where or "truncate_prompt_tokens")


def test_vectors_are_not_its_task(client: httpx.Client) -> None:
    answer = client.post("/v1/embeddings", json={"input": "a"})
    assert answer.status_code == 404 and "embed" in answer.json()["error"]["message"]
