"""ColPali, ColQwen2, ColModernVBERT: vectors of pages as pictures equal those of transformers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from dovetail import LLM
from support.server_process import ServerProcess
from support.tiny_dual_encoders import data_url, part, picture
from support.tiny_pages import FAMILIES, page_vectors, write_pages

pytestmark = pytest.mark.e2e
QUERIES = ["what does the page say", "cat"]
SIZES = [(48, 48), (61, 33), (30, 90)]


def shown(image: Any) -> dict[str, Any]:
    """Return the prompt of a page."""
    return {"prompt": "", "multi_modal_data": {"image": image}}


@pytest.mark.parametrize("family", FAMILIES)
def test_vectors_equal_transformers(family: str, tmp_path: Path) -> None:
    """Pages of odd sizes in one batch, then queries; ColQwen2's are computed in pieces."""
    pieces = {"max_num_batched_tokens": 16} if family == "colqwen2" else {}
    model, processor = write_pages(tmp_path / "model", family)
    pages = [picture(*size, seed=at) for at, size in enumerate(SIZES)]
    with LLM(model=str(tmp_path / "model"), dtype="float32", **pieces) as llm:
        found = llm.encode([shown(one) for one in pages], use_tqdm=False)
        asked = llm.encode(QUERIES, prompt_name="query", use_tqdm=False)
        scores = llm.score(QUERIES[0], [shown(one) for one in pages], use_tqdm=False)
    for given, result in zip([*QUERIES, *pages], [*asked, *found], strict=True):
        expected = page_vectors(model, processor, given)
        np.testing.assert_allclose(result.outputs.data, expected, atol=1e-4)
    vectors = [torch.from_numpy(one.outputs.data.copy()) for one in (asked[0], *found)]
    want = processor.score_retrieval(vectors[:1], vectors[1:])[0]
    np.testing.assert_allclose([one.outputs.score for one in scores], want, atol=1e-3)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[httpx.Client, Any, Any]]:
    folder = tmp_path_factory.mktemp("pages") / "model"
    model, processor = write_pages(folder, "colqwen2")
    flags = ("--port", "0", "--dtype", "float32", "--served-model-name", "pages")
    overrides = '{"is_matryoshka": true}'
    with (
        ServerProcess(str(folder), *flags, "--hf-overrides", overrides) as server,
        server.wait_ready().client() as client,
    ):
        yield client, model, processor


def test_vectors_scores_and_ranking_over_http(served: tuple[httpx.Client, Any, Any]) -> None:
    client, model, processor = served
    pages = [picture(*size, seed=at) for at, size in enumerate(SIZES)]
    query = page_vectors(model, processor, QUERIES[0])
    vectors = [page_vectors(model, processor, one) for one in pages]
    want = [float((query @ one.T).max(axis=1).sum()) for one in vectors]

    def sent(path: str, **body: Any) -> Any:
        answer = client.post(path, json={"model": "pages", **body})
        assert answer.status_code == 200, answer.text
        return answer.json()

    inputs = [{"image": data_url(pages[0])}, {"image": data_url(pages[1])}]
    for found, expected in zip(sent("/pooling", input=inputs)["data"], vectors, strict=False):
        np.testing.assert_allclose(found["data"], expected, atol=1e-4)
    short = sent("/pooling", input=inputs[0], dimensions=8)["data"][0]["data"]
    cut = vectors[0][:, :8] / np.linalg.norm(vectors[0][:, :8], axis=1, keepdims=True)
    np.testing.assert_allclose(short, cut, atol=1e-4)
    asked = sent("/pooling", input=QUERIES[0], input_type="query")["data"][0]["data"]
    np.testing.assert_allclose(asked, query, atol=1e-4)
    documents: list[dict[str, Any]] = [{"content": [part(one)]} for one in pages]
    scores = [
        one["score"] for one in sent("/score", queries=QUERIES[0], documents=documents)["data"]
    ]
    np.testing.assert_allclose(scores, want, atol=1e-3)
    documents = [{"image": data_url(one)} for one in pages]
    ranked = sent("/rerank", query=QUERIES[0], documents=documents)["results"]
    assert [one["index"] for one in ranked] == sorted(range(3), key=lambda at: -want[at])
    np.testing.assert_allclose(
        [one["relevance_score"] for one in ranked], sorted(want)[::-1], atol=1e-3
    )
    messages = [{"role": "user", "content": [part(pages[2])]}]
    found = sent("/pooling", messages=messages)["data"][0]["data"]
    np.testing.assert_allclose(found, vectors[2], atol=1e-4)
    wrong = [{"image": data_url(pages[0]), "text": "cat"}]
    answer = client.post("/rerank", json={"model": "pages", "query": "cat", "documents": wrong})
    assert answer.status_code in (400, 422)
