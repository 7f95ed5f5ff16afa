"""Endpoints of models that pool, around a fake engine: shapes, bounds, who is disturbed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
from fastapi import FastAPI

from dovetail.errors import RequestFault
from dovetail.interfaces.data.pooling_params import CLASSIFY, TOKEN_CLASSIFY, PoolingParams
from dovetail_testing.fakes.async_engine import (
    FakeAsyncEngine,
    Script,
    fake_numbers,
    fake_pooling,
    fake_spec,
)
from support.serving import app_for, call_asgi, client_of, send

VECTORS = fake_pooling(prompts={"query": "ask: "}, is_matryoshka=True)
SCORES = fake_pooling(tasks=(CLASSIFY, TOKEN_CLASSIFY), labels=("fits",))
CLASSES = fake_pooling(tasks=(CLASSIFY, TOKEN_CLASSIFY), labels=("bad", "good", "odd"))
TEXTS = ["first", "second one", "3"]


def serving(
    pooling: Any = VECTORS, script: Any = None, *, max_rows: int = 8, **how: Any
) -> tuple[FastAPI, FakeAsyncEngine]:
    """Return an application of a model that pools, and its engine."""
    spec = fake_spec(pooling=pooling, max_rows=max_rows, max_model_tokens=64)
    return app_for(engine=FakeAsyncEngine(script or Script(), spec=spec), **how)


def numbers(text: str, pooling: Any = VECTORS, **params: Any) -> list[float]:
    """Return what the fake engine tells of a text."""
    asked = PoolingParams(**{"task": pooling.tasks[0], **params})
    told: list[float] = fake_numbers([ord(one) for one in text], asked, pooling).tolist()
    return told


def told(app: FastAPI, path: str, body: Any) -> Any:
    """Return the answer to a request that succeeds."""
    answer = send(app, "POST", path, body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_many_inputs_take_turns_and_keep_their_order() -> None:
    app, engine = serving(script=lambda text, _: Script(step_s=0.001 * (len(text) % 3)))
    texts = ["x" * (1 + which % 50) for which in range(100)]
    answer = told(app, "/v1/embeddings", {"input": texts})
    assert [one["index"] for one in answer["data"]] == list(range(100))
    assert [one["embedding"] for one in answer["data"]] == [numbers(text) for text in texts]
    assert engine.most_running == 8
    assert len({request_id for request_id, _, _ in engine.pooled}) == 100
    total = sum(map(len, texts))
    assert answer["usage"] == {
        "prompt_tokens": total,
        "total_tokens": total,
        "completion_tokens": 0,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def test_a_client_that_leaves_ends_all_its_prompts() -> None:
    app, engine = serving(script=Script(hangs=True))
    asyncio.run(call_asgi(app, "/v1/embeddings", {"input": ["a"] * 20}, leaves_after=0))
    assert not engine.running and len(engine.aborted) == len(engine.pooled) == 8


def test_one_fault_ends_its_request_alone() -> None:
    def script(text: str, _: int) -> Script:
        fails = text == "bad"
        return Script(raises=RequestFault("not finite") if fails else None, hangs=text == "slow")

    app, engine = serving(script=script)
    answer = send(app, "POST", "/v1/embeddings", {"input": ["slow", "bad", "slow"]})
    assert answer.status_code == 500 and "not finite" in answer.json()["error"]["message"]
    assert not engine.running and len(engine.aborted) == 2
    assert len(told(app, "/v1/embeddings", {"input": ["good"] * 3})["data"]) == 3


def test_a_full_queue_refuses_at_once() -> None:
    app, engine = serving(max_queued=4)
    app.state.server.admission.num_inside = 1
    engine.counts = (8, 4)
    answer = send(app, "POST", "/v1/embeddings", {"input": "a"})
    assert answer.status_code == 503 and answer.headers["retry-after"]
    assert not engine.pooled


def test_answers_of_too_many_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    from dovetail_plugins.apis._pool import work

    monkeypatch.setattr(work, "MAX_NUMBERS", 20)
    app, _ = serving()
    assert send(app, "POST", "/v1/embeddings", {"input": ["a", "b"]}).status_code == 200
    answer = send(app, "POST", "/v1/embeddings", {"input": ["a", "b", "c"]})
    assert answer.status_code == 400 and "20 numbers" in answer.json()["error"]["message"]


def test_fields_reach_the_engine() -> None:
    app, engine = serving()
    answer = send(
        app,
        "POST",
        "/v1/embeddings",
        {"input": "abcdef", "dimensions": 3, "normalize": False, "truncate_prompt_tokens": 2,
         "truncation_side": "left", "request_id": "mine", "user": "me", "color": "red"},
    )  # fmt: skip
    ((request_id, params, ids),) = engine.pooled
    assert (request_id, params.dimensions, params.is_normalized) == ("mine", 3, False)
    assert ids == (ord("e"), ord("f"))
    assert answer.headers["x-dovetail-ignored-fields"] == "user, color"
    strict, _ = serving(strict_request_fields=True)
    assert send(strict, "POST", "/v1/embeddings", {"input": "a", "color": 1}).status_code == 400


def test_requests_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    app, _ = serving(enable_log_requests=True)
    with caplog.at_level(logging.INFO, logger="dovetail.server"):
        told(app, "/v1/embeddings", {"input": TEXTS, "request_id": "mine"})
    assert "request mine: 3 prompts to embed" in caplog.messages
    assert any(line.startswith("request mine ended: stop; 16 tokens") for line in caplog.messages)


def test_text_embeddings_inference() -> None:
    app, engine = serving()
    assert told(app, "/embed", {"inputs": "first"}) == [numbers("first")]
    body = {"inputs": TEXTS, "normalize": False, "prompt_name": "query"}
    plain = [numbers("ask: " + text, is_normalized=False) for text in TEXTS]
    assert told(app, "/embed", body) == plain
    per_token = told(app, "/embed_all", {"inputs": "ab"})
    assert per_token == [numbers("ab", task="token_embed", is_normalized=False)]
    dense = send(app, "POST", "/embed_sparse", {"inputs": "a"})
    assert dense.status_code == 400 and "dense vectors" in dense.json()["error"]
    long = {"inputs": "x" * 100}
    assert send(app, "POST", "/embed", long).json()["error_type"] == "Validation"
    told(app, "/embed", long | {"truncate": True})
    assert len(engine.pooled[-1][2]) == 64
    pair = {"source_sentence": "a", "sentences": TEXTS}
    cosines = [float(np.dot(numbers("a"), numbers(text))) for text in TEXTS]
    assert told(app, "/similarity", {"inputs": pair}) == pytest.approx(cosines, abs=1e-6)
    info = send(app, "GET", "/info").json()
    assert info["model_type"] == {"embedding": {"pooling": "fake"}}
    assert info["max_client_batch_size"] == 8192 and info["max_input_length"] == 64


def test_predictions_of_text_embeddings_inference() -> None:
    app, _ = serving(CLASSES)
    probabilities = numbers("ab", CLASSES)
    best = sorted(zip(probabilities, CLASSES.labels, strict=True), reverse=True)
    single = told(app, "/predict", {"inputs": "ab"})
    assert [(one["score"], one["label"]) for one in single] == best
    assert told(app, "/predict", {"inputs": [["ab"], ["ab"]]}) == [single, single]
    raw = told(app, "/predict", {"inputs": "ab", "raw_scores": True})
    assert raw[0]["score"] == max(numbers("ab", CLASSES, is_activated=False))
    pair = told(app, "/predict", {"inputs": ["ab", "c"]})  # one text to this tokenizer
    assert pair == told(app, "/predict", {"inputs": "abc"}) != single
    info = send(app, "GET", "/info").json()
    assert info["model_type"]["classifier"]["id2label"] == {"0": "bad", "1": "good", "2": "odd"}


def test_classes_have_names() -> None:
    app, _ = serving(CLASSES)
    (one,) = told(app, "/classify", {"input": "ab"})["data"]
    probabilities = numbers("ab", CLASSES)
    assert one == {
        "index": 0,
        "label": CLASSES.labels[int(np.argmax(probabilities))],
        "probs": probabilities,
        "num_classes": 3,
    }
    answer = send(app, "POST", "/score", {"text_1": "a", "text_2": "b"})
    assert answer.status_code == 400 and "has 3" in answer.json()["error"]["message"]


def test_a_model_of_vectors_scores_by_their_angle() -> None:
    app, engine = serving()
    expected = [float(np.dot(numbers("a"), numbers(text))) for text in TEXTS]
    data = told(app, "/v1/score", {"text_1": "a", "text_2": TEXTS})["data"]
    assert [one["score"] for one in data] == pytest.approx(expected, abs=1e-6)
    assert len(engine.pooled) == 4  # each text once
    results = told(app, "/v1/rerank", {"query": "a", "documents": TEXTS, "top_n": 1})["results"]
    assert [one["index"] for one in results] == [int(np.argmax(expected))]
    for query, documents, place in (
        ("a", ["b", "x" * 99], "documents[1]"),
        ("x" * 99, ["b"], "query"),
    ):
        refused = send(app, "POST", "/rerank", {"query": query, "documents": documents})
        message = refused.json()["error"]["message"]
        assert refused.status_code == 400 and message.startswith(f"{place}: the prompt has"), (
            message
        )


def test_what_a_model_is_for() -> None:
    for pooling, words in (
        (VECTORS, ["embed", "token_embed", "score"]),
        (SCORES, ["classify", "token_classify", "score"]),
        (CLASSES, ["classify", "token_classify"]),
    ):
        app, _ = serving(pooling)
        assert send(app, "GET", "/v1/models").json()["data"][0]["capabilities"] == words
    app, _ = serving(CLASSES)
    answer = send(app, "POST", "/pooling", {"input": "a", "task": "embed"})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "task"
    wrong = send(app, "POST", "/api/embed", {"model": "fake", "input": "a"})
    assert wrong.status_code == 404 and '"embed"' in wrong.json()["error"]
    assert send(app, "POST", "/api/chat", {"model": "fake"}).status_code == 404
    assert send(app, "GET", "/api/tags").status_code == 200


@pytest.mark.parametrize(
    ("pooling", "body", "path"),
    [
        (VECTORS, {"input": "a"}, "/v1/embeddings"),
        (VECTORS, {"input": "a", "task": "token_embed"}, "/pooling"),
        (CLASSES, {"input": "a"}, "/classify"),
        (SCORES, {"text_1": "a", "text_2": "b"}, "/score"),
        (SCORES, {"query": "a", "documents": ["b"]}, "/rerank"),
    ],
)
def test_hosting_services_ask_one_path(pooling: Any, body: Any, path: str) -> None:
    app, _ = serving(pooling)
    named = body | {"request_id": "mine"}
    here, there = (told(app, one, named) for one in ("/invocations", path))
    assert here | {"created": 0} == there | {"created": 0}


def with_client(
    app: FastAPI, made: Callable[[Any], Any], work: Callable[[Any], Awaitable[Any]]
) -> Any:
    async def main() -> Any:
        async with client_of(app) as http:
            return await work(made(http))

    return asyncio.run(main())


def test_the_ollama_client() -> None:
    ollama = pytest.importorskip("ollama")
    import httpx

    app, engine = serving()

    async def main() -> None:
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        client = ollama.AsyncClient(host="http://test", transport=transport)
        async with client._client:
            found = await client.embed("fake", TEXTS, options={"num_ctx": 32, "num_gpu": 1})
            assert [list(one) for one in found.embeddings] == [numbers(text) for text in TEXTS]
            assert found.prompt_eval_count == sum(map(len, TEXTS))
            assert (await client.embed("fake", "")).embeddings == []
            short = await client.embed("fake", "x" * 100, dimensions=3)
            assert len(short.embeddings[0]) == 3 and len(engine.pooled[-1][2]) == 64
            with pytest.raises(ollama.ResponseError, match="100 tokens"):
                await client.embed("fake", "x" * 100, truncate=False)
            old = await client.embeddings("fake", "first")
            assert list(old.embedding) == numbers("first")
            assert (await client.show("fake")).capabilities == ["embedding"]

    asyncio.run(main())


COHERE = {"model": "fake", "texts": TEXTS, "input_type": "search_query"}


def test_cohere_shapes() -> None:
    app, engine = serving()
    kinds = ["float", "int8", "ubinary", "base64"]
    answer = told(app, "/v2/embed", COHERE | {"embedding_types": kinds, "output_dimension": 8})
    asked = [numbers("ask: " + text) for text in TEXTS]
    assert answer["embeddings"]["float"] == asked
    assert list(answer["embeddings"]) == kinds and answer["texts"] == TEXTS
    assert max(map(abs, answer["embeddings"]["int8"][0])) == 127
    told(app, "/v2/embed", COHERE | {"texts": ["x" * 90 + "y"], "truncate": "START"})
    assert engine.pooled[-1][2][-1] == ord("y") and len(engine.pooled[-1][2]) == 64
    refused = send(app, "POST", "/v2/embed", COHERE | {"texts": ["x" * 99], "truncate": "NONE"})
    assert refused.status_code == 400 and "texts[0]" in refused.json()["message"]


def test_the_cohere_client() -> None:
    cohere = pytest.importorskip("cohere")

    def made(http: Any) -> Any:
        return cohere.AsyncClientV2(api_key="none", base_url="http://test", httpx_client=http)

    async def embeds(client: Any) -> None:
        found = await client.embed(**COHERE, embedding_types=["float", "binary"])
        assert found.embeddings.float_ == [numbers("ask: " + text) for text in TEXTS]
        assert len(found.embeddings.binary[0]) == 1
        with pytest.raises(cohere.NotFoundError, match="not served"):
            await client.embed(**COHERE | {"model": "other"}, embedding_types=["float"])

    async def ranks(client: Any) -> None:
        found = await client.rerank(model="fake", query="a", documents=TEXTS, top_n=2)
        assert len(found.results) == 2
        assert found.results[0].relevance_score >= found.results[1].relevance_score

    with_client(serving()[0], made, embeds)
    with_client(serving(SCORES)[0], made, ranks)


def test_the_langchain_client() -> None:
    # Not in the test extra: 40 MB, with a tracer that reports elsewhere (langsmith), for one class.
    langchain = pytest.importorskip("langchain_openai")

    def made(http: Any) -> Any:
        return langchain.OpenAIEmbeddings(
            model="fake",
            api_key="none",
            base_url="http://test/v1",
            http_async_client=http,
            check_embedding_ctx_length=False,
        )

    async def embeds(client: Any) -> None:
        found = await client.aembed_documents(TEXTS)
        assert found == [pytest.approx(numbers(text), abs=1e-7) for text in TEXTS]

    with_client(serving()[0], made, embeds)


def test_texts_and_token_ids_are_mixed_in_one_input() -> None:
    app, _ = serving()
    mixed = ["ab", [ord("a"), ord("b")], "cd", [ord("c")]]
    data = told(app, "/v1/embeddings", {"input": mixed})["data"]
    assert [one["embedding"] for one in data] == [numbers(t) for t in ("ab", "ab", "cd", "c")]
    body = {"inputs": [[ord("a")], "b"], "prompt_name": "query"}
    assert told(app, "/embed", body) == [numbers("a"), numbers("ask: b")]
    for bad, place in ((["a", [1, "x"]], "input[1]"), (["a", {}], "input[1]"), ([], "input")):
        error = send(app, "POST", "/v1/embeddings", {"input": bad}).json()["error"]
        assert error["param"].startswith(place), error


@pytest.mark.parametrize(
    ("pooling", "path", "body"),
    [
        (None, "/embed", {"inputs": TEXTS}),
        (CLASSES, "/predict", {"inputs": "ab"}),
        (SCORES, "/rerank", {"query": "a", "texts": TEXTS}),
    ],
)
def test_the_root_answers_what_the_model_does(pooling: Any, path: str, body: Any) -> None:
    app, _ = serving(pooling) if pooling else serving()
    assert told(app, "/", body) == told(app, path, body)
    assert send(app, "POST", "/", {}).status_code == 400


def test_fields_of_other_servers_are_translated_or_named() -> None:
    app, engine = serving()
    body = {"input": "abcdef", "truncate": 3, "extra_body": {"rid": "mine"}, "max_new_tokens": 5}
    answer = send(app, "POST", "/v1/embeddings", body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-dovetail-ignored-fields"] == "max_new_tokens"
    assert answer.json()["usage"]["prompt_tokens"] == 3
    assert [request_id for request_id, _, _ in engine.pooled] == ["mine"]
