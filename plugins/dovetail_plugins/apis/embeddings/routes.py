"""POST /v1/embeddings."""

from __future__ import annotations

import time
from typing import Any

from fastapi import Request

from dovetail.interfaces.api import Api, Route
from dovetail.interfaces.data.pooling_params import EMBED, PoolingParams
from dovetail.interfaces.plugin import Info
from dovetail.server.endpoint import ServerOf
from dovetail_plugins.apis._pool.inputs import input_job
from dovetail_plugins.apis._pool.replies import raw_reply
from dovetail_plugins.apis._pool.vectors import vector_format
from dovetail_plugins.apis._pool.work import answered, array_of
from dovetail_plugins.apis.embeddings.protocol import EmbeddingRequest


async def create_embeddings(body: EmbeddingRequest, request: Request, server: ServerOf) -> Any:
    """Return the vectors of inputs, or of a conversation."""
    text, model = await server.text_for(body.model)
    wants = body.normalize if body.normalize is not None else body.use_activation
    params = PoolingParams(task=EMBED, dimensions=body.dimensions, is_normalized=wants)
    job, ignored = await input_job(server, text, body, request, params, model=model)
    shape = vector_format(body.encoding_format, body.embed_dtype, body.endianness)
    answers = await answered(server, job, lambda output: shape.written(array_of(output)))
    data = [
        {"object": "embedding", "index": index, "embedding": vector}
        for index, vector in enumerate(answers.items)
    ]
    reply = {
        "id": f"embd-{job.request_id}",
        "object": "list",
        "created": int(time.time()),
        "model": model,
        "data": data,
        "usage": answers.usage(server).model_dump(),
    }
    return raw_reply(reply, ignored)


class EmbeddingsApi(Api):
    """OpenAI's embeddings."""

    info = Info(summary="vectors of texts of the OpenAI API", source="the OpenAI API reference")
    routes = (
        Route(
            method="POST",
            path="/v1/embeddings",
            endpoint=create_embeddings,
            body=EmbeddingRequest,
        ),
    )
    task = EMBED
