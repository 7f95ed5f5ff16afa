"""POST /embed, /embed_all, /embed_sparse, /predict and /similarity, POST / for the model's main
task, GET /info.

Its /rerank is answered by the family `scores`, which recognizes it by the field `texts`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from fastapi import Request

from dovetail.engine.client.pooling.pairs import pair_prompt
from dovetail.engine.client.requests.input_processor import Prompt
from dovetail.engine.client.results.outputs import RequestOutput
from dovetail.errors import RequestError
from dovetail.interfaces.api import Api, ApiError, Route
from dovetail.interfaces.data.pooling_params import (
    CLASSIFY,
    EMBED,
    TASKS,
    TOKEN_EMBED,
    PoolingParams,
)
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.tokenizer import Tokenizer
from dovetail.server.endpoint import App, ServerOf
from dovetail.version import __version__
from dovetail_plugins.apis._pool.fields import PoolFields
from dovetail_plugins.apis._pool.inputs import InputFields, input_job, pooling_of
from dovetail_plugins.apis._pool.labels import label_of
from dovetail_plugins.apis._pool.replies import raw_reply
from dovetail_plugins.apis._pool.scores import Pairs, scored
from dovetail_plugins.apis._pool.vectors import VectorFormat
from dovetail_plugins.apis._pool.work import MAX_INPUTS, answered, array_of, check_inputs, job_of
from dovetail_plugins.apis.tei.protocol import (
    CutFields,
    EmbedRequest,
    EmbedSparseRequest,
    PredictRequest,
    SimilarityRequest,
)

FIELD = "inputs"
DENSE = VectorFormat().written
ROOT_PATHS = {"embedding": "/embed", "classifier": "/predict", "reranker": "/rerank"}
"""Type of the model -> the path that answers POST /."""


async def embed(body: EmbedRequest, request: Request, server: ServerOf) -> Any:
    """Return the vectors of inputs."""
    params = PoolingParams(task=EMBED, is_normalized=body.normalize, dimensions=body.dimensions)
    return await _embedded(server, body, request, params)


async def embed_all(body: EmbedRequest, request: Request, server: ServerOf) -> Any:
    """Return the vectors of each token of the inputs."""
    params = PoolingParams(task=TOKEN_EMBED, is_normalized=False)
    return await _embedded(server, body, request, params)


async def embed_sparse(body: EmbedSparseRequest, request: Request, server: ServerOf) -> Any:
    """Return the words of inputs that have a weight, by number."""
    task = pooling_of(server.engine).sparse_task
    if not task:
        raise RequestError(
            "the model makes dense vectors, not weights of words.",
            where=FIELD,
            fix="send this to /embed, or serve SPLADE or BGE-M3.",
        )
    tokenizer = server.engine.tokenizer

    def written(output: RequestOutput) -> list[dict[str, Any]]:
        weights = array_of(output)
        if task == EMBED:
            return entries({int(at): float(weights[at]) for at in np.flatnonzero(weights)})
        return entries(by_token(output.prompt_token_ids, weights, tokenizer))

    return await _embedded(server, body, request, PoolingParams(task=task), written)


def entries(weights: Mapping[int, float]) -> list[dict[str, Any]]:
    """Return a sparse vector as JSON has it, by increasing index."""
    return [{"index": at, "value": weights[at]} for at in sorted(weights)]


def by_token(
    prompt_ids: Sequence[int], weights: np.ndarray, tokenizer: Tokenizer
) -> dict[int, float]:
    """Return the largest weight of each token id that is neither special nor of weight 0. The
    special tokens around the text have no weight. Shapes: [number of tokens between them]"""
    before, _ = tokenizer.special_around()
    first = len(before) if len(prompt_ids) > len(weights) else 0
    special = tokenizer.facts().special_ids
    found: dict[int, float] = {}
    for one, weight in zip(prompt_ids[first:], weights.tolist(), strict=False):
        if weight > found.get(one, 0.0) and one not in special:
            found[one] = weight
    return found


async def _embedded(
    server: App,
    body: EmbedRequest | EmbedSparseRequest,
    request: Request,
    params: PoolingParams,
    written: Callable[[RequestOutput], Any] = lambda output: DENSE(array_of(output)),
) -> Any:
    ignored = server.fields.check(body)
    fields = InputFields(input=body.inputs, prompt_name=body.prompt_name, **_cut(body))
    job, _ = await input_job(server, server.text, fields, request, params, field=FIELD)
    answers = await answered(server, job, written)
    return raw_reply(answers.items, ignored)


async def predict(body: PredictRequest, request: Request, server: ServerOf) -> Any:
    """Return the classes of a text or a pair with their probabilities, most likely first."""
    ignored = server.fields.check(body)
    server.text.check_text(FIELD)
    given = body.inputs
    is_single = isinstance(given, str) or isinstance(given[0], str)
    sequences: list[Any] = [given] if is_single else list(given)
    check_inputs(sequences, FIELD, is_list=not is_single)
    prompts, params = [], []
    for sequence in sequences:
        prompt, num_first = _prompt(
            server, [sequence] if isinstance(sequence, str) else sequence, body
        )
        prompts.append(prompt)
        wants = False if body.raw_scores else None
        params.append(PoolingParams(task=CLASSIFY, is_activated=wants, first_text_tokens=num_first))
    fields = PoolFields(**_cut(body))
    job = job_of(fields, request, prompts, params, field=FIELD, is_list=not is_single)
    labels = pooling_of(server.engine).labels
    answers = await answered(server, job, array_of)
    predictions = [_predicted(one, labels) for one in answers.items]
    return raw_reply(predictions[0] if is_single else predictions, ignored)


def _prompt(server: App, sequence: list[str], body: CutFields) -> tuple[Prompt, int | None]:
    """Return (the prompt of a text or pair, the number of tokens of a pair's first text)."""
    if len(sequence) == 1:
        return sequence[0], None
    max_tokens = server.engine.spec.run.max_model_tokens
    truncate = -1 if body.truncate else None
    return pair_prompt(server.engine.tokenizer, *sequence, max_tokens=max_tokens, truncate=truncate)


def _predicted(probabilities: np.ndarray, labels: tuple[str, ...]) -> list[dict[str, Any]]:
    order = np.argsort(-probabilities, kind="stable")
    return [{"score": float(probabilities[at]), "label": label_of(int(at), labels)} for at in order]


async def similarity(body: SimilarityRequest, request: Request, server: ServerOf) -> Any:
    """Return the cosine similarity of a text to others."""
    ignored = server.fields.check(body)
    parameters = CutFields.model_validate(body.parameters or {})
    pairs = Pairs(
        firsts=[body.inputs.source_sentence],
        seconds=body.inputs.sentences,
        first_field="inputs.source_sentence",
        second_field="inputs.sentences",
    )
    _, answers = await scored(server, server.text, PoolFields(**_cut(parameters)), request, pairs)
    return raw_reply(answers.items, ignored)


def _cut(body: CutFields) -> dict[str, Any]:
    """Return the truncation settings in the fields of the other families."""
    side = body.truncation_direction.lower()
    return {"truncate_prompt_tokens": -1 if body.truncate else None, "truncation_side": side}


async def answer_root(request: Request, server: ServerOf) -> Any:
    """Answer with the model's main task: vectors, classes or a ranking."""
    (kind,) = _model_type(server)
    path = ROOT_PATHS[kind]
    routes = request.app.router.routes
    route = next(one for one in routes if getattr(one, "path", None) == path)
    return await route.get_route_handler()(request)


async def show_info(server: ServerOf) -> dict[str, Any]:
    """Return the facts of the model and the request limits."""
    run = server.engine.spec.run
    name = server.engine.spec.model_names[0]
    return {
        "model_id": name,
        "model_sha": None,
        "model_dtype": run.model.dtype,
        "model_type": _model_type(server),
        "served_model_name": name,
        "max_concurrent_requests": server.engine.spec.total_rows,
        "max_input_length": run.max_model_tokens,
        "max_batch_tokens": run.max_step_tokens,
        "max_batch_requests": run.max_rows,
        "max_client_batch_size": MAX_INPUTS,
        "auto_truncate": False,
        "version": __version__,
    }


def _model_type(server: App) -> dict[str, Any]:
    pooling = pooling_of(server.engine)
    if EMBED in pooling.tasks:
        is_splade = pooling.sparse_task == EMBED
        return {"embedding": {"pooling": "splade" if is_splade else pooling.pooler.name}}
    ids = {str(number): label for number, label in enumerate(pooling.labels)}
    labels = {"id2label": ids, "label2id": {label: int(at) for at, label in ids.items()}}
    return {"reranker" if len(pooling.labels) == 1 else "classifier": labels}


class TeiApi(Api):
    """The API of text-embeddings-inference."""

    info = Info(
        summary="embed, predict and similarity of text-embeddings-inference's API",
        source="the API reference of text-embeddings-inference",
    )
    routes = (
        Route(
            method="POST",
            path="/embed",
            endpoint=embed,
            body=EmbedRequest,
            tasks=(EMBED,),
            takes_any_length=True,
        ),
        Route(
            method="POST",
            path="/embed_all",
            endpoint=embed_all,
            body=EmbedRequest,
            tasks=(TOKEN_EMBED,),
            takes_any_length=True,
        ),
        Route(
            method="POST",
            path="/embed_sparse",
            endpoint=embed_sparse,
            body=EmbedSparseRequest,
            tasks=(EMBED,),
            takes_any_length=True,
        ),
        Route(
            method="POST",
            path="/predict",
            endpoint=predict,
            body=PredictRequest,
            tasks=(CLASSIFY,),
            takes_any_length=True,
        ),
        Route(
            method="POST",
            path="/similarity",
            endpoint=similarity,
            body=SimilarityRequest,
            tasks=(EMBED,),
            takes_any_length=True,
        ),
        Route(method="POST", path="/", endpoint=answer_root, tasks=(EMBED, CLASSIFY)),
        Route(method="GET", path="/info", endpoint=show_info, tasks=TASKS),
    )

    def error_body(self, status: int, error: ApiError, request_id: str | None) -> bytes:
        """Return the API's JSON error body."""
        kinds = {503: "Unhealthy", 429: "Overloaded", 500: "Backend"}
        kind = kinds.get(status, "Validation")
        return msgspec.json.encode({"error": error.message, "error_type": kind})
