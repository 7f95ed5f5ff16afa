"""POST /api/embed, and the older /api/embeddings, which returns a single vector."""

from __future__ import annotations

import time
from typing import Any

from fastapi import Request

from dovetail.interfaces.data.pooling_params import EMBED, PoolingParams
from dovetail.server.endpoint import App, ServerOf
from dovetail_plugins.apis._pool.inputs import InputFields, input_job
from dovetail_plugins.apis._pool.replies import raw_reply
from dovetail_plugins.apis._pool.vectors import VectorFormat
from dovetail_plugins.apis._pool.work import Answers, answered, array_of
from dovetail_plugins.apis.ollama.models import meant_model
from dovetail_plugins.apis.ollama.options import check_fields
from dovetail_plugins.apis.ollama.protocol import (
    OllamaEmbeddingsRequest,
    OllamaEmbedFields,
    OllamaEmbedRequest,
)


async def embed(body: OllamaEmbedRequest, request: Request, server: ServerOf) -> Any:
    """Return the vectors of one or more texts in Ollama's format."""
    began_ns = time.monotonic_ns()
    model = await meant_model(server, body.model)
    ignored = _checked(server, body)
    texts = [body.input] if isinstance(body.input, str) else body.input
    params = PoolingParams(task=EMBED, dimensions=body.dimensions)
    answers = Answers()
    if any(texts):
        cut = -1 if body.truncate is not False else None
        answers = await _embedded(
            server,
            request,
            texts,
            params,
            field="input",
            truncate=cut,
            model=model,
        )
    reply = {
        "model": body.model,
        "embeddings": answers.items,
        "total_duration": time.monotonic_ns() - began_ns,
        "load_duration": 0,
        "prompt_eval_count": answers.num_tokens,
    }
    return raw_reply(reply, ignored)


async def embed_prompt(body: OllamaEmbeddingsRequest, request: Request, server: ServerOf) -> Any:
    """Return the vector of one text in Ollama's older format."""
    model = await meant_model(server, body.model)
    ignored = _checked(server, body)
    if not body.prompt:
        return raw_reply({"embedding": []}, ignored)
    params = PoolingParams(task=EMBED)
    answers = await _embedded(
        server,
        request,
        body.prompt,
        params,
        field="prompt",
        truncate=-1,
        model=model,
    )
    return raw_reply({"embedding": answers.items[0]}, ignored)


def _checked(server: App, body: OllamaEmbedFields) -> list[str]:
    """Return the names of fields and options without effect. Raises: RequestError"""
    ignored = check_fields(server, body)
    settings = () if body.options is None else sorted(body.options.model_fields_set)
    return [*ignored, *(f"options.{name}" for name in settings)]


async def _embedded(
    server: App,
    request: Request,
    texts: str | list[str],
    params: PoolingParams,
    *,
    field: str,
    truncate: int | None,
    model: str,
) -> Answers:
    fields = InputFields(input=texts, truncate_prompt_tokens=truncate)
    job, _ = await input_job(server, server.text, fields, request, params, field=field, model=model)
    written = VectorFormat().written
    return await answered(server, job, lambda output: written(array_of(output)))
