"""`dovetail serve FILE.gguf` without a flag: what a file is for is what its server answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from openai import OpenAI

from support.gguf_encoders import Case, made, write
from support.server_process import ServerProcess
from support.tiny_encoders import word_tokenizer

pytest.importorskip("gguf")
pytestmark = pytest.mark.e2e

TEXTS = ["the dog runs", "a lazy brown cat sees the old house"]
EMBEDS = Case(architecture="bert", name="BertModel", model_type="bert", pooling="mean")


def _cut_positions(weights: Any) -> Any:
    name = "embeddings.position_embeddings.weight"
    return weights | {name: weights[name][2:]}


RANKS = Case(
    architecture="bert",
    name="RobertaForSequenceClassification",
    model_type="roberta",
    fields={"pad_token_id": 1, "type_vocab_size": 1},
    changed=_cut_positions,
    pooling="rank",
)


@contextmanager
def served(case: Case, file: Path, **more: Any) -> Iterator[tuple[httpx.Client, Any, str]]:
    """Serve a case's file; yield a client of the server, transformers' model, and the address."""
    count = len(more.get("classifier.output_labels", ()))
    model = made(case, **({"num_labels": count} if count else {}))
    write(case, model, file, more=more)
    with ServerProcess(str(file), "--port", "0", "--dtype", "float32") as process:
        process.wait_ready()
        with process.client() as client:
            yield client, model, str(client.base_url)


def ids_of(text: str, second: str | None = None) -> torch.Tensor:
    return torch.tensor([word_tokenizer().encode(text, second).ids])


def test_an_embedding_model_embeds(tmp_path: Path) -> None:
    with served(EMBEDS, tmp_path / "model.gguf") as (client, model, address):
        openai = OpenAI(base_url=f"{address}/v1".replace("//v1", "/v1"), api_key="none")
        name = openai.models.list().data[0].id
        found = openai.embeddings.create(model=name, input=TEXTS, encoding_format="float")
        assert client.post("/v1/completions", json={"prompt": "a"}).status_code == 404
    for text, one in zip(TEXTS, found.data, strict=True):
        with torch.inference_mode():
            mean = model(ids_of(text)).last_hidden_state[0].mean(0)
        wanted = torch.nn.functional.normalize(mean, dim=-1)
        torch.testing.assert_close(torch.tensor(one.embedding), wanted, rtol=0, atol=1e-5)


def test_a_reranker_ranks_and_scores(tmp_path: Path) -> None:
    labels = {"classifier.output_labels": ["LABEL_0"]}
    with served(RANKS, tmp_path / "model.gguf", **labels) as (client, model, _):
        ranked = client.post("/v1/rerank", json={"query": "the dog", "documents": TEXTS}).json()
        body = {"text_1": "the dog", "text_2": TEXTS}
        scores = [one["score"] for one in client.post("/v1/score", json=body).json()["data"]]
    with torch.inference_mode():
        wanted = [torch.sigmoid(model(ids_of("the dog", t)).logits[0, 0]).item() for t in TEXTS]
    assert scores == pytest.approx(wanted, abs=1e-5)
    found = {one["index"]: one["relevance_score"] for one in ranked["results"]}
    assert [found[0], found[1]] == pytest.approx(wanted, abs=1e-5)


def test_a_classifier_classifies(tmp_path: Path) -> None:
    labels = ["good", "bad", "neither"]
    more = {"classifier.output_labels": labels}
    with served(RANKS, tmp_path / "model.gguf", **more) as (client, model, _):
        answer = client.post("/classify", json={"input": TEXTS[1]}).json()["data"][0]
    with torch.inference_mode():
        wanted = model(ids_of(TEXTS[1])).logits[0].softmax(-1)
    assert answer["probs"] == pytest.approx(wanted.tolist(), abs=1e-5)
    assert answer["label"] == labels[int(wanted.argmax())]
