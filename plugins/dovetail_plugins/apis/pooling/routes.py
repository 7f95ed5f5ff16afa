"""POST /pooling and /classify."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from fastapi import Request

from dovetail.engine.client.requests.io_processing import DATA, processed_answer, processed_prompts
from dovetail.errors import RequestError
from dovetail.interfaces.api import Api, Route
from dovetail.interfaces.data.pooling_params import (
    CLASSIFY,
    EMBED,
    TASKS,
    TOKEN_CLASSIFY,
    TOKEN_EMBED,
    PoolingParams,
)
from dovetail.interfaces.data.spec import PoolingSpec
from dovetail.interfaces.plugin import Info
from dovetail.server.endpoint import LONG_WORK, App, ModelText, ServerOf
from dovetail_plugins.apis._pool.inputs import input_job, pooling_of
from dovetail_plugins.apis._pool.labels import label_of
from dovetail_plugins.apis._pool.replies import raw_reply
from dovetail_plugins.apis._pool.vectors import vector_format
from dovetail_plugins.apis._pool.work import answered, array_of, check_inputs, job_of
from dovetail_plugins.apis.pooling.protocol import ClassifyRequest, PoolingRequest

_OLDER = {
    "encode": (TOKEN_EMBED, TOKEN_CLASSIFY),
    "score": (CLASSIFY,),
    "reward": (TOKEN_CLASSIFY, CLASSIFY),
}


async def create_pooling(body: PoolingRequest, request: Request, server: ServerOf) -> Any:
    """Return the model's pooled output for inputs, or for each of their tokens."""
    text, model = await server.text_for(body.model)
    if body.data is not None:
        return await create_from_data(body, request, server, text, model)
    task = task_of(body.task, pooling_of(server.engine))
    is_vector = task in (EMBED, TOKEN_EMBED)
    normal = body.normalize if body.normalize is not None else body.use_activation
    params = PoolingParams(
        task=task,
        dimensions=body.dimensions if is_vector else None,
        is_normalized=normal if is_vector else None,
        is_activated=None if is_vector else body.wants_activation(),
    )
    job, ignored = await input_job(server, text, body, request, params, model=model)
    shape = vector_format(body.encoding_format, body.embed_dtype, body.endianness)
    answers = await answered(server, job, lambda output: shape.written(array_of(output)))
    reply = {
        "id": f"pool-{job.request_id}",
        "object": "list",
        "created": int(time.time()),
        "model": model,
        "data": [
            {"object": "pooling", "index": index, "data": numbers}
            for index, numbers in enumerate(answers.items)
        ],
        "usage": answers.usage(server).model_dump(),
    }
    return raw_reply(reply, ignored)


async def create_from_data(
    body: PoolingRequest, request: Request, server: App, text: ModelText, model: str
) -> Any:
    """Return the server plugin's result for data, computed with the model. Raises: RequestError"""
    processor = text.io_processor
    if processor is None:
        raise RequestError(
            "this server reads no data of other forms.",
            where=DATA,
            fix="send input, or start the server with --io-processor-plugin.",
            code="unsupported_field",
        )
    refuse_inputs(body)
    prompts = await server.run(partial(processed_prompts, processor, body.data), LONG_WORK)
    pooling = pooling_of(server.engine)
    params = PoolingParams(task=task_of(body.task or processor.task or None, pooling))
    ignored = server.fields.check(body)
    check_inputs(prompts, DATA, is_list=False)
    adapter = server.engine.spec.adapter_of(model)
    job = job_of(body, request, prompts, params, field=DATA, is_list=False, adapter=adapter)
    answers = await answered(server, job, array_of)
    answer = partial(processed_answer, processor, body.data, answers.items)
    reply = {
        "id": f"pool-{job.request_id}",
        "request_id": job.request_id,
        "created_at": int(time.time()),
        "model": model,
        "data": await server.run(answer, LONG_WORK),
        "usage": answers.usage(server).model_dump(),
    }
    return raw_reply(reply, ignored)


def refuse_inputs(body: PoolingRequest) -> None:
    """Raise RequestError for fields about inputs in a request with data."""
    others = ("input", "messages", "encoding_format", "embed_dtype", "endianness", "dimensions",
              "normalize", "use_activation", "activation", "softmax", "prompt_name",
              "input_type")  # fmt: skip
    for name in others:
        if getattr(body, name) is not None:
            raise RequestError("cannot be combined with data.", where=name)


def task_of(requested: str | None, pooling: PoolingSpec) -> str:
    """Return the requested task; the model's default if none is named."""
    if requested is None:
        return pooling.tasks[0]
    names = _OLDER.get(requested, (requested,))
    return next((name for name in names if name in pooling.tasks), names[0])


async def classify(body: ClassifyRequest, request: Request, server: ServerOf) -> Any:
    """Return the most likely class of each input, with the probabilities of all classes."""
    text, model = await server.text_for(body.model)
    params = PoolingParams(task=CLASSIFY, is_activated=body.wants_activation())
    job, ignored = await input_job(server, text, body, request, params, model=model)
    answers = await answered(server, job, array_of)
    labels = pooling_of(server.engine).labels
    reply = {
        "id": f"classify-{job.request_id}",
        "object": "list",
        "created": int(time.time()),
        "model": model,
        "data": [
            _classified(i, probabilities, labels) for i, probabilities in enumerate(answers.items)
        ],
        "usage": answers.usage(server).model_dump(),
    }
    return raw_reply(reply, ignored)


def _classified(index: int, probabilities: np.ndarray, labels: Sequence[str]) -> dict[str, Any]:
    return {
        "index": index,
        "label": label_of(int(probabilities.argmax()), labels),
        "probs": probabilities.tolist(),
        "num_classes": len(probabilities),
    }


class PoolingApi(Api):
    """Pooling endpoints for every task."""

    info = Info(
        summary="vectors and classes of prompts or their tokens",
        source="the HTTP API of `vllm serve`",
    )
    routes = (
        Route(
            method="POST",
            path="/pooling",
            endpoint=create_pooling,
            body=PoolingRequest,
            tasks=TASKS,
        ),
        Route(
            method="POST",
            path="/classify",
            endpoint=classify,
            body=ClassifyRequest,
            tasks=(CLASSIFY,),
        ),
    )
