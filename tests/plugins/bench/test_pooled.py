"""`dovetail bench serve` on endpoints that pool, against a scripted server."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from dovetail.errors import ConfigError
from dovetail.interfaces.bench_dataset import BenchDataset, BenchPrompt, DatasetQuery
from dovetail.interfaces.plugin import Info
from dovetail_plugins.bench.dialect import endpoint_of, kind_of_path, models_path
from dovetail_plugins.bench.load_run import ServerError
from dovetail_plugins.bench.serve_pooled import PooledDialect, PooledRun, figures, measure, rows
from dovetail_plugins.bench.serve_report import ReportOptions
from dovetail_plugins.bench.settings import (
    DatasetFlags,
    LoadFlags,
    MetricFlags,
    ReportFlags,
    ServeFlags,
    TargetFlags,
)
from support.scripted_server import Scripted, Writer, serving

CHECKED = ReportOptions(names=("e2el",), percentiles=[50.0], limits_ms={"e2el": 60_000.0})


class Words(BenchDataset):
    """Prompts "0", "1", ... as texts, or as token ids where text is not needed."""

    info = Info(summary="numbers")

    def draw(self, query: DatasetQuery) -> list[BenchPrompt]:
        """Return as many as are asked for."""
        return [
            BenchPrompt(prompt=str(i) if query.needs_text else (i,), output_tokens=1)
            for i in range(query.num_prompts)
        ]


def flags(url: str, **target: Any) -> ServeFlags:
    return ServeFlags(
        dataset=DatasetFlags(num_prompts=3, num_warmups=1, dataset_name=f"{__file__}:Words"),
        target=TargetFlags(base_url=url, vocab_size=99, **target),
        load=LoadFlags(max_concurrency=1),
        metrics=MetricFlags(),
        report=ReportFlags(),
    )


async def answer(body: dict[str, Any], writer: Writer) -> None:
    texts = body.get("input") or body.get("documents") or body["text_2"]
    content = json.dumps({"usage": {"prompt_tokens": 10 * len(texts)}}).encode()
    if body.get("fails"):
        content = b'{"error": {"message": "no such field"}}'
    status = b"400 Bad" if body.get("fails") else b"200 OK"
    head = b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n" % (status, len(content))
    writer.write(head + content)


def measured(script: Scripted, **target: Any) -> PooledRun:
    async def work() -> PooledRun:
        async with serving(script):
            return await measure(flags(script.url, **target))

    return asyncio.run(work())


def test_vectors() -> None:
    script = Scripted(answer)
    found = measured(script, backend="openai-embeddings", batch_size=2, extra_body={"x": 1})
    probe, warm, *bodies = script.bodies
    assert probe == {"model": "m", "input": [[8], [9]], "x": 1}
    assert warm["input"] == [[6], [7]]
    assert [body["input"] for body in bodies] == [[[0], [1]], [[2], [3]], [[4], [5]]]
    assert script.heads[0].startswith("GET /v1/models ")
    assert script.heads[1].startswith("POST /v1/embeddings ")
    results = figures(found.answers, 2, CHECKED)
    assert (results["completed"], results["texts"], results["prompt_tokens"]) == (3, 6, 60)
    assert results["texts_per_s"] == pytest.approx(2 * results["requests_per_s"])
    assert results["goodput_requests_per_s"] == pytest.approx(results["requests_per_s"])
    assert results["prompt_tokens_per_s"] == pytest.approx(10 * results["texts_per_s"])
    assert results["e2el_ms"]["p50"] > 0
    assert ("texts", "6") in rows(results, CHECKED)


def test_a_ranking_has_a_query_and_documents() -> None:
    script = Scripted(answer)
    found = measured(script, backend="vllm-rerank", batch_size=2)
    assert script.bodies[2:] == [
        {"model": "m", "query": str(at), "documents": [str(at + 1), str(at + 2)]}
        for at in (0, 3, 6)
    ]
    assert script.heads[1].startswith("POST /v1/rerank ")
    assert figures(found.answers, 2, CHECKED)["texts"] == 6


def test_scores() -> None:
    script = Scripted(answer)
    measured(script, endpoint="/score")
    assert script.bodies[1] == {"model": "m", "text_1": "6", "text_2": ["7"]}


def test_a_server_that_refuses_is_quoted() -> None:
    with pytest.raises(ServerError, match="status 400: no such field"):
        measured(Scripted(answer), endpoint="/classify", extra_body={"fails": True})


@pytest.mark.parametrize(
    ("path", "kind", "models"),
    [
        ("/v1/completions", "completions", "/v1/models"),
        ("/v1/chat/completions", "chat", "/v1/models"),
        ("/openai/completions", "completions", "/openai/models"),
        ("/v1/embeddings", "embeddings", "/v1/models"),
        ("/pooling", "pooling", "/v1/models"),
        ("/v2/rerank", "rerank", "/v1/models"),
        ("/proxy/v1/score", "score", "/proxy/v1/models"),
    ],
)
def test_endpoints(path: str, kind: str, models: str) -> None:
    assert (kind_of_path(path), models_path(path)) == (kind, models)


def test_backends() -> None:
    assert endpoint_of(None, None) == "/v1/completions"
    assert endpoint_of(None, "openai-chat") == "/v1/chat/completions"
    assert endpoint_of("/pooling", "openai-embeddings") == "/pooling"
    with pytest.raises(ConfigError, match="use one of openai"):
        endpoint_of(None, "tgi")
    with pytest.raises(ConfigError, match="cannot be measured"):
        kind_of_path("/v1/audio")


def test_a_dialect_knows_how_many_texts_it_takes() -> None:
    ranking, vectors = (PooledDialect(model="m", kind=kind) for kind in ("rerank", "embeddings"))
    assert (ranking.num_prompts(4), vectors.num_prompts(4)) == (5, 4)
    assert ranking.needs_text and not vectors.needs_text
