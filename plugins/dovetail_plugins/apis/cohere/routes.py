"""POST /v2/embed. Cohere's /v2/rerank is in the family `scores`."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import Request

from dovetail.engine.client.results.outputs import RequestOutput
from dovetail.errors import RequestError
from dovetail.interfaces.api import Api, ApiError, Route
from dovetail.interfaces.data.pooling_params import EMBED, PoolingParams
from dovetail.interfaces.plugin import Info
from dovetail.server.endpoint import ServerOf, in_words_of
from dovetail.unsupported import sentence
from dovetail_plugins.apis._pool.inputs import InputFields, input_job
from dovetail_plugins.apis._pool.replies import raw_reply
from dovetail_plugins.apis._pool.vectors import vector_format
from dovetail_plugins.apis._pool.work import answered, array_of
from dovetail_plugins.apis.cohere.protocol import CohereEmbedRequest

NAMES = {"dimensions": "output_dimension", "truncate_prompt_tokens": "max_tokens"}


async def embed(body: CohereEmbedRequest, request: Request, server: ServerOf) -> Any:
    """Return the vectors of texts, in one or more number types."""
    text, model = await server.text_for(body.model)
    ignored = server.fields.check(body)
    texts, field = texts_of(body)
    max_tokens = server.engine.spec.run.max_model_tokens
    fields = InputFields(
        input=texts,
        input_type=body.input_type,
        truncate_prompt_tokens=min(body.max_tokens or max_tokens, max_tokens)
        if cuts(body)
        else None,
        truncation_side="left" if body.truncate == "START" else "right",
        priority=body.priority,
    )
    formats = {kind: vector_format(kind) for kind in dict.fromkeys(body.embedding_types)}

    def written(output: RequestOutput) -> list[msgspec.Raw]:
        vector = array_of(output)
        return [one.written(vector) for one in formats.values()]

    with in_words_of(NAMES):
        params = PoolingParams(task=EMBED, dimensions=body.output_dimension)
        job, _ = await input_job(server, text, fields, request, params, field=field, model=model)
        answers = await answered(server, job, written)
    by_kind = zip(*answers.items, strict=True)
    reply = {
        "id": job.request_id,
        "model": model,
        "embeddings": dict(zip(formats, by_kind, strict=True)),
        "texts": texts,
        "response_type": "embeddings_by_type",
        "meta": {
            "api_version": {"version": "2"},
            "billed_units": {"input_tokens": answers.num_tokens},
        },
    }
    return raw_reply(reply, ignored)


def texts_of(body: CohereEmbedRequest) -> tuple[list[str], str]:
    """Return the texts and their field name in the body. Raises: RequestError"""
    if body.images:
        raise RequestError(sentence("media"), where="images", code="unsupported_field")
    if (body.texts is None) == (body.inputs is None):
        raise RequestError("give texts.", where="texts")
    if body.texts is not None:
        return body.texts, "texts"
    inputs = body.inputs or ()
    return ["".join(part.text for part in one.content) for one in inputs], "inputs"


def cuts(body: CohereEmbedRequest) -> bool:
    """Return whether long texts are truncated."""
    return body.truncate != "NONE"


class CohereApi(Api):
    """Cohere's embed."""

    info = Info(summary="embed of Cohere's API", source="Cohere's API reference, v2")
    routes = (
        Route(
            method="POST",
            path="/v2/embed",
            endpoint=embed,
            body=CohereEmbedRequest,
            takes_any_length=True,
        ),
    )
    task = EMBED

    def error_body(self, status: int, error: ApiError, request_id: str | None) -> bytes:
        """Return Cohere's JSON error body."""
        return msgspec.json.encode({"id": request_id, "message": error.message})
