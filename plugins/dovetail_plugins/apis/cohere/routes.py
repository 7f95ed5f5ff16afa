"""POST /v2/embed. Cohere's /v2/rerank is in the family `scores`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from fastapi import Request

from dovetail.engine.client.results.outputs import RequestOutput
from dovetail.errors import RequestError
from dovetail.interfaces.api import Api, ApiError, Route
from dovetail.interfaces.data.pooling_params import EMBED, PoolingParams
from dovetail.interfaces.plugin import Info
from dovetail.server.endpoint import ModelText, ServerOf, in_words_of
from dovetail_plugins.apis._pool.inputs import InputFields, input_job
from dovetail_plugins.apis._pool.pictures import Picture, as_image, of_parts
from dovetail_plugins.apis._pool.replies import raw_reply
from dovetail_plugins.apis._pool.vectors import vector_format
from dovetail_plugins.apis._pool.work import answered, array_of
from dovetail_plugins.apis.cohere.protocol import CohereEmbedRequest

NAMES = {"dimensions": "output_dimension", "truncate_prompt_tokens": "max_tokens"}


async def embed(body: CohereEmbedRequest, request: Request, server: ServerOf) -> Any:
    """Return the vectors of texts or images, in one or more number types."""
    text, model = await server.text_for(body.model)
    ignored = server.fields.check(body)
    inputs, field = inputs_of(text, body)
    max_tokens = server.engine.spec.run.max_model_tokens
    fields = InputFields(
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
        job, _ = await input_job(
            server, text, fields, request, params, field=field, model=model, given=inputs
        )
        answers = await answered(server, job, written)
    by_kind = zip(*answers.items, strict=True)
    reply = {
        "id": job.request_id,
        "model": model,
        "embeddings": dict(zip(formats, by_kind, strict=True)),
        "texts": [one for one in inputs if isinstance(one, str)],
        "response_type": "embeddings_by_type",
        "meta": {
            "api_version": {"version": "2"},
            "billed_units": {"input_tokens": answers.num_tokens},
        },
    }
    return raw_reply(reply, ignored)


def inputs_of(text: ModelText, body: CohereEmbedRequest) -> tuple[Sequence[str | Picture], str]:
    """Return the texts and images, and their field name in the body. Raises: RequestError"""
    given = {name: getattr(body, name) for name in ("texts", "images", "inputs")}
    sent = [name for name, value in given.items() if value is not None]
    if len(sent) != 1:
        raise RequestError("give texts, images or inputs.", where="texts")
    if body.texts is not None:
        return body.texts, "texts"
    if body.images is not None:
        found = [
            of_parts(text, [as_image(one)], f"images[{place}]")
            for place, one in enumerate(body.images)
        ]
        return found, "images"
    parts = [[p.model_dump(exclude_unset=True) for p in one.content] for one in body.inputs or ()]
    where = [f"inputs[{place}].content" for place in range(len(parts))]
    return [of_parts(text, *one) for one in zip(parts, where, strict=True)], "inputs"


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
